"""The study: its plan holds what it promises, and its tables are those of the collected runs."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, stdev
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image
from scipy import stats

from atomsep.functional import Atoms, form_atoms
from atomsep.methods import make_method
from atomsep.report.numbers import signed
from study import equilibrium, faces, forest, gains, overview, pages, results, tables
from study.questions import (
    HELD_OUT,
    PHASES,
    PLAIN,
    QUESTIONS,
    Arm,
    Planned,
    best,
    plan_arms,
    plan_tuning,
)
from study.results import Row
from study.tasks import TASKS

pytestmark = pytest.mark.usefixtures("study_methods")

DATA = Path("data")
CALIBRATED = gains.CALIBRATED
EVERY = [(name, task) for name, question in QUESTIONS.items() for task in question.arms]


def planned(question: str, task: str) -> list[Planned]:
    """The runs of a question, at any strength where the best one is not known yet."""
    arms = [
        arm._replace(strength=0.5) if arm.strength is None else arm
        for arm in QUESTIONS[question].arms[task]
    ]
    return list(plan_arms(QUESTIONS[question], task, DATA, TASKS[task].tuned[1][-1], arms))


@pytest.mark.parametrize("task", TASKS)
def test_plain_training_is_tuned_first_and_on_other_seeds_and_samples(task: str) -> None:
    name, values = TASKS[task].tuned
    tuning = list(plan_tuning(task, DATA))
    assert {each.arm for each in tuning} == ({PLAIN} if len(values) > 1 else set())
    assert all(each.key.validation for each in tuning)
    assert {getattr(each.key.settings, name) for each in tuning} == (
        set(values) if tuning else set()
    )
    seeds = {each.key.seed for each in tuning}
    assert not seeds & {*PHASES["trials"], *PHASES["test"]}
    for question, its_task in EVERY:
        if its_task == task:
            runs = planned(question, task)
            assert {getattr(each.key.settings, name) for each in runs} == {values[-1]}


@pytest.mark.parametrize(("question", "task"), EVERY)
def test_every_arm_has_the_seeds_of_plain_and_no_run_comes_twice(question: str, task: str) -> None:
    runs = planned(question, task)
    seeds: dict[Arm, list[int]] = {}
    for each in runs:
        seeds.setdefault(each.arm, []).append(each.key.seed)
    assert next(iter(seeds)) == PLAIN
    assert len(seeds) == 1 + len(QUESTIONS[question].arms[task])
    assert all(each == seeds[PLAIN] for each in seeds.values())
    folders = [each.key.folder(Path()) for each in runs]
    assert len(set(folders)) == len(folders)
    if QUESTIONS[question].phase == "trials":  # no strength is chosen by what is tested later
        assert not set(seeds[PLAIN]) & set(PHASES["test"])
        assert all(each.key.validation == (task in HELD_OUT) for each in runs)
    else:
        assert not any(each.key.validation for each in runs)


def test_a_strength_to_be_chosen_has_trials() -> None:
    tried = {
        (task, arm.method)
        for question in QUESTIONS.values()
        for task, arms in question.arms.items()
        for arm in arms
        if question.phase == "trials"
    }
    for question in QUESTIONS.values():
        for task, arms in question.arms.items():
            for arm in arms:
                assert arm.strength is not None or (task, arm.method) in tried


def row(arm: Arm, seed: int, value: float, phase: str = "trials") -> Row:
    """A hand-made run of the digits."""
    return Row(
        phase=phase,
        method=arm.method,
        strength=arm.strength or 0.0,
        options=list(arm.options),
        tuned=5e-4,
        seed=seed,
        settings=[],
        metrics={"frechet_classifier": value},
        broken_down={"step": 3} if value > 900 else None,
        seconds=1.0,
        machine="a machine",
        versions={},
        shares=[0.5, 0.01] if arm.method == "atom" else [],
    )


@pytest.fixture
def collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand-made runs of the digits, and of no other task."""
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    runs = {
        PLAIN: [90.0, 100.0, 110.0],
        Arm("atom", 1.0): [80.0, 95.0, 95.0],  # 10 less on average, of 100
        Arm("atom", 5.0): [95.0, 105.0, 114.0],
        Arm("atom-share", 0.1): [91.0, 110.0, 999.0],
    }
    rows = [row(arm, seed, value) for arm, each in runs.items() for seed, value in enumerate(each)]
    rows += [row(PLAIN, PHASES["tuning"][0], 1.0, "tuning")]
    results.file_of("digits").write_text("".join(json.dumps(vars(each)) + "\n" for each in rows))


@pytest.mark.usefixtures("collected")
def test_tables_are_computed_from_paired_seeds() -> None:
    whole = overview.rules().splitlines()
    digits = TASKS["digits"].title
    assert whole[2] == f"| atom 1 | 1 | {digits} | +10.0 | +10.0 | +5.0 |"  # less is better
    assert whole[4].startswith(f"| atom-share 0.1 | 1 | {digits} | −300.0 |")
    one = tables.of_task("strength", "digits").splitlines()
    assert one[2].startswith("| plain | 3 | 100")
    assert "−10.00" in one[3]
    assert "| 3 of 3 |" in one[3]
    assert "| 0 of 3 |" in one[5]
    assert one[5].endswith("| 1 |"), "a run that broke down is counted"
    assert "learning_rate=0.0005" in one[-1]
    assert overview.broken().splitlines()[-1].endswith("| atom-share 0.1 | 3 | 1 |")
    assert "| Digits DCGAN, 16 px | atom 1 | 50 | 1 |" in overview.shares()


