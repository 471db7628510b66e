"""The short launch: taken where it is safe, with the tensors of this call, and nowhere else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atomsep.core.kernels import launch


class Program:
    """Stands for what Triton compiled, and notes every launch."""

    def __init__(self, launches: list[tuple[Any, ...]], refuses: bool) -> None:
        self.launches, self.refuses = launches, refuses

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def start(*arguments: Any) -> None:
            if self.refuses:
                raise TypeError("other arguments")
            self.launches.append((grid, *arguments))

        return start


class Kernel:
    """Stands for a kernel of Triton, and notes every launch that searches."""

    arg_names = ("first", "second", "factor", "size", "BLOCK")

    def __init__(self) -> None:
        self.ordinary: list[tuple[Any, ...]] = []
        self.short: list[tuple[Any, ...]] = []
        self.refuses = False

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def start(*arguments: Any, **options: Any) -> Program:
            assert options == {"num_warps": 4, "enable_fp_fusion": True}
            self.ordinary.append((grid, *arguments))
            return Program(self.short, self.refuses)

        return start


def at(address: int) -> Any:
    return SimpleNamespace(data_ptr=lambda: address)


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


def make(kernel: Kernel, device: str = "cuda:1") -> launch.Launch:
    return launch.Launch(kernel, torch.device(device), (3,), (7,), 4, {"BLOCK": 64})


def test_only_tensors_and_floats_change(kernel: Kernel) -> None:
    start = make(kernel)
    first, second = (at(16), None), (at(32), None)
    start(first, (0.5,))
    assert kernel.ordinary == [((3, 1, 1), *first, 0.5, 7, 64)]
    assert not kernel.short
    start(second, (0.25,))
    assert kernel.short == [((3, 1, 1), *second, 0.25, 7, 64)]
    assert len(kernel.ordinary) == 1


def test_other_alignments_are_another_program(kernel: Kernel) -> None:
    start = make(kernel)
    start((at(16), at(36)), (1.0,))  # what is found for these is not kept
    start((at(16), at(32)), (1.0,))
    start((at(16), at(36)), (1.0,))
    assert len(kernel.ordinary) == 3
    start((at(16), at(48)), (1.0,))
    assert len(kernel.short) == 1


def test_ordinary_where_triton_takes_other_arguments(kernel: Kernel) -> None:
    kernel.refuses = True
    start = make(kernel)
    for _ in range(3):
        start((at(16), None), (1.0,))
    assert len(kernel.ordinary) == 3
    assert not kernel.short


def test_ordinary_in_the_interpreter(kernel: Kernel) -> None:
    start = make(kernel, "cpu")
    for _ in range(2):
        start((at(16), None), (1.0,))
    assert len(kernel.ordinary) == 2
