"""Tables and the figure of faithfulness say what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from scipy import stats

from atomsep.experiments import maps
from atomsep.experiments.faithfulness import Judged
from atomsep.experiments.registry import find_experiment
from atomsep.report.faithful import (
    Point,
    Row,
    conditions,
    over_seeds,
    read_csv,
    rows_of,
    table,
    write_csv,
)
from atomsep.report.faithful_figure import COLOURS, faithful_figure
from atomsep.report.faithful_page import CAPTION, tables, write_results

AREAS = torch.tensor([0.2, 0.4, 0.3])
RANDOM = torch.tensor([0.5, 0.6, 0.4])


def measured(seed: int = 0) -> tuple[list[Row], list[Point]]:
    run: Any = SimpleNamespace(
        experiment="pets",
        method="atom",
        seed=seed,
        settings=replace(find_experiment("pets").settings, weight=0.2, epochs=6, image=64),
        result={"tiny": False},
    )
    values = {
        "deletion": {"positive charge": AREAS + seed / 100, "random order": RANDOM},
        "insertion": {"positive charge": RANDOM + 0.001, "random order": RANDOM},
        "auc": {"positive charge": torch.tensor([0.7, 0.9, float("nan")]), "random order": RANDOM},
    }
    curve = torch.tensor([[1.0, 0.5, 0.0], [0.8, 0.6, 0.1], [0.9, 0.1, 0.2]])
    curves = {kind: {"positive charge": curve, "random order": curve**2} for kind in values}
    curves.pop("auc")
    return rows_of(run, Judged(torch.tensor([0.0, 0.5, 1.0]), values, curves))


def test_rows_have_means_and_paired_differences_over_images() -> None:
    rows, points = measured()
    first = rows[0]
    assert (first.map, first.measure, first.images) == ("positive charge", "deletion", 3)
    assert first.settings == "epochs=6 image=64"
    assert first.mean == pytest.approx(0.3)
    assert first.half == pytest.approx(1.96 * stats.sem(AREAS.numpy()), abs=1e-5)
    assert first.gain == pytest.approx(-0.2)
    assert first.gain_half == pytest.approx(1.96 * stats.sem((AREAS - RANDOM).numpy()), abs=1e-5)
    auc = next(row for row in rows if row.measure == "auc")
    assert (auc.images, auc.mean) == (2, pytest.approx(0.8))  # one image has no outline
    assert [(point.share, point.mean) for point in points[:3]] == [
        (0.0, pytest.approx(0.9)),
        (0.5, pytest.approx(0.4)),
        (1.0, pytest.approx(0.1)),
    ]


def test_files_keep_every_number(tmp_path: Path) -> None:
    for rows in measured():
        write_csv(tmp_path / "rows.csv", rows)
        assert read_csv(tmp_path / "rows.csv", type(rows[0])) == rows


def test_the_interval_over_seeds_is_students() -> None:
    values = [0.31, 0.35, 0.30, 0.42]
    found = over_seeds(values, [9.0] * 4)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high))
    assert over_seeds([0.3], [0.02]).half == 0.02


def test_bold_is_better_than_a_random_order_beyond_doubt() -> None:
    rows, _ = measured()
    lines = table(rows, conditions(rows)[0])
    assert lines[0] == ["map", "deletion ↓", "insertion ↑", "AUC ↑"]
    assert lines[1][:2] == ["positive charge", "**0.300 ± 0.113**"]
    assert lines[1][2].startswith("**0.501")  # by little, but on every image
    assert lines[2][1] == "0.500 ± 0.113"
    worse = [replace(row, gain=-row.gain) for row in rows]
    assert not any("**" in cell for cell in table(worse, conditions(rows)[0])[1][:3])
    three = [row for seed in range(3) for row in measured(seed)[0]]
    assert table(three, conditions(three)[0])[1][1] == "**0.310 ± 0.025**"
    # A sign that differs between seeds is no finding, whatever the images of each say.
    mixed = [replace(r, gain=r.gain if r.seed else -r.gain) for r in three]
    assert "**" not in table(mixed, conditions(mixed)[0])[1][1]
    assert "Pets, atom, weight 0.2, 3 seeds** (3 images per run; `epochs=6 image=64`)" in tables(
        three
    )


def test_bars_of_all_maps_stand_beside_each_other() -> None:
    """Eight bands on top of each other are grey, as soon as the intervals are wide."""
    names, shares = list(COLOURS), [step / 16 for step in range(17)]
    about = "pets-tiny", "atom", 0.2, "", 0
    points = [Point(*about, name, "deletion", s, 0.5, 0.1) for name in names for s in shares]
    rows = [Row(*about, name, "deletion", 9, 0.5, 0.1, 0.0, 0.1) for name in names]
    axes = faithful_figure(rows, points).axes[0]
    places = [segment[0, 0] for bars in axes.collections for segment in bars.get_segments()]
    assert len(places) >= 2 * len(names) - 1
    assert len(set(places)) == len(places)
    looks = {
        (line.get_color(), line.get_linestyle())
        for line in axes.lines
        if line.get_label()[0] != "_"
    }
    assert len(looks) == len(names)


def test_the_caption_says_what_the_curves_leave_out() -> None:
    said = CAPTION.partition("Left out of the curves: ")[2]
    for name in (maps.SIGN, maps.CENTRE, "Grad-CAM at the charges' layer"):
        assert name not in COLOURS
        assert name in said


def test_the_figure_draws_the_curves(tmp_path: Path) -> None:
    rows, points = measured()
    figure = faithful_figure(rows, points)
    deletion, _, truth = figure.axes[:3]
    line = next(line for line in deletion.lines if line.get_label() == "positive charge")
    assert np.allclose(line.get_xydata(), [[0, 0.9], [50, 0.4], [100, 0.1]])
    [(low, high), *_] = [bar.get_segments()[0][:, 1] for bar in deletion.collections]
    half = 1.96 * stats.sem([0.5, 0.6, 0.1])
    assert (low, high) == pytest.approx((0.4 - half, 0.4 + half), abs=1e-4)
    insertion = figure.axes[1]
    assert deletion.get_ylim() == insertion.get_ylim(), "so that the two can be compared"
    least, most = insertion.get_ylim()
    ends = [y for axes in (deletion, insertion) for line in axes.lines for y in line.get_ydata()]
    assert least < min(ends) < max(ends) < most, "all of both is shown"
    assert [label.get_text() for label in truth.get_yticklabels()] == [
        "positive charge",
        "random order",
    ]
    assert truth.lines[0].get_xdata() == pytest.approx([0.8])
    assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text()) >= 6
    write_results(tmp_path / "out", rows, points)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        *("faithful.csv", "faithful_curves.csv", "faithful.md", "faithful.png", "faithful.pdf"),
    }
