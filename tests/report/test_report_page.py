"""The page of a report as text: what it holds, and that data cannot become markup."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hand_made_runs import CLASSES, EVIL, SENTENCES, image_atoms, write_run, write_runs
from PIL import Image

from atomsep.experiments.atoms_file import Atoms
from atomsep.experiments.errors import ExperimentError
from atomsep.report.charts import (
    curve_chart,
    differences_chart,
    round_ticks,
    scale,
    seeds_chart,
)
from atomsep.report.curves import MOST_POINTS, Point, average_curves, read_lines
from atomsep.report.page import write_report
from atomsep.report.parts import divide, find_runs
from atomsep.report.samples import MOST_SAMPLES


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_runs(root)
    return root


@pytest.fixture(scope="module")
def page(runs: Path) -> str:
    return written(runs)


def written(runs: Path) -> str:
    write_report(runs, runs / "report.html")
    return (runs / "report.html").read_text(encoding="utf-8")


class Outline(HTMLParser):
    """Tags, attributes and text of a page; what is inside scripts is kept apart."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text, self.scripts, self.inside = "", [], ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts.append(data)
        elif self.inside != "style":
            self.text += data


def samples(page: str) -> Any:
    return json.loads(Outline(page).scripts[0])


def test_the_verdict_is_said_in_words(page: str) -> None:
    text = Outline(page).text
    assert "Flowers: top-1 accuracy, %, against Cross-Entropy" in text
    assert "Atom Modeling better +2.80 (95 % interval +2.30 to +3.30) over 3 paired seeds" in text
    assert "Atom Modeling not tested +10.00 over 2 paired seeds; a test needs at least 3." in text
    assert "Tiny form on embedded data" in text
    assert "Gaussian mixtures · Flowers · CoLA" in text, "titles may hold commas"
    assert "90.00 ± 0.00 (tie)" in text


def test_runs_of_the_tiny_form_are_neither_better_nor_worse(tmp_path: Path) -> None:
    for seed, noise in enumerate((0.001, 0.0, 0.002)):
        write_run(tmp_path, "synthetic", "plain", seed, 0.5 + noise, tiny=True)
        write_run(tmp_path, "synthetic", "atom", seed, 0.9 - noise, tiny=True)
    page = written(tmp_path)
    assert "verdict better" not in page
    assert page.count("verdict tiny") == 3, "in words, and the text and marks of the chart"
    assert "Atom Modeling tiny form +39.80 (95 % interval" in Outline(page).text


def test_curves_say_which_numbers_are_losses(page: str) -> None:
    text = Outline(page).text
    assert "loss of the method" in text
    assert "cross-entropy loss" in text


def test_the_same_runs_give_the_same_page(runs: Path, page: str) -> None:
    assert written(runs) == page


def test_settings_and_versions_are_there(page: str) -> None:
    text = Outline(page).text
    for expected in ("learning_rate", "augmentation", "torch 2.9, python 3.11", "0123abc"):
        assert expected in text


def test_text_from_the_data_stays_text(page: str) -> None:
    found = Outline(page)
    assert found.tags.count("script") == 2, "the samples and the page's own"
    assert "b" not in found.tags
    assert EVIL not in page
    data = samples(page)
    assert data["runs"][1]["samples"][1]["label"] == CLASSES[1]
    tokens = data["runs"][2]["samples"][1]["tokens"]
    assert "".join(before + text for before, text, special in tokens if not special) == SENTENCES[1]


def test_foreign_names_are_escaped_everywhere(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "settings": {f"{EVIL}a": f"{EVIL}b", "weight": 1.0, "method": {EVIL: EVIL}},
        "metrics": {EVIL: 0.5},
        "versions": {EVIL: EVIL},
        "commit": EVIL,
        "experiment": "unknown",
    }
    folder = write_run(tmp_path, "flowers", "atom", 0, 0.5, **changes)
    line = {"step": 1, EVIL: 1.0, "metrics": {EVIL: 1.0}}
    (folder / "metrics.jsonl").write_text(json.dumps(line))
    text = written(tmp_path)
    assert EVIL not in text
    assert Outline(text).text.count(EVIL) >= 6
    assert Outline(text).tags.count("script") == 2


