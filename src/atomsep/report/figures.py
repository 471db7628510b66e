"""The figures of the Gaussian mixtures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import atomsep
from atomsep.core.statistics import Statistics
from atomsep.experiments.randomness import generator, seeded
from atomsep.experiments.runs import Run, RunKey
from atomsep.experiments.synthetic import mixtures
from atomsep.functional import equilibrium_distance, pair_energy
from atomsep.methods import ATOM_MODELING, METHODS

INK, FAINT = "#1f2743", "#d5d8e2"
CLASSES = {"A": "#c8402f", "B": "#2f4fa8"}
GREY, BLUE, GREEN, PALE = "#8a90a2", "#5a7fb8", "#12877a", "#7fbdb4"
SIMILARITIES = {0.5: "#c3b5dd", 1.0: "#a58fcb", 1.5: "#7d62b4", 2.0: "#5b3f98", 4.0: "#33206b"}
"""Values of k whose energy is drawn, and their colours."""

STYLE: dict[Any, Any] = {
    "figure.dpi": 160,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), INK),
    **dict.fromkeys(("text.color", "xtick.color", "ytick.color"), INK),
}


def write_figures(
    folder: Path,
    root: Path,
    keys: Sequence[RunKey],
    accuracies: Mapping[str, Mapping[int, float]],
    bayes: float,
) -> list[Path]:
    """Draw all figures of finished runs as PNG files; returns their paths.

    Args:
        folder: folder of the figures.
        root: folder of all runs.
        keys: finished runs of the mixtures, over several methods and seeds.
        accuracies: by method and seed, between 0 and 1.
        bayes: accuracy of the best possible classifier.
    """
    atoms = [key for key in keys if key.method == "atom"]
    first = min(key.seed for key in keys)
    shown = [key for key in keys if key.seed == first and key.method in ("plain", "atom")]
    with mpl.rc_context(STYLE):
        figures = {
            "accuracy": accuracy_by_method(accuracies, bayes),
            "energy": energy_by_distance(),
        }
        if shown:
            figures["latent"] = latent_space(root, shown)
        if atoms:
            figures["charge"] = charge_by_value(root, atoms)
        for name, figure in figures.items():
            figure.savefig(folder / f"{name}.png")
    return [folder / f"{name}.png" for name in figures]


def trained_model(key: RunKey, root: Path) -> mixtures.MixtureClassifier:
    """The model that a finished run trained."""
    model = untrained_model(key)
    states = torch.load(Run(key.folder(root)).model, weights_only=True)
    model.load_state_dict(states["model"])
    return model.eval()


def untrained_model(key: RunKey) -> mixtures.MixtureClassifier:
    """The model that a run starts from."""
    with seeded(key.seed, "initial weights"):
        return mixtures.MixtureClassifier(key.settings.activation)  # type: ignore[attr-defined]


def colour_of(method: str) -> str:
    """Grey for the plain method, green for atom modeling, paler without constraints."""
    return {"plain": GREY, "atom": GREEN}.get(method, PALE if method in ATOM_MODELING else BLUE)


def label_of(method: str) -> str:
    """A method's name under a figure, on one or two lines."""
    if method == "plain":
        return "cross-\nentropy"
    entry = METHODS.get(method)
    return method if entry is None else entry.label or entry.title


def on_one_line(label: str) -> str:
    r"""A label without its line break.

    Example:
        >>> on_one_line("cross-\nentropy"), on_one_line("atom\nmodeling")
        ('cross-entropy', 'atom modeling')
    """
    return label.replace("-\n", "-").replace("\n", " ")


