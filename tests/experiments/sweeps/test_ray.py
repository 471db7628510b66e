"""Sweeps on a Ray cluster of two nodes, with real processes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atomsep.cli.main import main
from atomsep.experiments.entry_points import IMPORTED, import_extensions
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.machine import Machine
from atomsep.experiments.registry import EXPERIMENTS, run_key
from atomsep.experiments.runs import Run, RunKey
from atomsep.experiments.sweeps.ledger import Event, Ledger
from atomsep.experiments.sweeps.on_ray import RaySweep
from atomsep.experiments.sweeps.sweep import open_sweep, run_sweep
from atomsep.experiments.synthetic.experiment import SYNTHETIC

HERE = Path(__file__).parent
CPU = Machine(device="cpu", tensorboard=False, checkpoint_seconds=0)
needs_ray = pytest.mark.skipif(
    "not __import__('importlib.util').util.find_spec('ray')", reason="Ray is not installed"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with one core each."""
    import ray
    from ray.cluster_utils import Cluster

    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    store = {"object_store_memory": 80 << 20, "num_cpus": 1}
    nodes = Cluster(initialize_head=True, head_node_args={**store, "include_dashboard": False})
    nodes.add_node(**store)
    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    yield nodes
    ray.shutdown()
    nodes.shutdown()
    patch.undo()


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RunKey]]:
    """Runs of which the second dies once."""
    monkeypatch.chdir(HERE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    import_extensions(["dying_experiment"])
    yield [run_key(EXPERIMENTS["dying"], "plain", seed) for seed in range(3)]
    IMPORTED.remove("dying_experiment")
    del EXPERIMENTS["dying"]


def steps(key: RunKey, root: Path) -> tuple[list[int], set[str]]:
    """The steps of a run, and the processes that took them."""
    lines = (key.folder(root) / "notes").read_text().splitlines()
    numbers, processes = zip(*(line.split(" in ") for line in lines), strict=True)
    return [int(number) for number in numbers], set(processes)


@needs_ray
@pytest.mark.filterwarnings("ignore")
def test_a_killed_trial_runs_again_and_nothing_is_lost(
    cluster: Any, dying: list[RunKey], tmp_path: Path
) -> None:
    events: list[Event] = []
    report = run_sweep(dying, tmp_path, CPU, 2, events.append, "ray")
    assert not report.failed
    assert [result["seed"] for result in report.results] == [0, 1, 2]
    taken, processes = steps(dying[1], tmp_path)
    assert taken == [0, 1, 2, 2, 3], "it continues from its checkpoint"
    assert len(processes) == 2
    for key in (dying[0], dying[2]):
        assert steps(key, tmp_path)[0] == [0, 1, 2, 3]
    kinds = [event.kind for event in events]
    assert kinds.count("started") == kinds.count("finished") == 3
    assert events[-1].done == 3
    written = [Run(key.folder(tmp_path)).result.stat().st_mtime_ns for key in dying]
    again = run_sweep(dying, tmp_path, CPU, 2, executor="ray")
    assert again.skipped == 3
    assert written == [Run(key.folder(tmp_path)).result.stat().st_mtime_ns for key in dying]


@needs_ray
@pytest.mark.filterwarnings("ignore")
def test_the_results_are_those_of_the_local_executor(cluster: Any, tmp_path: Path) -> None:
    trials = [run_key(SYNTHETIC, name, 0, (), tiny=True) for name in ("plain", "atom")]
    trials.append(run_key(SYNTHETIC, "plain", 0, ["learning_rate=1e38"], tiny=True))
    with open_sweep("ray", tmp_path / "ray", CPU, None) as sweep:
        remote = sweep.run(trials)
    local = run_sweep(trials, tmp_path / "local", CPU, 1)
    assert len(remote.results) == 2
    for here, there in zip(local.results, remote.results, strict=True):
        assert there["metrics"] == here["metrics"]
        times = {"seconds": 0}
        assert {**there["last_epoch"], **times} == {**here["last_epoch"], **times}
    [here], [there] = local.failed, remote.failed
    assert there.reason == here.reason
    assert "not a number" in there.log.read_text()


@needs_ray
@pytest.mark.filterwarnings("ignore")
def test_a_stopped_sweep_leaves_checkpoints(cluster: Any, tmp_path: Path) -> None:
    key = run_key(SYNTHETIC, "plain", 0, ["epochs=100000"], tiny=True)
    run = Run(key.folder(tmp_path))
    kinds: list[str] = []

    def interrupt(event: Event) -> None:
        kinds.append(event.kind)
        if event.kind == "started":
            while not run.checkpoint.exists():
                time.sleep(0.1)
            raise KeyboardInterrupt

    report = run_sweep([key], tmp_path, CPU, 1, interrupt, "ray")
    assert report.left == [key]
    assert kinds == ["started", "stopping", "stopped"]
    assert run.checkpoint.exists()
    with run.locked():  # its process has left the folder
        assert not run.result.exists()


def test_what_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ExperimentError, match="executor 'rya'.*did you mean 'ray'"):
        open_sweep("rya", tmp_path, CPU, 1)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["sweep", "synthetic", "--tiny", "--mps", "--executor", "ray"])
    assert "--mps shares a GPU of this machine" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ExperimentError, match="needs Ray: pip install"):
        open_sweep("ray", tmp_path, CPU, 1)


@needs_ray
def test_ray_refuses_what_the_local_executor_refuses(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="at least 1, not 0"):
        open_sweep("ray", tmp_path, CPU, 0)
    with pytest.raises(ExperimentError, match="on one device, not on 4"):
        open_sweep("ray", tmp_path, Machine(devices=4), 1)


@needs_ray
def test_memory_that_runs_out_beside_others_is_tried_again_with_fewer(
    cluster: Any, tmp_path: Path
) -> None:
    import ray

    key = run_key(SYNTHETIC, "plain", 0, tiny=True)
    sweep = RaySweep(tmp_path, CPU, 3)
    ledger = Ledger({key.folder(tmp_path): key}, tmp_path, lambda event: None)
    answer = ray.put({"crowded": "CUDA out of memory"})
    sweep._book(answer, key, ledger, beside=2)
    assert (list(ledger.waiting), ledger.failed, sweep.jobs) == ([key], {}, 2)
    sweep._book(answer, key, ledger, beside=0)
    assert [failure.reason for failure in ledger.failed.values()] == ["CUDA out of memory"]
