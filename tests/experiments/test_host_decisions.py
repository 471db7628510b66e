"""Steps decide nothing on the host, so that a CUDA graph can replay them. Checked on the CPU.

Every operator of a step is seen, forward and backward: none may read a tensor's values on the
host, make a tensor of a shape that depends on values, copy from the host, or draw from a generator
of its own. Optimisers are left out: on a GPU they run in a form of their own. A copy that is
only made between two devices cannot be seen here.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

import atomsep
from atomsep.experiments.gan import build
from atomsep.experiments.gan.classifier import Classifier
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.randomness import seed_step
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.task import Context, Task

WAIT = {
    *("aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"),
    *("aten::nonzero", "aten::masked_select", "aten::bincount", "aten::repeat_interleave"),
    *("aten::_unique2", "aten::unique_dim", "aten::unique_consecutive"),
    "aten::lift_fresh",  # torch.tensor of Python's numbers
}
"""Operators for which a GPU is waited for, or that copy from the host's memory."""

SELECT = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


class HostWork(TorchDispatchMode):
    """Notes operators that cannot be captured, and where the package called them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.optimising = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, given = func._schema.name, [*args, *(kwargs or {}).values()]
        drawn = any(isinstance(each, torch.Generator) for each in given)
        by_mask = name in SELECT and any(
            each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1]
        )
        if name in WAIT or drawn or by_mask:
            self.note(name)
        return func(*args, **(kwargs or {}))

    def noting(self, name: str) -> Callable[[Tensor], Any]:
        call = getattr(Tensor, name)

        def read(tensor: Tensor) -> Any:
            self.note(name)
            return call(tensor)

        return read

    def note(self, name: str) -> None:
        calls = [call for call in traceback.extract_stack() if HOME in call.filename]
        if not self.optimising and calls[-1].name not in ON_THE_CPU:
            self.found.append(f"{name} in line {calls[-1].lineno} of {calls[-1].filename}")


ON_THE_CPU = ("count_real", "_read")
"""Functions that look at values where no GPU is waited for: empty masks, and warnings."""

HOME = str(Path(atomsep.__file__).parent)


@contextmanager
def host_work() -> Iterator[list[str]]:
    """What a block does on the host, outside of optimisers."""
    with HostWork() as mode, pytest.MonkeyPatch.context() as patch:
        # Transformers looks at masks on the host, unless a graph is captured.
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        for name in ("tolist", "numpy"):  # which are no operators
            patch.setattr(Tensor, name, mode.noting(name))

        def optimise(on: bool) -> None:
            mode.optimising = on

        hooks = [
            register_optimizer_step_pre_hook(lambda *_: optimise(True)),
            register_optimizer_step_post_hook(lambda *_: optimise(False)),
        ]
        try:
            yield mode.found
        finally:
            for hook in hooks:
                hook.remove()


def make_task(name: str, method: str, folder: Path, *changes: str) -> Task:
    experiment = find_experiment(name)
    settings = run_key(experiment, method, 0, changes, tiny=True).settings
    fabric = make_fabric(Machine(device="cpu"), settings.precision)
    seed_step(0, "initial weights")
    return experiment.build(Context(settings, method, 0, fabric, folder, tiny=True))


def second_step(task: Any, compute: Callable[[Any], Any]) -> list[str]:
    """What the second step does on the host; the first one prepares, as before a capture."""
    assert task.on_layer.method is None or task.on_layer.method.capturable
    task.on_layer.watch(True)  # as with graph=true
    batches = iter(task.batches(0, 0))
    task.step(next(batches), 0.0)
    batch = next(batches)
    with host_work() as found:
        compute(batch)
    return found


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacked digits are read by a classifier that was not trained, which takes long."""
    monkeypatch.setattr(build, "classifier", lambda *_, **__: Classifier(10))


QUICK = "features=torch.nn:Identity"  # which are not asked for here
GAN = ("sscl", "vq", "koleo", "vicreg", "mode-seeking", "atom-no-energy")
CASES = [
    *(("synthetic", each) for each in find_experiment("synthetic").methods),
    *(("mnist-gan", each, QUICK, "r1=1") for each in ("plain", "atom")),
    *(("mnist-gan", each, QUICK) for each in ("plain", "atom", *GAN)),
    *(("stacked-mnist-gan", each) for each in ("plain", "atom")),
    ("faces-gan", "atom", QUICK),
    *(("flowers", each) for each in ("plain", "atom", "simclr", "hinge-2", "rank-h")),
    *(("cola", each) for each in ("plain", "atom", "simcse", "mixcse", "vicreg")),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case[:2]))
def test_a_step_decides_nothing_on_the_host(
    case: tuple[str, ...], untrained: None, tmp_path: Path
) -> None:
    name, method, *changes = case
    task: Any = make_task(name, method, tmp_path, *changes)
    assert second_step(task, task.compute) == []
    if name == "faces-gan":
        assert second_step(task, partial(task.compute, penalised=True)) == []


PLANTED: dict[str, Callable[[Tensor], Any]] = {
    "aten::_local_scalar_dense": lambda logits: logits.sum().item(),
    "aten::index": lambda logits: logits[logits > 0],
    "aten::nonzero": lambda logits: logits.nonzero(),
    "aten::masked_select": lambda logits: logits.masked_select(logits > 0),
    "aten::_unique2": lambda logits: logits.unique(),
    "aten::randn": lambda logits: torch.randn(3, generator=torch.Generator()),
    "tolist": lambda logits: logits.tolist(),
    "numpy": lambda logits: logits.numpy(),
    "aten::lift_fresh": lambda logits: torch.tensor([1.0, 2.0]),
}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("operator", PLANTED)
def test_a_decision_on_the_host_is_found(operator: str, backward: bool, tmp_path: Path) -> None:
    """In the model's forward, and in a gradient's hook."""
    task: Any = make_task("synthetic", "atom", tmp_path)

    def decide(values: Tensor) -> None:
        PLANTED[operator](values.detach())

    def plant(module: nn.Module, args: Any, logits: Tensor) -> None:
        if backward:
            logits.register_hook(decide)
        else:
            decide(logits)

    task.inner.register_forward_hook(plant)
    [found] = second_step(task, task.compute)
    assert found.startswith(f"{operator} in line ")
