"""What the pages of results say in words is what their tables hold."""

from __future__ import annotations

from statistics import fmean

import pytest

from atomsep.report.numbers import signed
from study import gains, overview, paper_rows, results, tables
from study.gains import CALIBRATED, MODE_SEEKING
from study.questions import PLAIN, Arm
from study.tasks import TASKS

pytestmark = pytest.mark.usefixtures("study_methods")

INDEX, GANS, SETTINGS = (f"docs/results/{name}.md" for name in ("index", "gans", "settings"))
NUMBERS = {2: "two", 4: "four", 6: "six"}


def text_of(name: str) -> str:
    """A page with single spaces."""
    return " ".join((tables.ROOT / name).read_text().split())


def test_the_gain_on_faces_is_quoted_as_the_tables_have_it() -> None:
    gain = gains.gains_in("gans", "faces")[CALIBRATED]
    before = gains.gains_in("strength", "faces")[CALIBRATED]
    for page in ("README.md", INDEX):
        assert f"{gain.mean:.0f} % closer to the data" in text_of(page)
    assert f"− {gain.mean:.0f} % after − {before.mean:.0f} %" in text_of(GANS)
    assert min(*gain.pairs, *before.pairs) > 0, "gains in all ten seeds"
    assert f"the smallest p is {gains.smallest_p():.2f}" in text_of(INDEX)
    assert gains.smallest_p() > 0.05, "no gain is significant"


def test_the_verdict_counts_what_the_overview_shows() -> None:
    found = gains.shown(gains.SUMMARY)
    better = {line.task for line, gain in found.items() if gains.answer(gain) == "better"}
    assert better == {"faces", "pets-10-strong"}
    for page in ("README.md", INDEX):
        assert f"Of {len(found)} comparisons" in text_of(page)
        assert f"{NUMBERS[len(better)]} are significant for their task" in text_of(page)
    judged = [line.split("|")[-2].strip() for line in paper_rows.paper_rows().splitlines()[2:]]
    told = [NUMBERS[judged.count("excluded")], NUMBERS[sum(map(bool, judged))]]
    assert f"exclude a gain like the paper's in {told[0]} of {told[1]} rows" in text_of(INDEX)


def test_the_gain_with_few_labels_is_quoted_as_the_tables_have_it() -> None:
    strong = tables.compared("pets-10-strong", "test", "top1")
    ours = strong[Arm("atom", 0.2)]
    for page in ("README.md", INDEX):
        assert f"{ours.difference:.1f} points of accuracy" in text_of(page)
    assert f"points of accuracy (p = {ours.t_holm:.2f})" in text_of("README.md")
    pairs = [min(each.pairs) for each in gains.gains_in("classifiers", "pets-10-strong").values()]
    assert min(pairs) > 0, "in all five seeds"
    assert ours.difference == min(each.difference for each in strong.values()), "least"
    assert max(strong.values(), key=lambda each: each.difference) == strong[Arm("koleo", 0.1)]
    tuned = tables.compared("pets-10", "test", "top1")
    assert f"{tuned[Arm('atom', 0.2)].difference:.1f}" == f"{ours.difference:.1f}", "as much"
    assert min(each.t_holm for each in tuned.values()) > 0.05, "no difference is significant"
    assert results.choose("pets-10") == 0.01


def test_fresh_seeds_of_the_small_gans_are_quoted_apart() -> None:
    """Five seeds were looked at before five more were trained."""
    page = text_of(GANS)
    first, fresh, seeking = [], [], []
    for task in ("small-faces", "small-cifar10"):
        average = gains.gains_in("gans", task, f"ema_{TASKS[task].metrics[0]}")
        pairs = average[CALIBRATED].pairs
        first.append(fmean(pairs[:5]))
        fresh.append(fmean(pairs[5:]))
        seeking.append(average[MODE_SEEKING])
        found = gains.gains_in("gans", task)[CALIBRATED]
        assert found.p_holm > 0.05, "no difference between the generators is significant"
        if task == "small-faces":
            assert f"the gain on the faces has p = {average[CALIBRATED].p:.3f}" in page
    assert f"({first[0]:.0f} and {first[1]:.0f} % better)" in page
    assert f"gains {fresh[0]:.0f} % on the faces and loses {-fresh[1]:.0f} % on CIFAR-10" in page
    assert f"averages are {seeking[0].mean:.0f} and {seeking[1].mean:.0f} % better" in page
    assert {gains.answer(each) for each in seeking} == {"better"}


def test_the_gain_of_mode_seeking_is_quoted_as_the_table_has_it() -> None:
    found = gains.gains_in("settings", "digits")
    seeking = found.pop(MODE_SEEKING)
    page = text_of(SETTINGS)
    assert f"its distance is {seeking.mean:.0f} % lower, in all five seeds" in page
    assert min(seeking.pairs) > 0, "in all five seeds"
    metric = TASKS["digits"].metrics[0]
    plain = fmean(tables.values_of(tables.rows_of("settings", "digits"), metric)[PLAIN].values())
    ours = [each.mean * plain / 100 for arm, each in found.items() if arm.method.startswith("atom")]
    assert len(ours) == 9
    assert max(map(abs, ours)) < 4, "within 4 of plain training"