def accuracy_by_method(accuracies: Mapping[str, Mapping[int, float]], bayes: float) -> Figure:
    """Test accuracy of every method: a box beside the seeds, and a faint line per seed."""
    figure = Figure(figsize=(1.6 + 1.05 * len(accuracies), 4.4), layout="constrained")
    axes = figure.subplots()
    seeds = sorted({seed for values in accuracies.values() for seed in values})
    for seed in seeds:
        line = [100 * values.get(seed, float("nan")) for values in accuracies.values()]
        axes.plot(range(len(line)), line, color=FAINT, lw=1.0, zorder=1)
    for place, (method, values) in enumerate(accuracies.items()):
        colour, column = colour_of(method), [100 * value for value in values.values()]
        axes.scatter([place] * len(column), column, s=22, color=colour, zorder=3)
        axes.boxplot(
            column,
            positions=[place + 0.28],
            widths=0.2,
            showfliers=False,
            patch_artist=True,
            boxprops={"facecolor": colour, "alpha": 0.35, "edgecolor": colour},
            medianprops={"color": colour, "lw": 2},
            whiskerprops={"color": colour},
            capprops={"color": colour},
        )
    best = 100 * bayes
    axes.axhline(best, color=INK, lw=1, ls=(0, (5, 3)))
    text = f"best possible: {best:.1f} %"
    axes.annotate(text, (-0.4, best), (0, 4), textcoords="offset points", fontsize=9)
    axes.set_xticks(range(len(accuracies)), map(label_of, accuracies))
    axes.set(xlim=(-0.5, len(accuracies) - 0.3), ymargin=0.12, ylabel="test accuracy, %")
    axes.set_title(f"Accuracy by method and seed (n = {len(seeds)})")
    return figure


def latent_space(root: Path, keys: Sequence[RunKey], shown: int = 1500) -> Figure:
    """Hidden states, averaged over sub-units, in two principal components: before and after.

    All panels share one scale. Each clump is one number of sub-units from A, 0 to 5.
    """
    samples = mixtures.draw(shown, generator(keys[0].seed, "test samples"))
    values, labels = samples.values, samples.labels.bool()
    figure = Figure(figsize=(3.4 * (1 + len(keys)), 3.7), layout="constrained")
    panels = figure.subplots(1, 1 + len(keys), sharex=True, sharey=True)
    models = {"before training": untrained_model(keys[0])}
    models.update((on_one_line(label_of(key.method)), trained_model(key, root)) for key in keys)
    for axes, (title, model) in zip(panels, models.items(), strict=True):
        with torch.no_grad():
            mean = model.hidden(values).unflatten(1, (mixtures.SUB_UNITS, -1)).mean(1)
            plane = principal_plane(mean, labels)
        for name, chosen in (("A", labels), ("B", ~labels)):
            look = {"s": 7, "color": CLASSES[name], "alpha": 0.45, "lw": 0}
            axes.scatter(*plane[chosen].T.numpy(), **look, label=f"most sub-units {name}")
        axes.set(title=title, xlabel="first component")
    panels[0].set_ylabel("second component")
    entries = panels[0].get_legend_handles_labels()
    legend = figure.legend(*entries, loc="outside lower center", ncols=2, markerscale=2)
    for handle in filter(None, legend.legend_handles):
        handle.set_alpha(1)
    return figure


