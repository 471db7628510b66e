"""Steps as CUDA graphs, compiled models and fused optimisers train as plain ones do."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_runs import read_metrics, run
from torch._dynamo.testing import CompileCounter

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.graphs import Replayed
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.optimisers import set_rate
from atomsep.experiments.randomness import seed_step
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.task import Context, Task

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
# Dynamo looks at all attributes of a tensor that another model computed.
of_torch = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
CHANGES = {
    "flowers": ["augmentation=crop-flip"],
    "mnist-gan": ["batch=64"],
    "cola": ["bucketed=true"],
    "synthetic": [],
}

SMALL = {
    "mnist-gan": ("train_samples=128", "samples=64"),
    "synthetic": (),
    "flowers": ("epochs=1",),
}


def make_task(name: str, method: str, device: str, folder: Path, *changes: str) -> Task:
    experiment = find_experiment(name)
    settings = run_key(experiment, method, 0, [*CHANGES[name], *changes], tiny=True).settings
    machine = Machine(device=device)
    fabric = make_fabric(machine, settings.precision)
    seed_step(0, "initial weights")
    return experiment.build(Context(settings, method, 0, fabric, folder, tiny=True))


def losses(task: Task, steps: int) -> list[dict[str, float]]:
    """The parts of the loss over some steps, which span several epochs."""
    found: list[dict[str, float]] = []
    for epoch in range(steps):
        for number, batch in enumerate(task.batches(epoch, 0)):
            seed_step(0, "step", epoch, number)
            parts = task.step(batch, len(found) / steps)
            found.append({name: float(value) for name, value in parts.items()})
            if len(found) == steps:
                return found
    raise AssertionError("unreachable")


@on_gpu
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("method", ["plain", "atom"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_graph_trains_as_single_launches_do(
    name: str, method: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss by loss and weight by weight; batches of two shapes, dropout and noise included."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    changes = [f"precision={precision}"]
    plain = make_task(name, method, "cuda", tmp_path, *changes, "graph=false")
    graph = make_task(name, method, "cuda", tmp_path, *changes, "graph=true")
    expected, found = losses(plain, 100), losses(graph, 100)
    tolerance = 1e-5 if precision == "32-true" else 2e-2  # sums of atomic additions vary
    for step, (before, after) in enumerate(zip(expected, found, strict=True)):
        assert after == pytest.approx(before, rel=tolerance, abs=tolerance), step


@on_gpu
def test_a_graph_draws_other_noise_in_every_step(tmp_path: Path) -> None:
    """The seed of a step reaches the graph."""
    task: Any = make_task("mnist-gan", "plain", "cuda", tmp_path, "graph=true", "learning_rate=0")
    batch = next(iter(task.batches(0, 0)))
    found = []
    for seed in (0, 1, 2, 3, 2):
        seed_step(seed, "step")
        found.append(float(task.step(batch, 0.0)["generator"]))
    assert len(set(found[:4])) == 4
    assert found[4] == pytest.approx(found[2], rel=1e-3)


@on_gpu
def test_a_stopped_run_of_a_graph_continues(tmp_path: Path) -> None:
    """Learning rates on the device are part of the checkpoint, and are set again."""
    first = make_task("flowers", "atom", "cuda", tmp_path, "graph=true")
    losses(first, 6)
    states = {name: part.state_dict() for name, part in first.parts().items()}
    torch.save(states, tmp_path / "state.pt")
    second = make_task("flowers", "atom", "cuda", tmp_path, "graph=true")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True, map_location="cuda")
    for name, part in second.parts().items():
        part.load_state_dict(loaded[name])
    batches = list(first.batches(1, 0))
    for number, batch in enumerate(batches):
        found = []
        for task in (first, second):
            seed_step(0, "step", 1, number)
            parts = task.step(batch, 0.5 + 0.01 * number)
            found.append({name: float(value) for name, value in parts.items()})
        assert found[1] == pytest.approx(found[0], rel=1e-4, abs=1e-5), number


def test_a_step_with_other_constants_has_a_graph_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first of a kind is computed, the second captured, and each later one replayed."""
    done: list[Any] = []
    made: list[Any] = []

    def graph() -> Any:
        number = len(made)
        made.append(number)
        return SimpleNamespace(replay=lambda: done.append(f"replays {number}"))

    stream = SimpleNamespace(wait_stream=lambda other: None)
    fakes = {
        "Stream": lambda device: stream,
        "graph_pool_handle": lambda: None,
        "current_stream": lambda: stream,
        "stream": lambda one: nullcontext(),
        "CUDAGraph": graph,
        "graph": lambda *given, **options: nullcontext(),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)

    def compute(batch: torch.Tensor, penalised: bool) -> dict[str, torch.Tensor]:
        done.append(penalised)
        return {"loss": torch.tensor(float(penalised))}

    on_layer: Any = SimpleNamespace(strength=None)
    step = Replayed(compute, torch.device("cpu"), on_layer)
    for penalised in (True, False, False, False, True, True, False):
        assert step(torch.zeros(2), penalised)["loss"] == float(penalised)
    captured = [False, "replays 0", "replays 0", True, "replays 1", "replays 1", "replays 0"]
    assert done == [True, False, *captured]


