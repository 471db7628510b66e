"""Tables of constructed results."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import asdict
from typing import Any

import pytest

from atomsep.experiments.registry import EXPERIMENTS, run_key
from atomsep.experiments.sweeps.comparison import compare
from atomsep.report import paper
from atomsep.report.groups import group_results
from atomsep.report.markup import Cell, Section, Table, escape
from atomsep.report.tables import build_tables

Result = dict[str, Any]


def result(
    experiment: str,
    method: str,
    seed: int,
    metrics: dict[str, float] | float,
    *assignments: str,
    tiny: bool = False,
) -> Result:
    known = EXPERIMENTS[experiment]
    key = run_key(known, method, seed, assignments, tiny=tiny)
    values = metrics if isinstance(metrics, dict) else {known.metric: metrics}
    return {**key.record(), "settings": asdict(key.settings), "metrics": values}


def results(experiment: str, by_method: dict[str, list[float]], *assignments: str) -> list[Result]:
    return [
        result(experiment, method, seed, value, *assignments)
        for method, values in by_method.items()
        for seed, value in enumerate(values)
    ]


FLOWERS = results("flowers", {"atom": [0.58, 0.61, 0.60], "plain": [0.56, 0.57, 0.57]})


def read(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table.csv())))


def test_markdown() -> None:
    main, significance = build_tables(FLOWERS)
    expected = """\
### ResNet-18 on fine-grained images