def test_nothing_points_outside(page: str) -> None:
    for name, value in Outline(page).attributes:
        if name in ("src", "href", "action", "srcset", "data", "poster"):
            assert value.startswith(("#", "data:image/png;base64,")), value
    style = page.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_the_samples_are_those_of_the_run(page: str) -> None:
    data, atoms = samples(page), image_atoms()
    run = data["runs"][1]
    assert run["title"] == "Flowers: Atom Modeling, seed 0"
    assert run["grid"] == [3, 5]
    charges = np.frombuffer(base64.b64decode(run["charges"]), "<i2").reshape(6, 3, 5)
    assert np.abs(charges / data["steps"] - atoms.charges).max() < 1e-3, "float16 in the file"
    for place, sample in enumerate(run["samples"]):
        assert sample["label"] == CLASSES[atoms.labels[place]]
        assert sample["prediction"] == CLASSES[atoms.predictions[place]]


def test_a_run_without_room_leaves_it_to_those_that_fit(tmp_path: Path) -> None:
    for experiment, count in (("pets", 400), ("flowers", 300), ("cola", 100)):
        write_run(tmp_path, experiment, "atom", 0, 0.5, atoms=image_atoms(count))
    page = written(tmp_path)
    counts = sorted(len(run["samples"]) for run in samples(page)["runs"])
    assert sum(counts) <= MOST_SAMPLES
    assert counts in ([100, 300], [100, 400]), "cola comes last, and fits"
    assert "1 more run is not in the explorer" in page


def test_runs_without_samples_or_curves_have_a_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "flowers", "plain", 0, 0.5)
    (folder / "metrics.jsonl").write_text("not json\n")
    text = Outline(written(tmp_path)).text
    assert "No run has kept samples" in text
    assert "The runs recorded no training curves" in text
    assert "All runs are plain" in text


def test_tokens_without_a_place_have_a_number(tmp_path: Path) -> None:
    """Such as those of a layer that has images, but no grid."""
    atoms = image_atoms(2)
    flat = replace(atoms, charges=atoms.charges.reshape(2, 15))
    write_run(tmp_path, "flowers", "atom", 0, 0.5, atoms=flat, classes=3, files=None)
    [run] = samples(written(tmp_path))["runs"]
    assert run["grid"] == [1, 15]
    assert [text for _, text, _ in run["samples"][0]["tokens"]] == [str(n) for n in range(1, 16)]
    assert run["samples"][1]["label"] == "1", "a class without a name has its number"


def test_patches_in_a_row_are_a_map_of_their_image(tmp_path: Path) -> None:
    """As vision transformers give them: `(M, N)`."""
    charges = np.linspace(-1, 1, 32).reshape(2, 16)
    atoms = Atoms(charges, images=np.zeros((2, 3, 32, 32), np.uint8))
    write_run(tmp_path, "flowers", "atom", 0, 0.5, atoms=atoms)
    [run] = samples(written(tmp_path))["runs"]
    assert run["grid"] == [4, 4]
    for sample in run["samples"]:
        assert sample["image"].startswith("data:image/png;base64,")
        assert sample["tokens"] is None
    found = np.frombuffer(base64.b64decode(run["charges"]), "<i2").reshape(2, 16) / 10_000
    assert np.abs(found - charges).max() < 1e-3


def test_pictures_come_from_the_runs_folder_alone(tmp_path: Path) -> None:
    files = ["samples.png", "../../secret.png", "notes.png", "missing.png", 3, "maps.png"]
    folder = write_run(tmp_path, "mnist-gan", "plain", 0, 50.0, files=files)
    Image.new("L", (3, 2), 7).save(folder / "samples.png")
    Image.new("L", (3, 2), 9).save(folder.parents[1] / "secret.png")
    (folder / "notes.png").write_text("not a picture")
    Image.new("L", (1080, 40), 7).save(folder / "maps.png")
    page = written(tmp_path)
    own, wide = (
        base64.b64encode((folder / name).read_bytes()).decode() for name in (files[0], files[5])
    )
    assert re.findall('<img src="data:image/png;base64,([^"]*)"', page) == [own, wide]
    sizes = 'alt="Picture that the run wrote: {}.png" width="{}" height="{}"'
    assert sizes.format("samples", 3, 2) in page
    assert sizes.format("maps", 1080, 40) in page
    [whole] = re.findall('<figure class="whole">.*?</figure>', page)
    assert wide in whole
    assert own not in whole


