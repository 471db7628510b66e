"""The study: its plan holds what it promises, and its tables are those of the collected runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atomsep.experiments import entry_points
from atomsep.experiments.registry import EXPERIMENTS
from atomsep.methods import METHODS
from study import questions, results, tables
from study.questions import QUESTIONS, TUNING_SEEDS, plan_comparison, plan_tuning
from study.tasks import TASKS

DATA = Path("data")


@pytest.fixture(autouse=True)
def rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The study's methods and experiments, which other tests of this process do not see."""
    before = [(registry, dict(registry)) for registry in (METHODS, EXPERIMENTS)]
    monkeypatch.setattr(entry_points, "IMPORTED", [])
    entry_points.import_extensions(["study.rules"])
    yield
    sys.modules.pop("study.rules")  # to be registered again by the next import
    for registry, content in before:
        registry.clear()
        registry.update(content)


@pytest.mark.parametrize("task", TASKS)
def test_plain_training_is_tuned_first_and_on_other_seeds_and_samples(task: str) -> None:
    question = QUESTIONS["strength"]
    tuning = list(plan_tuning(task, DATA))
    value = TASKS[task].tuned[1][-1]
    runs = list(plan_comparison(question, task, DATA, value))
    assert {each.method for each in tuning} == {"plain"}
    assert all(each.key.validation for each in tuning)
    assert not any(each.key.validation for each in runs)
    assert not {each.key.seed for each in tuning} & {each.key.seed for each in runs}
    assert {getattr(each.key.settings, TASKS[task].tuned[0]) for each in runs} == {value}


def test_every_arm_has_the_seeds_of_plain_and_no_run_comes_twice() -> None:
    question = QUESTIONS["strength"]
    runs = list(plan_comparison(question, "mnist", DATA, 2e-4))
    arms: dict[tuple[str, float], list[int]] = {}
    for each in runs:
        arms.setdefault((each.method, each.strength), []).append(each.key.seed)
    wanted = {(method, s) for method, each in question.methods.items() for s in each}
    assert arms.keys() == wanted | {("plain", 0.0)}
    assert all(seeds == [0, 1, 2, 3, 4] for seeds in arms.values())
    folders = [each.key.folder(Path()) for each in runs]
    assert len(set(folders)) == len(folders)
    first = [method for method, strength in arms if strength in (1.0, 0.1)]
    assert [method for method, _ in arms][1:8] == first, "the middle strengths come first"


def write_runs(folder: Path, metrics: dict[tuple[str, float], list[float]]) -> None:
    """Hand-made runs of the digits, by arm and seed."""
    rows = [
        {
            "phase": "comparison",
            "method": method,
            "strength": strength,
            "tuned": 5e-4,
            "seed": seed,
            "settings": [],
            "metrics": {"frechet_classifier": value},
            "broken_down": {"step": 3} if value > 900 else None,
            "seconds": 1.0,
            "machine": "a machine",
            "versions": {},
        }
        for (method, strength), values in metrics.items()
        for seed, value in enumerate(values)
    ]
    rows.append({**rows[0], "phase": "tuning", "seed": TUNING_SEEDS[0]})
    path = folder / "strength" / "digits.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_tables_are_computed_from_paired_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    write_runs(
        tmp_path,
        {
            ("plain", 0.0): [90.0, 100.0, 110.0],
            ("atom", 1.0): [80.0, 95.0, 95.0],  # 10 less on average, of 100
            ("atom-share", 0.1): [91.0, 110.0, 999.0],
        },
    )
    whole = tables.worst_and_mean().splitlines()
    assert whole[0] == "| rule | strength | digits | worst | mean |"
    assert whole[2] == "| atom | 1 | +10.0 | +10.0 | +10.0 |"  # less is better
    assert whole[3].startswith("| atom-share | 0.1 | −300.0 |")
    one = tables.of_task("strength", "digits").splitlines()
    assert one[2].startswith("| plain |  | 3 | 100")
    assert "−10.00" in one[3]
    assert "| 3 of 3 |" in one[3]
    assert "| 0 of 3 |" in one[4]
    assert one[4].endswith("| 1 |"), "a run that broke down is counted"
    assert "learning_rate=0.0005" in one[-1]


def test_pages_are_those_of_the_collected_runs() -> None:
    pages = list(tables.PAGES.glob("*.md"))
    assert pages
    for page in pages:
        text = page.read_text()
        assert tables.render(text) == text, f"{page.name} is out of date: python -m study tables"


def test_collected_runs_belong_to_the_plan() -> None:
    for question in questions.QUESTIONS:
        for task in QUESTIONS[question].tasks:
            rows = results.read(question, task)
            for row in rows:
                assert (
                    row.method == "plain" or row.strength in QUESTIONS[question].methods[row.method]
                )
                assert row.metrics.keys() == set(TASKS[task].metrics)
