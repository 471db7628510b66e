"""Nothing that a step across ranks does makes the host wait for a GPU; fake tensors show it.

A fake CUDA tensor has no values, so whoever asks for one fails. The engine of autograd cannot
reach a device that is not there, so backward passes are on fake CPU tensors, which the hosts may
not read either. Kernels are not launched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.torch_version import TorchVersion
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import atomsep.core.loss as losses
from atomsep import AtomLoss, attach, use_kernels
from atomsep.core import backend, distributed, drawing, kernels
from atomsep.core.kernels import forward, launch, pairs
from atomsep.hooks.watch import Watch

SIZES = [3, 5, 0, 4]
RANK = 1


class Waits(TorchDispatchMode):
    """Counts operators, and notes copies between host and device that wait.

    A number of the host (a tensor without axes) is handed to a kernel by value.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operators: Counter[str] = Counter()
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        self.operators[name] += 1
        result = func(*args, **kwargs)
        tensors = [each for each in tree_leaves((args, kwargs, result)) if isinstance(each, Tensor)]
        copies = name in ("aten::copy_", "aten::_to_copy")
        if copies and len({tensor.device.type for tensor in tensors}) > 1:
            asynchronous = kwargs.get("non_blocking") or args[2:] == (True,)
            if not asynchronous:
                self.waits.append(name)
        return result

    @property
    def exchanges(self) -> int:
        """How many collectives there were."""
        return sum(count for name, count in self.operators.items() if name.startswith("c10d::"))


class Hosts:
    """Stands for the hosts' exchange: no rank has more than this one."""

    def __init__(self) -> None:
        self.calls = 0
        self.launches: list[object] = []

    def largest(self, hosts: Any, numbers: list[int]) -> list[int]:
        assert hosts is self
        self.calls += 1
        return numbers


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """One of four ranks, whose collectives exchange nothing."""
    if TorchVersion(torch.__version__) < (2, 7):
        pytest.skip("PyTorch 2.6 has no fake collectives")
    found = Hosts()
    dist.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=len(SIZES))
    monkeypatch.setattr(distributed, "_at_hand", lambda device: False)
    monkeypatch.setattr(distributed, "compare", lambda *_: (1, SIZES))  # at the first loss only
    monkeypatch.setattr(distributed, "connect_hosts", lambda group: found)
    monkeypatch.setattr(distributed, "largest_of_hosts", found.largest)
    monkeypatch.setattr(losses, "checksum", lambda parameters: 0)  # at the first loss only
    monkeypatch.setattr(Watch, "look", lambda *_: None)  # asks events, and never waits for them
    # A generator of a GPU cannot be made without one.
    for module in (losses, drawing):
        monkeypatch.setattr(module, "generator_of", lambda *_: None)
    monkeypatch.setattr(kernels, "_INTERPRETED", False)
    monkeypatch.setattr(launch.Launch, "__call__", lambda self, *_: found.launches.append(self))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for module in (forward, pairs):
        monkeypatch.setattr(module, "on", lambda device: launch._NOTHING)
    yield found
    dist.destroy_process_group()


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "1-norm": {"norm": 1},
    "sampled pairs": {"pairs": "sampled"},
    "sampled tokens": {"tokens": 3},
    "constraints alone": {"energy": 0.0},
    "learned maps": {"maps": True},
}


def make(case: str, device: str) -> tuple[nn.Module, Any]:
    model = nn.Sequential(nn.Linear(3, 8, device=device), nn.Tanh(), nn.Linear(8, 2, device=device))
    given = dict(CASES[case])
    if given.pop("maps", False):
        given |= {"charge": nn.Linear(8, 1, device=device)}
        given |= {"position": nn.Linear(8, 4, device=device)}
    return model, attach(model, "0", AtomLoss(**given), weight=0.2, watch_gradients=device == "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a real GPU is traced instead")
@pytest.mark.parametrize("mode", ["torch", "auto"])
@pytest.mark.parametrize("case", CASES)
def test_a_forward_and_its_loss_do_not_wait_for_a_gpu(hosts: Hosts, case: str, mode: str) -> None:
    with FakeTensorMode(), use_kernels(mode):
        model, attachment = make(case, "cuda")
        for samples in (5, 5, 3, 0, 7, 7):  # fewer, none, and more than the blocks held at first
            hosts.calls = 0
            hosts.launches.clear()
            with Waits() as seen:
                model(torch.randn(samples, 7, 3, device="cuda"))
                loss = attachment.loss()
            assert loss.device.type == "cuda"
            assert seen.waits == []
            assert seen.exchanges == (1 if case == "sampled pairs" else 2)
            assert hosts.calls == 1
            assert bool(hosts.launches) == (mode == "auto" and kernels._FOUND and samples > 0)
    assert not backend.guarded.failure


@pytest.mark.parametrize("case", CASES)
def test_a_whole_step_reads_no_value(hosts: Hosts, case: str) -> None:
    with FakeTensorMode(), use_kernels("torch"):
        model, attachment = make(case, "cpu")
        parameters = [*model.parameters(), *attachment.parameters()]
        optimiser = torch.optim.SGD(parameters, lr=0.1)
        for samples in (5, 3, 0, 7):
            with Waits() as seen:
                task = model(torch.randn(samples, 7, 3)).square().sum()
                optimiser.zero_grad()
                (task + attachment.loss()).backward()
                optimiser.step()
            of_maps = len(list(attachment.parameters()))
            assert seen.exchanges == of_maps + (1 if case == "sampled pairs" else 2)
            assert all(parameter.grad is not None for parameter in parameters)


def test_reads_and_copies_would_be_seen(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is noticed: reads of values, sizes that depend on them, copies either way."""
    device = "cpu" if torch.cuda.is_available() else "cuda"
    with FakeTensorMode():
        x = torch.randn(3, device=device)
        for read in (x.sum().item, x.sum().__bool__, x.tolist, x.nonzero, lambda: x[x > 0]):
            with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
                read()
        if device == "cuda":
            for copy in (x.cpu, lambda: torch.tensor([1.0], device=device)):
                with Waits() as seen:
                    copy()
                assert seen.waits
            with Waits() as seen:
                x.to("cpu", non_blocking=True)
            assert not seen.waits
        # As on the CPU, where the ranks look into the blocks.
        monkeypatch.setattr(distributed, "_at_hand", lambda device: True)
        model, attachment = make("plain", "cpu")
        with use_kernels("torch"):
            model(torch.randn(5, 7, 3))
            with pytest.raises(DataDependentOutputException):
                attachment.loss()
