"""Every figure of the paper from run files, as PNG and PDF, with captions.

`draw_figures` finds out which figures the runs of a folder allow and draws them; the functions that
it calls each draw one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib as mpl

from atomsep.experiments.atoms_file import Atoms, read_atoms
from atomsep.experiments.distances import read_distances
from atomsep.experiments.errors import unknown
from atomsep.experiments.files import replacing, write_text, writing
from atomsep.experiments.synthetic import mixtures
from atomsep.importance.figure import image_figure
from atomsep.importance.words import merge_words
from atomsep.methods import ATOM_MODELING
from atomsep.report import captions
from atomsep.report.boxes import boxes_by_method
from atomsep.report.charges import charge_by_value, sentence_figure, token_figure
from atomsep.report.energy import energy_by_distance
from atomsep.report.groups import Group
from atomsep.report.latent import PROJECTIONS, latent_space, trained_model, untrained_model
from atomsep.report.parts import Finished, Part, divide, find_runs
from atomsep.report.spread import distances_over_training
from atomsep.report.style import STYLE, Drawing, label_of, on_one_line

FORMATS = ("png", "pdf")

PANELS = 3
"""Methods whose distances are shown: the plain one, atom modeling, and one more."""

IMAGES, SENTENCES = 12, 10
"""Samples in a figure."""


def write_figures(root: Path, out: Path, projection: str = "pca") -> list[Path]:
    """Draw all figures of the runs under a folder; returns the files.

    `captions.md` shows all of them with their captions.

    Args:
        root: folder of runs, or any folder within it.
        out: folder of the figures.
        projection: "pca" or "tsne", for the latent space.

    Raises:
        ExperimentError: there is no finished run, or the file system refuses.
    """
    if projection not in PROJECTIONS:
        raise unknown("projection", projection, PROJECTIONS)
    runs = find_runs(root)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    files, page = [], ["# Figures\n"]
    with mpl.rc_context(STYLE):
        for drawing in draw_figures(runs, projection):
            for ending in FORMATS:
                path = out / f"{drawing.name}.{ending}"
                with writing(path), replacing(path) as part:
                    # Without a date, so that the same runs give the same file.
                    date = {"CreationDate": None} if ending == "pdf" else None
                    drawing.figure.savefig(part, format=ending, metadata=date)
                files.append(path)
            page.append(f"![{drawing.name}]({drawing.name}.png)\n\n{drawing.caption}\n")
    write_text(out / "captions.md", "\n".join(page))
    return [*files, out / "captions.md"]


def draw_figures(runs: Sequence[Finished], projection: str = "pca") -> Iterator[Drawing]:
    """All figures that some runs allow, one after the other."""
    yield Drawing("energy", energy_by_distance(), captions.energy())
    names: list[str] = []
    for part in divide(runs):
        name = part.main.experiment + ("-tiny" if part.main.tiny else "")
        names.append(name)
        again = names.count(name)
        name += f"-{again}" if again > 1 else ""
        for group in part.groups:
            yield from draw_boxes(f"{name}-{group.metric}", part, group)
        if part.main.experiment == "synthetic":
            yield from draw_mixtures(name, part, projection)
        yield from draw_distances(name, part)
        yield from draw_samples(name, part)


def draw_boxes(name: str, part: Part, group: Group) -> Iterator[Drawing]:
    """A metric by method, and by what atom modeling leaves out."""
    best = 100 * mixtures.bayes_rate() if group.experiment == "synthetic" else None
    ablations = [row for row in group.rows if row.method in ATOM_MODELING and row.method != "atom"]
    methods = [row for row in group.rows if row not in ablations]
    ablated = [row for row in group.rows if row.method in ATOM_MODELING]
    for ending, rows in (("methods", methods), ("ablation", ablated if ablations else [])):
        if rows:
            text = captions.boxes(part, group, rows, best)
            yield Drawing(f"{name}-{ending}", boxes_by_method(rows, group.label, best), text)


def draw_mixtures(name: str, part: Part, projection: str) -> Iterator[Drawing]:
    """Latent space and charges of the Gaussian mixtures."""
    first = min(run.result["seed"] for runs in part.runs for run in runs)
    models, atoms = {}, []
    for row, runs in zip(part.main.rows, part.runs, strict=True):
        if row.method in ATOM_MODELING and row.method != "atom":
            continue
        for run in runs:
            model = trained_model(run.folder, run.result["settings"])
            if run.result["seed"] == first:
                label = on_one_line(label_of(row.method))
                models[label if label not in models else row.title] = model
            if row.method == "atom":
                atoms.append(model)
    start = untrained_model(first, part.main.rows[0].settings)
    figure = latent_space({"before training": start, **models}, first, projection)
    yield Drawing(f"{name}-latent", figure, captions.latent(part, first, projection))
    if atoms:
        seeds = [run.result["seed"] for _, runs in of_method(part, "atom") for run in runs]
        yield Drawing(f"{name}-charge", charge_by_value(atoms), captions.charge(part, seeds))


def of_method(part: Part, method: str) -> list[tuple[int, Sequence[Finished]]]:
    """Places and runs of a method's rows."""
    pairs = zip(part.main.rows, part.runs, strict=True)
    return [(place, runs) for place, (row, runs) in enumerate(pairs) if row.method == method]