def test_what_is_said_of_the_mixtures_holds() -> None:
    parts = gains.gains_in("paper", "demo")
    better = [arm for arm, each in parts.items() if gains.answer(each) == "better"]
    ablations = ("atom-no-neutrality", "atom-no-occupancy", "atom-no-constraints")
    assert {arm.method for arm in better} == {*ablations, "simclr"}, "three of the ablations"
    assert parts[Arm("atom-no-energy", 12.5)].mean < 0, "the constraints alone make it worse"
    rates = {row.tuned: [] for row in results.read("mixtures", "tuning")}  # type: ignore[var-annotated]
    for row in results.read("mixtures", "tuning"):
        rates[row.tuned].append(row.metrics["accuracy"])
    assert sum(each < 0.51 for each in rates[10]) == 2, "at rate 10 two of three fell to 50 %"
    tuned = gains.gains_in("settings", "mixtures")
    assert max(each.mean for each in tuned.values()) < 0, "no version gains anything"


def test_stacked_mnist_is_told_with_and_without_the_seed_that_broke_down() -> None:
    page = text_of(GANS)
    left = []
    for metric in ("modes", "ema_modes"):
        for question, task in (("example", "example-stacked"), ("strength", "stacked")):
            rows = tables.rows_of(question, task)
            broken = {(row.arm, row.seed) for row in rows if row.broken_down}
            assert [seed for arm, seed in broken if arm == PLAIN] == [2]
            assert not [seed for arm, seed in broken if arm == Arm("atom", 10.0)]
            values = tables.values_of(rows, metric)
            plain, own = values[PLAIN], values[Arm("atom", 10.0)]
            left.append(fmean(own[seed] - plain[seed] for seed in plain if seed != 2))
    told = [signed(each, 0).replace("+", "+ ").replace("−", "− ") for each in left]
    assert f"the generator by {told[0]} and {told[1]} modes" in page
    assert f"its average by {told[2]} and {told[3]}" in page
    modes = tables.values_of(tables.rows_of("strength", "small-stacked"), "modes")[PLAIN].values()
    assert f"between {min(modes):.0f} and {max(modes):.0f} of 1,000 modes" in page


def test_mnist_at_16_pixels_shows_no_difference_in_any_setting() -> None:
    assert "the intervals exclude gains above 10 %" in text_of(GANS)
    for task in ("small-mnist", "small-mnist-usual", "small-mnist-r1"):
        for metric in ("frechet_classifier", "ema_frechet_classifier"):
            found = gains.gains_in("strength", task, metric).values()
            assert min(each.p_holm for each in found) > 0.05
            if task == "small-mnist-usual":
                assert max(each.high for each in found) < 10


def test_the_harm_of_a_constant_share_is_quoted_as_the_table_has_it() -> None:
    page = text_of("docs/results/strength.md")
    found = gains.gains_in("strength", "digits")
    shares = [found[Arm("atom-share", share)] for share in (0.03, 0.1, 0.3)]
    worse = sum(pair < 0 for each in shares for pair in each.pairs)
    assert f"in {worse} of 15 pairs of seeds" in page
    told = [f"{-each.mean:.0f}" for each in shares]
    assert f"by {told[0]}, {told[1]} and {told[2]} % of plain training's distance" in page
    assert min(each.p_holm for each in shares) > 0.05
    assert f"corrected for all {len(found)} arms" in page
    calm = [
        each for arm, each in found.items() if arm.method == "atom" and arm.strength in (0.2, 1)
    ]
    calm += [found[Arm("atom-calibrated", share)] for share in (0.03, 0.1)]
    assert max(abs(each.mean) for each in calm) < 4, "every difference is smaller than 4 per cent"


def test_rules_are_compared_over_tasks_as_the_page_says() -> None:
    page = text_of("docs/results/strength.md")
    widely = (Arm("atom", 1.0), Arm("atom-share", 0.1), CALIBRATED)
    by_rule = overview.by_rule()
    assert {len(by_rule[arm]) for arm in widely} == {9}, "nine tasks each"
    means = [signed(fmean(g.mean for g in by_rule[arm].values()), 1) for arm in widely]
    told = [each.replace("−", "− ").replace("+", "+ ") for each in means]
    assert f"mean gains are {told[0]}, {told[1]} and {told[2]} %" in page
    worst = [overview.worst(by_rule[arm]) for arm in widely]
    assert {task for _, task in worst} == {"small-stacked"}
    assert f"costs {-worst[0][0]:.0f} %, theirs cost {-worst[1][0]:.0f} %" in page
    assert f"{worst[1][0]:.0f}" == f"{worst[2][0]:.0f}"
    better = {
        (arm, task)
        for arm, own in by_rule.items()
        for task, gain in own.items()
        if gains.answer(gain) == "better"
    }
    assert better == {(CALIBRATED, "faces"), (Arm("atom-constraints", 0.1), "flowers")}
    small = by_rule[Arm("atom-calibrated", 0.03)].values()
    assert len(small) == 4
    assert min(gain.mean for gain in small) > -0.05, "lost on none"


def test_a_gain_like_the_paper_s_is_judged_by_the_interval() -> None:
    table = paper_rows.paper_rows()
    for row in paper_rows.ROWS:
        [line] = [line for line in table.splitlines() if line.startswith(f"| {row.title} |")]
        gain = gains.shown([row.here])[row.here] if row.here else None
        if gain is None:
            assert "not run" in line
        elif "excluded" in line:
            claimed = float(line.split("|")[3])
            assert gain.high < claimed + 0.05