def test_without_runs_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="there is no finished run under"):
        written(tmp_path)
    with pytest.raises(ExperimentError, match="there is no folder"):
        write_report(tmp_path / "nowhere", tmp_path / "report.html")


def test_folders_above_the_page_are_created(runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "of" / "today" / "report.html"
    write_report(runs, page)
    assert page.is_file()
    with pytest.raises(ExperimentError, match=r"report.html is a file.* repeat the command$"):
        write_report(runs, page / "report.html")


def test_runs_of_a_search_are_left_out(tmp_path: Path) -> None:
    write_run(tmp_path, "flowers", "plain", 0, 0.5, validation=True)
    with pytest.raises(ExperimentError, match="there is no finished run under"):
        written(tmp_path)


def test_curves_are_means_over_the_seeds_that_have_them(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, "flowers", "plain", seed, 0.5) for seed in (0, 2)]
    curves = average_curves(map(read_lines, folders))
    assert list(curves) == ["top1", "cross-entropy"]
    assert curves["cross-entropy"][0] == Point(5, pytest.approx(3.1), 3.0, pytest.approx(3.2))
    assert curves["top1"][-1] == Point(50, 0.5, 0.5, 0.5)
    started = [{"step": 1, "share": 3.0}, {"step": 5, "loss": 2.0, "share": 1.0}]
    curves = average_curves([started])
    assert list(curves) == ["loss", "share"], "in the order of the whole lines"
    assert [point.step for point in curves["share"]] == [1, 5]
    lines = [{"step": step, "loss": float(step)} for step in range(1000)]
    [long] = average_curves([lines]).values()
    assert len(long) == MOST_POINTS
    assert long[-1].mean == 999


def test_no_axis_in_percent_goes_beyond_a_hundred() -> None:
    points = [Point(step, 100.0, 100.0, 100.0) for step in (1, 2)]
    for label, most in (("accuracy, %", 100), ("FID", 104)):
        texts = re.findall(r'class="tick end">([\d.]+)<', curve_chart(label, {0: points}))
        assert max(map(float, texts)) == most


def test_numbers_beside_a_curve_have_room() -> None:
    """At 11 px, a digit of a wide font such as DejaVu Sans is 7 px wide."""
    for least in (0.1, 1e-4, 12345.678, -98765.4321):
        points = [Point(step, least + step / 1e4, least, least + 1e-4) for step in range(2)]
        chart = curve_chart("loss", {0: points})
        found = re.findall(r'<text x="([\d.]+)" [^>]*class="tick end">([^<]+)<', chart)
        numbers = [(float(x), text) for x, text in found if text != "steps"]
        assert numbers
        assert all(x >= 7 * len(text) for x, text in numbers), numbers


def test_the_line_of_the_plain_mean_does_not_cross_labels(runs: Path) -> None:
    [part] = [part for part in divide(find_runs(runs)) if part.main.experiment == "flowers"]
    for chart in (seeds_chart(part.main), differences_chart(part.main)):
        labels = [float(y) for y in re.findall(r'y="([\d.]+)" class="label', chart)]
        lines = re.findall(r'y1="([\d.]+)" y2="([\d.]+)" class="plain"', chart)
        assert labels
        assert lines
        for label in labels:  # letters are 9 px high above their line, and reach 3 px below it
            assert all(float(y2) <= label - 9 or float(y1) >= label + 3 for y1, y2 in lines)


def test_charts_take_any_numbers() -> None:
    assert round_ticks(0, 7) == [0, 2, 4, 6]
    assert scale([1e-3, 1e3], 0, 1).logarithmic
    assert not scale([0.0, 1e3], 0, 1).logarithmic
    for values in ([0.0], [1e-30, 1e30], [-5.0, -5.0], [1e300, 1.0], [0.0, 1e-300]):
        points = [Point(step, value, value, value) for step, value in enumerate(values)]
        chart = curve_chart("loss", {0: points})
        numbers = [float(n) for n in re.findall(r"-?[\d.]+(?:e[+-]?\d+)?", chart.split("<g")[1])]
        assert all(-1 <= number <= 1000 for number in numbers), values
