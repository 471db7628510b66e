"""The short launch: taken where it is safe, with the addresses of this call, and nowhere else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atomsep.core.kernels import launch


class Kernel:
    """Stands for a kernel of Triton and what it compiles, and notes every launch."""

    arg_names = ("first", "second", "factor", "size", "BLOCK")
    function, packed_metadata = "function", "metadata"

    def __init__(self) -> None:
        self.ordinary: list[tuple[Any, ...]] = []
        self.short: list[tuple[Any, ...]] = []
        self.refuses = False

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def start(*arguments: Any, **options: Any) -> Kernel:
            assert options == {"num_warps": 4, "enable_fp_fusion": True}
            self.ordinary.append((grid, *arguments))
            return self

        return start

    def run(self, *arguments: Any) -> None:
        if self.refuses:
            raise TypeError("other arguments")
        self.short.append(arguments)


def at(address: int) -> Any:
    return SimpleNamespace(data_ptr=lambda: address)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    active = SimpleNamespace(get_current_stream=lambda index: f"stream of {index}")
    hook = SimpleNamespace(calls=[])
    stub = SimpleNamespace(
        runtime=SimpleNamespace(driver=SimpleNamespace(active=active)),
        knobs=SimpleNamespace(runtime=SimpleNamespace(launch_enter_hook=hook)),
    )
    monkeypatch.setattr(launch, "triton", stub)
    return Kernel()


def make(kernel: Kernel, device: str = "cuda:1") -> launch.Launch:
    return launch.Launch(kernel, torch.device(device), (3,), (7,), 4, {"BLOCK": 64})


def test_only_addresses_and_floats_change(kernel: Kernel) -> None:
    start = make(kernel)
    first = at(16), None
    start(first, (0.5,))
    assert kernel.ordinary == [((3, 1, 1), *first, 0.5, 7, 64)]
    assert not kernel.short
    start((at(32), None), (0.25,))
    head = (3, 1, 1, "stream of 1", "function", "metadata", None, None, None)
    assert kernel.short == [(*head, 32, None, 0.25, 7, 64)]
    assert len(kernel.ordinary) == 1


def test_other_alignments_are_another_program(kernel: Kernel) -> None:
    start = make(kernel)
    start((at(16), at(36)), (1.0,))  # what is found for these is not kept
    start((at(16), at(32)), (1.0,))
    start((at(16), at(36)), (1.0,))
    assert len(kernel.ordinary) == 3
    start((at(16), at(48)), (1.0,))
    assert len(kernel.short) == 1


def test_a_profiler_sees_every_launch(kernel: Kernel) -> None:
    start = make(kernel)
    start((at(16), None), (1.0,))
    launch.triton.knobs.runtime.launch_enter_hook.calls.append(print)
    start((at(16), None), (1.0,))
    assert len(kernel.ordinary) == 2
    launch.triton.knobs.runtime.launch_enter_hook = None  # as older versions of Triton say it
    start((at(16), None), (1.0,))
    assert len(kernel.short) == 1


def test_ordinary_where_triton_changed(kernel: Kernel) -> None:
    start = make(kernel)
    kernel.refuses = True
    for _ in range(3):
        start((at(16), None), (1.0,))
    assert len(kernel.ordinary) == 3
    del Kernel.packed_metadata
    try:
        other = make(kernel)
        other((at(16), None), (1.0,))
        assert other.again is None
    finally:
        Kernel.packed_metadata = "metadata"


def test_ordinary_in_the_interpreter(kernel: Kernel) -> None:
    start = make(kernel, "cpu")
    for _ in range(2):
        start((at(16), None), (1.0,))
    assert len(kernel.ordinary) == 2