def test_a_graph_without_a_gpu_is_refused(tmp_path: Path) -> None:
    sentence = "graph=true: a CUDA graph needs a GPU, and this run is on cpu; omit graph=true"
    with pytest.raises(ExperimentError, match=f"^{sentence}$"):
        make_task("synthetic", "atom", "cpu", tmp_path, "graph=true")


@on_gpu
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("precision=16-mixed", "loss scale of 16-mixed"),
        ("method.pairs=sampled", "draws its samples on the host"),
        ("method.tokens=5", "draws its samples on the host"),
    ],
)
def test_steps_that_decide_on_the_host_are_refused(
    change: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ExperimentError, match=reason):
        make_task("synthetic", "atom", "cuda", tmp_path, "graph=true", change)


@of_torch
@pytest.mark.parametrize(
    "name", ["synthetic", "mnist-gan", pytest.param("flowers", marks=pytest.mark.slow)]
)
def test_a_compiled_model_trains_as_it_does_uncompiled(name: str, tmp_path: Path) -> None:
    _, plain = run(find_experiment(name), "atom", tmp_path / "a", *SMALL[name])
    _, compiled = run(find_experiment(name), "atom", tmp_path / "b", *SMALL[name], "compile=true")
    parts = ("discriminator", "generator") if name == "mnist-gan" else ("cross-entropy",)
    for before, after in zip(*map(read_metrics, (plain.folder, compiled.folder)), strict=True):
        for part in (*parts, "method"):
            assert after[part] == pytest.approx(before[part], rel=1e-3), after["epoch"]
    before, after = (torch.load(each.model, weights_only=True) for each in (plain, compiled))
    assert before.keys() == after.keys()
    for model in before.keys() - {"method"}:
        assert before[model].keys() == after[model].keys()


@of_torch
def test_a_gan_compiles_nothing_after_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the generator's step turns the discriminator's gradients off and on again."""
    counter, compile = CompileCounter(), torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(compile, backend=counter))
    torch._dynamo.reset()
    task = make_task("mnist-gan", "atom", "cpu", tmp_path, "compile=true")
    found = []
    for batch in list(task.batches(0, 0))[:4]:
        task.step(batch, 0.0)
        found.append(counter.frame_count)
    assert found[0] >= 3, "the generator, and the discriminator with and without gradients"
    assert found == found[:1] * 4


def test_a_rate_is_set_for_all_parameters_as_a_number_or_where_a_graph_reads_it() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    for rate in (0.5, torch.tensor(0.5)):
        optimiser = torch.optim.SGD([parameter], lr=rate)
        optimiser.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
        set_rate(optimiser, 0.25)
        assert [float(group["lr"]) for group in optimiser.param_groups] == [0.25, 0.25]
        assert type(optimiser.param_groups[0]["lr"]) is type(rate)


@on_gpu
def test_optimisers_on_a_gpu_are_fused(tmp_path: Path) -> None:
    task: Any = make_task("flowers", "plain", "cuda", tmp_path)
    assert task.optimiser.param_groups[0]["fused"]
