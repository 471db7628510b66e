"""What the loss costs the host: launches and Python time of an attached step, on any machine.

    python -m benchmarks.host

Runs small models on the CPU as a GPU's host would, with every kernel launch replaced by one that
looks at its arguments and does nothing. The difference to the model alone is the host's work for
the loss, but for the launches themselves: a few microseconds each, which only a GPU can tell.
Prints a table and adds its rows to `results/host.csv`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import atomsep
from atomsep.core import kernels
from benchmarks import record


class Image(nn.Module):
    """A batch norm that is overwritten in place, as in DCGAN."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.BatchNorm2d(8)
        self.data = torch.randn(2, 8, 12, 12)

    def forward(self) -> Tensor:
        """One number."""
        return torch.relu_(self.layer(self.data)).sum()


class Text(nn.Module):
    """A layer that hands its output on, with a mask of padding, as in BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.data = torch.randn(2, 128, 8)
        self.mask = torch.ones(2, 128, dtype=torch.long)

    def forward(self) -> Tensor:
        """One number."""
        loss: Tensor = self.layer(self.data).square().sum()
        return loss


def best_us(run: Callable[[], object], times: int = 400, rounds: int = 15) -> float:
    """Microseconds of processor time a call, in the best of some rounds."""
    for _ in range(times):
        run()
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(times):
            run()
        best = min(best, (time.process_time() - start) / times)
    return 1e6 * best


def mask_of(model: nn.Module, *call: object) -> Tensor | None:
    """The mask of padding, if the model has one."""
    return getattr(model, "mask", None)


def train(model: nn.Module, loss: Callable[[], Tensor | int]) -> None:
    """Forward and backward."""
    (model() + loss()).backward()


def main() -> None:
    """Measure both models."""
    from atomsep.core.kernels.launch import Launch

    launched: list[object] = []

    def nothing(self: Launch, tensors: tuple[Tensor | None, ...], *floats: object) -> None:
        launched.append(self.kernel)
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        assert len(pointers) == len(tensors)

    kernels._INTERPRETED = True  # so that tensors on the CPU are taken
    Launch.__call__ = nothing  # type: ignore[method-assign, assignment]
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    for name, build in {"image, overwritten": Image, "text, masked": Text}.items():
        model = build()
        alone = best_us(partial(train, model, lambda: 0))
        mask = partial(mask_of, model)
        with (
            atomsep.use_kernels("triton"),
            atomsep.attach(model, "layer", weight=0.1, mask=mask) as attachment,
        ):

            def step(
                model: nn.Module = model, loss: Callable[[], Tensor] = attachment.loss
            ) -> None:
                (model() + loss()).backward()

            both = best_us(step)
            launched.clear()
            step()
        print(f"{name:20} {len(launched)} launches, {both - alone:6.1f} us of {both:6.1f} us")
        rows.append(
            {"case": name, "launches": len(launched), "us": round(both - alone, 1),
             "model_us": round(alone, 1)}
        )  # fmt: skip
    record.append("host", rows)


if __name__ == "__main__":
    main()
