"""The figures show what the formulas, the models and the files of runs say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from hand_made_runs import CLASSES, image_atoms, write_run
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from tiny_runs import run

import atomsep.report.style as looks
from atomsep.cli import reporting
from atomsep.experiments.atoms_file import Atoms, Token, write_atoms
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.randomness import generator
from atomsep.experiments.registry import EXPERIMENTS, run_key
from atomsep.experiments.synthetic.experiment import SYNTHETIC
from atomsep.experiments.synthetic.mixtures import MixtureClassifier, draw
from atomsep.functional import equilibrium_distance, pair_energy
from atomsep.importance.colours import css
from atomsep.importance.words import Word
from atomsep.report.boxes import boxes_by_method
from atomsep.report.charges import charge_by_value, sentence_figure
from atomsep.report.energy import energy_by_distance, pair_at
from atomsep.report.figures import draw_figures, write_figures
from atomsep.report.groups import Row
from atomsep.report.latent import latent_space, project, trained_model, untrained_model
from atomsep.report.parts import find_runs
from atomsep.report.spread import distances_over_training
from atomsep.report.style import COLUMN, PAGE, STYLE, label_of


@pytest.fixture(autouse=True)
def style() -> Iterator[None]:
    with mpl.rc_context(STYLE):
        yield


@pytest.mark.parametrize("k", [0.5, 1.0, 1.5, 4.0])
def test_pairs_have_the_similarity_asked_for(k: float) -> None:
    distances = torch.tensor([0.3, 2.0], dtype=torch.float64)
    pairs, unit = pair_at(k, distances)
    energy = pair_energy(pairs, softening=0, scale="sum")[0, 1:] / unit
    torch.testing.assert_close(energy, 1 / distances - k / (distances + 1))
    expected = 1 / (k**0.5 - 1) if k > 1 else float("inf")
    assert equilibrium_distance(pairs)[0, 1].item() == pytest.approx(expected)


def test_marked_distance_is_where_the_curve_is_lowest() -> None:
    axes = energy_by_distance().axes[0]
    curves = [line for line in axes.lines if len(line.get_xdata()) > 10]
    marks = [line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata())]
    assert len(marks) == 3, "one for each k above 1"
    for mark in marks:
        curve = next(line for line in curves if line.get_color() == mark.get_color())
        lowest = min(curve.get_ydata())
        assert float(mark.get_ydata()[0]) == pytest.approx(lowest, abs=1e-4)


def clusters() -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(200) % 2 == 0
    hidden = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    hidden[:, 4] -= 20 * labels
    return hidden, labels


def test_principal_components_keep_the_largest_variance_and_put_a_right() -> None:
    hidden, labels = clusters()
    plane = project(hidden, labels, "pca")
    assert plane[labels, 0].min() > plane[~labels, 0].max()
    values = torch.linalg.eigvalsh(torch.cov(hidden.T)).flip(0)[:2]
    torch.testing.assert_close(plane.var(0), values, rtol=1e-4, atol=0)


def test_tsne_keeps_neighbours() -> None:
    hidden, labels = clusters()
    plane = project(hidden, labels, "tsne")
    nearest = torch.cdist(plane, plane).fill_diagonal_(float("inf")).argmin(1)
    assert (labels[nearest] == labels).all()
    assert plane[labels, 0].mean() > plane[~labels, 0].mean()


def row(method: str, **values: float) -> Row:
    seeds = {int(name.removeprefix("seed_")): value for name, value in values.items()}
    return Row(method, method.title(), {}, [], seeds, {}, ())


def test_every_result_is_a_point() -> None:
    rows = [
        row("plain", seed_0=90, seed_1=91),
        row("simclr", seed_0=92),
        row("atom", seed_0=95, seed_1=94),
    ]
    axes = boxes_by_method(rows, "accuracy, %", 96.0).axes[0]
    points = [float(x) for group in axes.collections for xy in group.get_offsets() for x in xy]
    assert points == pytest.approx([0, 90, 0, 91, 1, 92, 2, 95, 2, 94])
    assert [label.get_text() for label in axes.get_xticklabels()][1] == "SimCLR"
    assert axes.get_ylabel() == "accuracy, %"


def test_boxes_in_percent_end_at_a_hundred() -> None:
    rows = [row("plain", seed_0=99, seed_1=100), row("atom", seed_0=100)]
    for label, beyond in (("MCC, %", False), ("FID", True)):
        assert (boxes_by_method(rows, label).axes[0].get_ylim()[1] > 100) == beyond


def test_labels_come_from_the_methods() -> None:
    names = ("plain", "hinge-1", "rank-h", "atom", "atom-no-constraints", "gone")
    assert {name: label_of(name) for name in names} == {
        "plain": "cross-\nentropy",
        "hinge-1": "Hinge\n1-norm",
        "rank-h": "Rank-H",
        "atom": "atom\nmodeling",
        "atom-no-constraints": "without\nboth",
        "gone": "gone",
    }
    assert label_of("plain", "DCGAN") == "DCGAN"


def known_mixture() -> MixtureClassifier:
    model = MixtureClassifier().eval()
    torch.nn.init.constant_(model.embed.weight, 2.0)
    torch.nn.init.constant_(model.embed.bias, -1.0)
    return model


def test_the_charge_of_a_known_model_is_drawn() -> None:
    axes = charge_by_value([known_mixture()]).axes[0]
    line = axes.lines[0]
    np.testing.assert_allclose(line.get_ydata(), np.tanh(line.get_xdata() - 0.5), atol=1e-6)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("value x of the sub-unit", "charge q")


def test_every_sample_is_in_its_panel() -> None:
    models = {"one": known_mixture(), "two": MixtureClassifier()}
    figure = latent_space(models, seed=0)
    for axes, title in zip(figure.axes, models, strict=True):
        assert axes.get_title(loc="left") == title
        assert sum(len(each.get_offsets()) for each in axes.collections) == 600


def test_shares_of_distances_are_those_given() -> None:
    plain = {"start": np.full(10, 1.0), "half": np.full(10, 1.0), "end": np.full(10, 2.0)}
    atom = {"start": np.full(10, 1.0), "end": np.array([3.0] * 5 + [6.0] * 5)}
    figure = distances_over_training({"plain": plain, "atom": atom})
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "cross-entropy",
        "atom modeling",
    ]
    for axes, given in zip(figure.axes, (plain, atom), strict=True):
        assert [patch.get_label() for patch in axes.patches] == list(given)
        for patch, distances in zip(axes.patches, given.values(), strict=True):
            shares, edges, _ = patch.get_data()
            assert shares.sum() == 100
            for value in np.unique(distances):
                step = min(np.searchsorted(edges, value, side="right") - 1, len(shares) - 1)
                assert shares[step] == 100 * (distances == value).mean()
    assert figure.axes[0].get_ylabel() == "pairs of samples, %"


def test_words_stand_on_their_colours_in_the_figure() -> None:
    words = [Word("[CLS]", 0.0, 0, 0, special=True), Word("$cat$", 1.0, 0, 5), Word("a", -1, 6, 7)]
    above, below = sentence_figure([words]).axes
    texts = [text for text in above.texts if text.get_text()]
    assert [text.get_text() for text in texts] == ["[CLS]", "$cat$", "a"]
    assert [text.get_style() for text in texts] == ["italic", "normal", "normal"]
    colours = [mpl.colors.to_hex(text.get_bbox_patch().get_facecolor()) for text in texts]
    assert colours == [css(0), css(1), css(-1)]
    heights = [bar.get_height() for bar in below.patches]
    assert (heights[0], heights[-1], sum(heights)) == (50, 50, 100), "without the special token"
    labels = below.get_ylabel(), below.child_axes[0].get_xlabel()
    assert labels == ("words, %", "charge q of a word")


def test_control_characters_are_written_out_in_the_figure() -> None:
    above, _ = sentence_figure([[Word("a\x1b", 0.0, 0, 2)]]).axes
    assert [text.get_text() for text in above.texts] == [r"a\x1b"]


def test_the_classes_of_the_mixtures_have_no_colour_of_charges() -> None:
    assert not {css(1.0), css(-1.0)} & {*looks.CLASSES.values()}


def test_models_are_those_of_the_runs(tmp_path: Path) -> None:
    result, on_disk = run(SYNTHETIC, "atom", tmp_path, seed=3)
    samples = draw(result["settings"]["test_samples"], generator(3, "test samples"))
    trained = trained_model(on_disk.folder, result["settings"])
    for model, right in ((trained, True), (untrained_model(3, result["settings"]), False)):
        with torch.no_grad():
            found = (model(samples.values).argmax(1) == samples.labels).double().mean().item()
        assert (found == pytest.approx(result["metrics"]["accuracy"], abs=1e-6)) == right


def leave_run(root: Path, name: str, method: str, metric: str, value: float, atoms: Atoms) -> None:
    """A finished run, made by hand."""
    key = run_key(EXPERIMENTS[name], method, 1, tiny=True)
    folder = key.folder(root)
    folder.mkdir(parents=True)
    result = {**key.record(), "metrics": {metric: value}, "classes": ["cat", "dog"]}
    (folder / "result.json").write_text(json.dumps(result))
    write_atoms(folder, atoms)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for method in ("plain", "atom", "atom-no-constraints"):
        run(SYNTHETIC, method, root, seed=1)
    bytes_ = np.full((3, 3, 16, 16), 255, np.uint8)
    charges = np.linspace(-1, 1, 3 * 64).reshape(3, 8, 8)
    labels = {"labels": np.array([0, 1, 1]), "predictions": np.array([0, 1, 0])}
    leave_run(root, "flowers", "atom", "top1", 0.5, Atoms(charges, images=bytes_, **labels))
    leave_run(root, "mnist-gan", "atom", "fid", 60.0, Atoms(charges, images=bytes_[:, :1]))
    tokens = [Token("[CLS]", -1, 0, 0), Token("a", 0, 0, 1), Token("cat", 1, 2, 5)]
    text: dict[str, Any] = {"sentences": ["a cat"], "tokens": [tokens]}
    leave_run(root, "cola", "atom", "mcc", 0.4, Atoms(np.array([[0.0, -1.0, 1.0, 0.0]]), **text))
    return root


NAMES = {
    "energy": COLUMN,
    "synthetic-tiny-accuracy-methods": COLUMN,
    "synthetic-tiny-accuracy-ablation": COLUMN,
    "synthetic-tiny-latent": PAGE * 3 / 4,
    "synthetic-tiny-charge": COLUMN,
    "synthetic-tiny-distances": PAGE,
    "mnist-gan-tiny-fid-methods": COLUMN,
    "mnist-gan-tiny-maps": PAGE,
    "flowers-tiny-top1-methods": COLUMN,
    "flowers-tiny-maps": PAGE,
    "cola-tiny-mcc-methods": COLUMN,
    "cola-tiny-words": PAGE,
}
"""All figures of the runs, and their widths in inches."""


AXES = {
    "energy": {"atomic distance d, in mean radii", "energy, in c / mean radius"},
    "synthetic-tiny-accuracy-methods": {"accuracy, %"},
    "synthetic-tiny-accuracy-ablation": {"accuracy, %"},
    "synthetic-tiny-latent": {
        *("first component, in units of the latent", "second component, in units of the latent"),
    },
    "synthetic-tiny-charge": {"value x of the sub-unit", "charge q"},
    "synthetic-tiny-distances": {
        *("atomic distance, in units of the latent", "pairs of samples, %"),
    },
    "mnist-gan-tiny-fid-methods": {"FID"},
    "mnist-gan-tiny-maps": {"charge q of a token", "tokens, %"},
    "flowers-tiny-top1-methods": {"top-1 accuracy, %"},
    "flowers-tiny-maps": {"charge q of a token", "tokens, %"},
    "cola-tiny-mcc-methods": {"MCC, %"},
    "cola-tiny-words": {"charge q of a word", "words, %"},
}
"""The labels of their axes, with units; an axis of methods has their names."""


def texts_of(figure: Figure) -> list[Text]:
    return [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]


def test_every_figure_can_be_read_at_the_width_of_a_column(runs: Path) -> None:
    drawings = {drawing.name: drawing for drawing in draw_figures(find_runs(runs))}
    assert {name: each.figure.get_figwidth() for name, each in drawings.items()} == NAMES
    for name, drawing in drawings.items():
        assert min(text.get_fontsize() for text in texts_of(drawing.figure)) >= 6, name
        assert AXES[name] <= {text.get_text() for text in texts_of(drawing.figure)}, name
        if name != "energy":
            assert "seed 1" in drawing.caption
            assert "tiny form" in drawing.caption
    maps = drawings["flowers-tiny-maps"].figure
    assert {"cat", "dog", "dog (predicted: cat)"} <= {text.get_text() for text in texts_of(maps)}
    generated = drawings["mnist-gan-tiny-maps"].figure
    for figure, title in (
        (maps, "input | charges | overlay"),
        (generated, "image | charges | overlay"),
    ):
        assert figure.axes[0].get_title(loc="left") == title
    assert "In a DCGAN, a checkerboard" in drawings["mnist-gan-tiny-maps"].caption
    assert "checkerboard" not in drawings["flowers-tiny-maps"].caption


def test_one_command_writes_all_of_them(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reporting.figures(runs, tmp_path / "a")
    assert "12 figures as PNG and PDF" in " ".join(capsys.readouterr().out.split())
    files = {path.name: path for path in (tmp_path / "a").iterdir()}
    assert set(files) == {f"{name}.{end}" for name in NAMES for end in ("png", "pdf")} | {
        "captions.md"
    }
    page = files["captions.md"].read_text()
    for name, width in NAMES.items():
        assert f"![{name}]({name}.png)" in page
        assert files[f"{name}.pdf"].read_bytes().startswith(b"%PDF")
        with Image.open(files[f"{name}.png"]) as image:
            assert image.width == pytest.approx(300 * width, abs=1)


def test_the_same_runs_give_the_same_files(runs: Path, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_figures(runs / "cola-tiny", tmp_path / folder)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_refusals(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="'umap'"):
        write_figures(runs, tmp_path, "umap")
    with pytest.raises(ExperimentError, match="there is no finished run"):
        write_figures(tmp_path, tmp_path)


def test_tokens_without_a_place_in_the_image_are_shown_as_rows(tmp_path: Path) -> None:
    atoms = replace(image_atoms(4), charges=np.linspace(-1, 1, 28).reshape(4, 7))
    write_run(tmp_path, "flowers", "atom", 0, 0.5, atoms=atoms, classes=CLASSES)
    drawings = {drawing.name: drawing for drawing in draw_figures(find_runs(tmp_path))}
    maps = drawings["flowers-maps"]
    [rows] = maps.figure.axes[0].images
    np.testing.assert_allclose(rows.get_array(), atoms.charges, rtol=1e-3)
    assert rows.get_clim() == (-1, 1)
    assert "There is no map: " in maps.caption
    assert "7 tokens do not form a grid" in maps.caption