| method | result | seeds | difference | 95 % interval | p (t) | p (Wilcoxon) | paper | paper's difference |
|---|---|---|---|---|---|---|---|---|
| *Flowers: top-1 accuracy, %* | | | | | | | | |
| Cross-Entropy | 56.67 ± 0.58 | 3 | – | – | – | – | 56.7 | – |
| Atom Modeling | **59.67 ± 1.53** | 3 | +3.00 | +0.52 to +5.48 | **0.035** | 0.250 | 59.1 | +2.40 |
"""  # noqa: E501
    assert main.markdown().startswith(expected)
    assert "| Atom Modeling | **0.035** | **0.035** | 0.250 | 0.250 | **0.020** |" in (
        significance.markdown()
    )


def test_latex() -> None:
    section = Section(
        "A_1: 50 %", ((Cell("a & b"), Cell("−1 ± 2", strong=True)), (Cell("c~d"), Cell("x^2"))), {}
    )
    table = Table("some-name", "100 % {of} #1", ("method", "$"), (section,), ("a_b",))
    assert (
        table.latex()
        == r"""\begin{table}[t]
  \centering
  \caption{100 \% \{of\} \#1}
  \label{tab:some-name}
  \begin{tabular}{lr}
    \toprule
    method & \$ \\
    \midrule
    \multicolumn{2}{l}{\emph{A\_1: 50 \%}} \\
    a \& b & \textbf{$-$1 $\pm$ 2} \\
    c\textasciitilde{}d & x\textasciicircum{}2 \\
    \bottomrule
  \end{tabular}
  \par\smallskip\footnotesize a\_b
\end{table}
"""
    )
    assert escape("a\\b") == r"a\textbackslash{}b"


def test_csv_has_the_numbers() -> None:
    rows = read(build_tables(FLOWERS)[0])
    assert [row["method"] for row in rows] == ["plain", "atom"]
    plain, atom = rows
    assert float(plain["mean"]) == pytest.approx(170 / 3)
    assert plain["difference"] == plain["p_t_holm"] == ""
    values = ({0: 56.0, 1: 57.0, 2: 57.0}, {0: 58.0, 1: 61.0, 2: 60.0})
    expected = compare(*values)
    for name, number in (
        *(("difference", expected.difference), ("low", expected.low), ("high", expected.high)),
        *(("p_t_holm", expected.t), ("p_wilcoxon_holm", expected.wilcoxon)),
        *(("paper", 59.1), ("paper_difference", 2.4), ("seeds", 3), ("weight", 0.2)),
    ):
        assert float(atom[name]) == pytest.approx(number), name


def test_a_cell_cannot_break_a_table() -> None:
    section = Section("s", ((Cell("a|b\nc", {"name": 'say "hi", you\nthere'}),),))
    table = Table("t", "t", ("x",), (section,))
    assert "| a\\|b c |" in table.markdown()
    assert read(table) == [{"name": 'say "hi", you\nthere'}]


def test_families_are_the_papers() -> None:
    some = [r for name in EXPERIMENTS for r in results(name, {"plain": [0.5]})]
    tables = {table.name: table for table in build_tables(some)}
    headings = {name: [s.title for s in table.sections] for name, table in tables.items()}
    assert [title.split(":")[0] for title in headings["text"]] == [
        EXPERIMENTS[name].title for name in ("cola", "poem")
    ]
    assert len(headings["generation"]) == 3
    assert "less is better" in headings["generation"][0]
    placed = {name for family in paper.FAMILIES for name in family.experiments}
    assert placed <= EXPERIMENTS.keys()
    for name in EXPERIMENTS.keys() - placed:
        assert len(headings[name]) == 1
    for (name, metric), figures in paper.RESULTS.items():
        assert metric.removeprefix("ema_") == EXPERIMENTS[name].metric
        assert figures.keys() <= set(EXPERIMENTS[name].methods)


def test_every_experiment_of_the_paper_has_its_rows() -> None:
    """Plain and atom modeling, beside the paper's figures; it has none for the plain mixtures."""
    names = [name for family in paper.FAMILIES for name in family.experiments]
    metrics = {
        name: dict.fromkeys(paper.METRICS.get(name, (EXPERIMENTS[name].metric,)), 0.5)
        for name in names
    }
    metrics["faces-gan"] |= {"ema_fid": 0.5}  # what StyleSwin's authors evaluate
    some = [result(name, each, 0, metrics[name]) for name in names for each in ("plain", "atom")]
    rows = [
        row for table in build_tables(some) if table.name != "significance" for row in read(table)
    ]
    shown = [(row["experiment"], row["method"], row["paper"]) for row in rows]
    assert shown == [
        *(("synthetic", "plain", ""), ("synthetic", "atom", "96.0")),
        *(("mnist-gan", "plain", "88.4"), ("mnist-gan", "atom", "49.0")),
        *(("cifar10-gan", "plain", "110.4"), ("cifar10-gan", "atom", "97.4")),
        *(("faces-gan", "plain", ""), ("faces-gan", "atom", "")),
        *(("faces-gan", "plain", "5.26"), ("faces-gan", "atom", "5.18")),
        *(("pets", "plain", "21.0"), ("pets", "atom", "22.5")),
        *(("flowers", "plain", "56.7"), ("flowers", "atom", "59.1")),
        *(("imagenet", "plain", "74.97"), ("imagenet", "atom", "75.1")),
        *(("imagenet", "plain", "92.17"), ("imagenet", "atom", "92.25")),
        *(("cola", "plain", "60.0"), ("cola", "atom", "61.3")),
        *(("poem", "plain", "60.3"), ("poem", "atom", "62.7")),
    ]


def test_other_frechet_distances_are_not_called_fid() -> None:
    of_fid = [result("mnist-gan", m, 0, {"fid": 50.0, "recall": 0.25}) for m in ("plain", "atom")]
    of_other = [result("mnist-gan", m, 1, {"frechet_digits": 9.0}) for m in ("plain", "atom")]
    [table] = build_tables(of_fid + of_other)
    fid, other = table.sections
    assert fid.title.startswith("MNIST, DCGAN: FID")
    assert "FID" not in other.title
    assert "Fréchet distance over digits features" in other.title
    assert [row["paper"] for row in read(table)] == ["88.4", "49.0", "", ""]
    assert read(table)[0]["recall"] == "0.25"
    assert read(table)[0]["mean"] == "50.0", "not in per cent"


def test_the_averaged_generator_has_a_section_of_its_own() -> None:
    """With its own paired comparison and its own other metrics, from the same runs."""
    some = [
        result(
            *("mnist-gan", method, seed),
            {
                "fid": 50.0 + shift + seed,
                "recall": 0.25,
                "ema_fid": 30.0 - shift,
                "ema_recall": 0.5,
            },
        )
        for method, shift in (("plain", 0), ("atom", 4))
        for seed in (0, 1, 2)
    ]
    table = build_tables(some)[0]
    assert [section.title for section in table.sections] == [
        "MNIST, DCGAN: FID, less is better",
        "MNIST, DCGAN: FID, averaged generator, less is better",
    ]
    rows = read(table)
    assert [float(row["difference"]) for row in rows if row["difference"]] == [4, -4]
    assert [(row["recall"], row["ema_recall"]) for row in rows[1:3]] == [("0.25", ""), ("", "0.5")]
    assert [row["paper"] for row in rows] == ["88.4", "49.0", "", ""]


def test_runs_that_broke_down_are_named_and_count() -> None:
    some = results("mnist-gan", {"plain": [50.0, 52.0, 400.0], "atom": [40.0, 300.0, 500.0]})
    healthy = build_tables(some)[0]
    assert "broke down" not in healthy.columns
    assert "broken_down" not in read(healthy)[0]
    for one in some:
        one["broken_down"] = "fid went up" if max(one["metrics"].values()) > 100 else None
    table = build_tables(some)[0]
    place = table.columns.index("broke down")
    assert [row[place].text for row in table.sections[0].rows] == [
        *("1 of 3: seed 2", "2 of 3: seeds 1, 2")
    ]
    assert [row["broken_down"] for row in read(table)] == ["1", "2"]
    assert [row["mean"] for row in read(table)] == [row["mean"] for row in read(healthy)]
    assert any("Broke down: the discriminator" in note for note in table.notes)
    some[0]["broken_down"], some[1]["broken_down"], some[2]["broken_down"] = None, None, None
    texts = [row[place].text for row in build_tables(some)[0].sections[0].rows]
    assert texts == ["–", "2 of 3: seeds 1, 2"]


def test_imagenet_has_two_metrics_and_two_augmentations() -> None:
    some = [
        result("imagenet", method, 0, {"top1": 0.7, "top5": 0.9}, f"augmentation={augmentation}")
        for augmentation in ("crop-flip", "crop-flip-colour")
        for method in ("plain", "atom")
    ]
    [table] = build_tables(some)
    rows = read(table)
    assert [row["paper"] for row in rows] == [
        *("74.97", "75.1", "92.17", "92.25", "75.02", "75.19", "92.2", "92.35")
    ]
    assert "augmentation=crop-flip-colour" in table.sections[2].title


def test_the_papers_figures_of_imagenet_are_not_shown_for_another_folder() -> None:
    some = [
        result("imagenet", method, 0, {"top1": 0.7, "top5": 0.9}, "folder=imagenette")
        for method in ("plain", "atom")
    ]
    [table] = build_tables(some)
    assert "paper" not in table.columns
    assert any("folder=imagenette" in note for note in table.notes)


def test_tiny_runs_are_marked_and_kept_apart() -> None:
    tiny = [result("flowers", method, 0, 0.5, tiny=True) for method in ("plain", "atom")]
    whole, of_tiny = (t for t in build_tables(FLOWERS + tiny) if "images" in t.name)
    assert "tiny" not in whole.title
    assert "tiny form" in of_tiny.title
    assert of_tiny.name == "images-tiny"
    assert "paper" not in of_tiny.columns, "the paper's figures are of something else"


def test_changed_settings_are_rows_or_sections_of_their_own() -> None:
    changed = results("flowers", {"plain": [0.6, 0.7], "atom": [0.65, 0.8]}, "epochs=3")
    other_weight = results("flowers", {"atom": [0.5, 0.5, 0.5]}, "weight=7")
    table = build_tables(FLOWERS + changed + other_weight)[0]
    own, three = table.sections
    assert own.title.endswith("(the settings of the experiment)")
    assert three.title.endswith("(epochs=3)")
    assert [row[0].text for row in own.rows] == [
        *("Cross-Entropy", "Atom Modeling (weight=0.2)", "Atom Modeling (weight=7)")
    ]
    differences = [row["difference"] for row in read(table)]
    assert [float(d) for d in differences if d] == pytest.approx([3.0, -20 / 3, 7.5])
    assert len(table.notes) == 1, "the headings and the rows say it"


def test_changed_settings_are_noted() -> None:
    some = results("flowers", {"plain": [0.6, 0.7], "atom": [0.65, 0.8]}, "epochs=3", "weight=7")
    some += results("pets", {"atom": [0.3]}, "method.neutrality=0.5")
    table = build_tables(some)[0]
    assert table.notes[-1] == (
        "Settings other than the experiment's own. Pets, Atom Modeling: method.neutrality=0.5; "
        "Flowers: epochs=3; Flowers, Atom Modeling: weight=7."
    )


def test_missing_seeds_are_counted() -> None:
    [table] = build_tables([r for r in FLOWERS if (r["method"], r["seed"]) != ("plain", 1)])[:1]
    assert [row[2].text for row in table.sections[0].rows] == ["2", "3 (2 paired)"]
    assert read(table)[1]["paired_seeds"] == "2"
    assert read(table)[1]["p_t_holm"] == "", "two seeds are too few for a test"


def test_without_plain_nothing_is_compared() -> None:
    [table] = build_tables([r for r in FLOWERS if r["method"] == "atom"])
    assert read(table)[0]["difference"] == ""


def test_validation_runs_are_left_out() -> None:
    assert build_tables([{**r, "validation": True} for r in FLOWERS]) == []


def test_experiments_that_are_gone_still_have_a_table() -> None:
    gone = [{**r, "experiment": "no-more", "method": "new"} for r in FLOWERS[:3]]
    [table] = build_tables(gone)
    assert table.title == "no-more"
    assert float(read(table)[0]["mean"]) == pytest.approx(1.79 / 3)


def test_ablation_table() -> None:
    """FID: less is better, so a larger one is below 0."""
    some = results(
        "mnist-gan", {"atom": [50.0, 60.0], "atom-no-neutrality": [55.0, 85.0], "plain": [90.0, 90]}
    )
    ablation = next(t for t in build_tables(some) if t.name == "ablation")
    [row] = read(ablation)
    assert (float(row["best"]), float(row["average"])) == (-5, -15)
    assert (float(row["paper_best"]), float(row["paper_average"])) == (-25.2, -35.3)


def test_ablations_are_compared_at_their_own_weight() -> None:
    low = results("synthetic", {"atom": [0.7], "atom-no-occupancy": [0.6]}, "weight=1")
    high = results("synthetic", {"atom": [0.9], "atom-no-occupancy": [0.95]}, "weight=2")
    ablation = next(t for t in build_tables(low + high) if t.name == "ablation")
    assert [float(row["average"]) for row in read(ablation)] == pytest.approx([-10, 5])


def test_the_best_row_ignores_what_is_not_a_number() -> None:
    [group] = group_results(results("synthetic", {"plain": [0.5], "atom": [math.nan]}))
    assert group.best == 0