@pytest.mark.usefixtures("collected")
def test_the_best_strength_of_the_trials_is_chosen() -> None:
    assert results.choose("digits") == 5e-4
    assert results.choose("stacked") is None
    arms = best("atom", "koleo")
    assert results.with_strengths("digits", arms) == [Arm("atom", 1.0)]  # koleo has no trials


@pytest.mark.usefixtures("collected")
def test_a_run_that_was_collected_is_not_missing() -> None:
    arms = [Arm("atom", 1.0), Arm("atom-share", 0.1)]
    runs = list(plan_arms(QUESTIONS["strength"], "digits", DATA, 5e-4, arms))
    missing = list(results.uncollected(runs))
    assert {each.key.seed for each in runs} == {0, 1, 2, 3, 4}
    assert {each.key.seed for each in missing} == {3, 4}
    assert {each.arm for each in missing} == {PLAIN, *arms}


def test_pages_are_those_of_the_collected_runs() -> None:
    filled = [page for page in tables.PAGES if "<!-- table: " in page.read_text()]
    assert {"index.md", "strength.md"} <= {page.name for page in filled}
    for page in filled:
        text = page.read_text()
        assert pages.render(text) == text, f"{page.name} is out of date: make study-tables"


def test_the_picture_is_that_of_the_collected_runs() -> None:
    drawn = forest.draw()
    assert forest.FILE.read_text() == drawn, "out of date: make study-tables"
    parts = (gains.shown(gains.SUMMARY), gains.shown(gains.PEERS), gains.averages())
    found = [line for part in parts for line in part.items()]
    assert drawn.count("<circle") == len(found) + 1  # and R1
    ElementTree.fromstring(drawn)
    for line, gain in found:
        assert f"{signed(gain.mean, 1)} ({signed(gain.low, 1)} to" in drawn, line


def test_gains_are_in_per_cent_of_plain_training() -> None:
    gain = gains.gains_in("gans", "faces")[CALIBRATED]
    rows = tables.rows_of("gans", "faces")
    plain, own = (
        [row.metrics[TASKS["faces"].metrics[0]] for row in rows if row.arm == arm]
        for arm in (PLAIN, CALIBRATED)
    )
    pairs = [100 * (a - b) / fmean(plain) for a, b in zip(plain, own, strict=True)]
    reach = stats.t.ppf(0.975, 4) * stdev(pairs) / 5**0.5
    assert (gain.mean, gain.low, gain.high) == pytest.approx(
        (fmean(pairs), fmean(pairs) - reach, fmean(pairs) + reach)
    )


@pytest.mark.parametrize("task", TASKS)
def test_collected_runs_belong_to_the_plan(task: str) -> None:
    plan = {(each.phase, each.arm._replace(strength=None), each.key.seed) for each in
            [*plan_tuning(task, DATA), *(run for name, its in EVERY if its == task
                                         for run in planned(name, task))]}  # fmt: skip
    tuned = results.choose(task)
    for each in results.read(task):
        assert (each.phase, each.arm._replace(strength=None), each.seed) in plan
        assert each.metrics.keys() == set(TASKS[task].metrics)
        assert each.tuned == tuned or each.phase == "tuning"


def test_centres_of_mass_do_not_depend_on_a_shift() -> None:
    method = make_method("atom-centre-of-mass", features=4)
    latent = torch.randn(5, 7, 4, dtype=torch.float64)
    shift = torch.tensor([0.0, 3.0, -2.0, 5.0], dtype=torch.float64)
    assert method(latent + shift) == pytest.approx(float(method(latent)))
    assert make_method("atom", features=4)(latent + shift) != pytest.approx(
        float(make_method("atom", features=4)(latent))
    )
    latent[..., 0] = -50  # electrons alone
    assert method(latent).isfinite()


def test_equilibria_are_found_where_net_charges_are_opposite() -> None:
    latent = torch.randn(9, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    atoms = form_atoms(latent)
    net = atoms.charge.sum(1)
    opposite = [net[a] * net[b] < 0 for a in range(9) for b in range(a + 1, 9)]
    found = equilibrium.compare(atoms)
    assert found["pairs with an equilibrium"] == pytest.approx(
        float(torch.tensor(opposite).double().mean())
    )
    shorter = [
        bool(energy_slope(atoms, a, b) > 0)  # closer together would be lower: it is attracted
        for a in range(9)
        for b in range(a + 1, 9)
        if net[a] * net[b] < 0
    ]
    assert found["of these, closer than it"] == pytest.approx(1 - sum(shorter) / len(shorter))


def energy_slope(atoms: Atoms, a: int, b: int) -> float:
    """Change of a pair's energy with its distance, by a finite difference of the token sum."""
    distance = float(torch.linalg.vector_norm(atoms.nucleus[a] - atoms.nucleus[b]))
    radius = float(atoms.radius[a] + atoms.radius[b]) / 2

    def energy(d: float) -> float:
        return sum(
            float(q * p) / (d + (radius if q * p < 0 else 0))
            for q in atoms.charge[a]
            for p in atoms.charge[b]
        )

    return energy(distance + 1e-4) - energy(distance - 1e-4)


def test_faces_are_prepared(tmp_path: Path) -> None:
    for number in range(3):
        Image.new("RGB", (80, 80), (number, 0, 0)).save(tmp_path / f"2{number}_1_0.jpg.chip.jpg")
    folder = faces.write(tmp_path, tmp_path / "data")
    assert sorted(file.name for file in folder.iterdir()) == [f"2{n}_1_0.jpg" for n in range(3)]
    with Image.open(folder / "20_1_0.jpg") as image:
        assert image.size == (64, 64)
    with pytest.raises(SystemExit, match=r"holds no \.jpg files"):
        faces.write(tmp_path / "data" / "cache", tmp_path)