def draw_distances(name: str, part: Part) -> Iterator[Drawing]:
    """Atomic distances over the training, of the first seed that has them."""
    order = ["plain", "atom", *(row.method for row in part.main.rows)]
    found: dict[int, dict[str, dict[str, object]]] = {}
    for method in dict.fromkeys(order):
        for _, runs in of_method(part, method)[:1]:
            for run in runs:
                moments = read_distances(run.folder)
                if moments:
                    found.setdefault(run.result["seed"], {})[method] = moments
    if found:
        seed = min(found, key=lambda each: (-len(found[each]), each))
        shown = dict(list(found[seed].items())[:PANELS])
        titles = [row.title for row in part.main.rows if row.method == "plain"]
        figure = distances_over_training(shown, *titles[:1])
        yield Drawing(f"{name}-distances", figure, captions.distances(part, seed))


def draw_samples(name: str, part: Part) -> Iterator[Drawing]:
    """Images or sentences of a run with atom modeling, with their charges."""
    for run in (run for _, runs in of_method(part, "atom") for run in runs):
        atoms = read_atoms(run.folder)
        if atoms is None:
            continue
        seed, settings = run.result["seed"], run.result["settings"]
        if atoms.images is not None:
            titles = titles_of(atoms, run.result.get("classes"))
            shown = atoms.images[:IMAGES], atoms.charges[:IMAGES], titles and titles[:IMAGES]
            generated = atoms.labels is None
            text = captions.images(part, seed, settings.get("layer", ""), generated=generated)
            try:
                figure = image_figure(*shown, what="image" if generated else "input")
            except ValueError as error:  # the tokens are not a grid, or the charges not numbers
                figure = token_figure(shown[1])
                text += f" There is no map: {error}."
            yield Drawing(f"{name}-maps", figure, text)
        elif atoms.sentences is not None and atoms.tokens is not None:
            rows = list(zip(atoms.sentences, atoms.tokens, atoms.charges, strict=True))
            words = [merge_words(text, own, q[: len(own)]) for text, own, q in rows[:SENTENCES]]
            figure = sentence_figure(words)
            yield Drawing(f"{name}-words", figure, captions.sentences(part, seed))
        return


def titles_of(atoms: Atoms, classes: Sequence[str] | None) -> list[str] | None:
    """The class of each sample, and the predicted one where it is another; None without labels."""
    if atoms.labels is None or atoms.predictions is None:
        return None

    def name(number: int) -> str:
        return classes[number] if classes is not None else f"class {number}"

    pairs = zip(atoms.labels.tolist(), atoms.predictions.tolist(), strict=True)
    return [name(a) + ("" if a == b else f" (predicted: {name(b)})") for a, b in pairs]