def principal_plane(hidden: Tensor, labels: Tensor) -> Tensor:
    """Coordinates in the first two principal components, A on the right: `(n, h)` to `(n, 2)`."""
    centred = hidden - hidden.mean(0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    plane: Tensor = centred @ directions[:2].T
    if plane[labels, 0].mean() < plane[~labels, 0].mean():
        plane[:, 0] *= -1
    return plane


def charge_by_value(root: Path, keys: Sequence[RunKey]) -> Figure:
    """The charge that each model trained with atom modeling gives to a sub-unit of value x."""
    values = torch.linspace(-3, 3, 301)
    figure = Figure(figsize=(5.8, 4), layout="constrained")
    axes = figure.subplots()
    behind = axes.twinx()  # the two distributions that sub-units are drawn from, faintly
    behind.set_zorder(axes.get_zorder() - 1)
    axes.patch.set_visible(False)
    for name, centre in (("A", mixtures.MEAN), ("B", -mixtures.MEAN)):
        density = (-((values - centre) ** 2) / (2 * mixtures.DEVIATION**2)).exp()
        behind.fill_between(values.numpy(), density.numpy(), color=CLASSES[name], alpha=0.16, lw=0)
        behind.text(centre, 1.04, name, color=CLASSES[name], ha="center", weight="bold", size=13)
    behind.set_ylim(0, 2.4)
    behind.set_axis_off()
    for key in keys:
        model = trained_model(key, root)
        with atomsep.attach(model, "embed") as attachment, torch.no_grad():
            model(values.unsqueeze(1).expand(-1, mixtures.SUB_UNITS))
            charge = attachment.importance[:, 0]
        [line] = axes.plot(values.numpy(), charge.numpy(), color=GREEN, lw=1.6, alpha=0.75)
    line.set_label(f"atom modeling (n = {len(keys)})")  # one entry for all of them
    axes.axhline(0, color=INK, lw=0.6)
    axes.set(xlim=(-3, 3), ylim=(-1.08, 1.08), xlabel="value x of the sub-unit", ylabel="charge q")
    axes.set_yticks([-1, 0, 1], ["−1\nelectron", "0\nneutron", "+1\nproton"])
    axes.set_title("Charge against the sub-unit's value")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16))
    return figure


def energy_by_distance() -> Figure:
    """The paper's figure 2: the energy of a pair for several k, with d* of Theorem 2 marked."""
    distances = torch.logspace(-1.3, 1.7, 400, dtype=torch.float64)
    figure = Figure(figsize=(6.2, 4.2), layout="constrained")
    axes = figure.subplots()
    for k, colour in SIMILARITIES.items():
        pairs, unit = pair_at(k, distances)
        energy = pair_energy(pairs, softening=0, scale="sum")[0, 1:] / unit
        axes.plot(distances.numpy(), energy.numpy(), color=colour, lw=2, label=f"k = {k:g}")
        best = equilibrium_distance(pairs)[0, 1:2]
        if best.isfinite():
            pairs, unit = pair_at(k, best)
            lowest = pair_energy(pairs, softening=0, scale="sum")[0, 1] / unit
            axes.plot(best, lowest.view(1), "o", ms=7, color=colour, mec="white", zorder=4)
    axes.plot([], [], "o", ms=7, color=INK, label="d*, least energy")
    axes.axhline(0, color=INK, lw=0.6)
    axes.set(xscale="log", xlim=(0.05, 50), ylim=(-1.6, 3))
    axes.set_xticks([0.1, 1, 10], ["0.1", "1", "10"])
    axes.set(xlabel="atomic distance, in mean radii", ylabel="energy, in c / mean radius")
    axes.set_title("Energy of a pair against its distance")
    axes.legend(loc="upper right", title="k = |c*| / c")
    return figure


def pair_at(k: float, distances: Tensor) -> tuple[Statistics, Tensor]:
    """One atom at the origin, and its partner at each distance; all radii are 1.

    The first atom has P = 1 and G = g. For k > 1 its partner has the two swapped, for k <= 1 the
    same, so that k = (1 + g²)/(2g) or its inverse.

    Returns:
        The atoms, with the first one in front, and c, the charge products of like sign.
    """
    steep = max(k, 1 / k)
    minor = steep - (steep**2 - 1) ** 0.5
    ones = torch.ones(len(distances) + 1, dtype=distances.dtype)
    major, lesser = ones.clone(), ones * minor
    if k > 1:
        major[1:], lesser[1:] = minor, 1
    position = nn.functional.pad(distances, (1, 0)).unsqueeze(1)
    net, square = major - lesser, major**2 + lesser**2
    pairs = Statistics(Statistics.pack(major, lesser, net, square, ones, position), 2 * ones)
    return pairs, major[0] * major[1] + lesser[0] * lesser[1]
