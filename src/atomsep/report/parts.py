"""The parts of a report: experiments, each with its groups and the runs behind every row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.runs import Run
from atomsep.report.groups import OF_A_METHOD, Group, group_results
from atomsep.report.tables import told_apart


@dataclass(frozen=True)
class Finished:
    """A finished run."""

    folder: Path
    result: Mapping[str, Any]


@dataclass(frozen=True)
class Part:
    """An experiment with one set of settings.

    Attributes:
        title: the experiment, with the changed settings if they tell it apart from others.
        groups: one per metric, which share their runs; the main metric's comes first.
        runs: the runs of each row of the first group, in the order of their seeds.
    """

    title: str
    groups: Sequence[Group]
    runs: Sequence[Sequence[Finished]]

    @property
    def main(self) -> Group:
        """The group of the main metric."""
        return self.groups[0]


def find_runs(root: Path) -> list[Finished]:
    """All finished runs under a folder, except those of a search, in order of their paths.

    Raises:
        ExperimentError: there is none, or a `result.json` does not hold a result.
    """
    if not root.is_dir():
        raise ExperimentError(f"there is no folder {root}; train something first: atomsep train")
    found = []
    for path in sorted(root.rglob("result.json")):
        result = Run(path.parent).read_result()
        if result is not None and not result.get("validation", False):
            found.append(Finished(path.parent, result))
    if not found:
        raise ExperimentError(f"there is no finished run under {root}")
    return found


def divide(runs: Sequence[Finished]) -> list[Part]:
    """The parts that some runs make, in the order of the tables."""
    of_row: dict[str, dict[int, Finished]] = {}
    for run in runs:
        result = run.result
        key = _key(result["experiment"], result.get("tiny", False), result["settings"])
        of_row.setdefault(result["method"] + key, {})[result["seed"]] = run
    groups = group_results([run.result for run in runs])
    alike: dict[str, list[Group]] = {}
    for group in groups:
        shared = {k: v for k, v in group.rows[0].settings.items() if k not in OF_A_METHOD}
        alike.setdefault(_key(group.experiment, group.tiny, shared), []).append(group)
    parts = []
    for same in alike.values():
        main, found = same[0], []
        for row in main.rows:
            seeds = of_row[row.method + _key(main.experiment, main.tiny, row.settings)]
            found.append([seeds[seed] for seed in sorted(seeds)])
        others = [group for group in groups if group.tiny == main.tiny]
        title = main.title + (", tiny form" if main.tiny else "")
        if told_apart(main, others):
            title += f" ({', '.join(main.changes) or 'the settings of the experiment'})"
        parts.append(Part(title, same, found))
    return parts


def _key(experiment: str, tiny: bool, settings: Mapping[str, Any]) -> str:
    return json.dumps([experiment, tiny, settings], sort_keys=True)
