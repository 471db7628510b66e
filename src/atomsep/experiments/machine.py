"""Where and how a run is computed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from atomsep.experiments.errors import ExperimentError

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@dataclass(frozen=True)
class Machine:
    """Where and how to run. It does not decide the result, but for rounding."""

    device: str = "auto"
    devices: int = 1
    workers: int = 0
    data: Path = Path("data")
    download: bool = False
    checkpoint_seconds: float = 30.0
    tensorboard: bool = True


def make_fabric(machine: Machine, precision: str) -> Fabric:
    """Device, precision and processes.

    Raises:
        ExperimentError: a GPU was asked for, and there is none.
    """
    device = machine.device
    if device not in ("auto", "cpu", "cuda", "mps"):
        raise ExperimentError(f"--device must be auto, cpu, cuda or mps, not {device!r}")
    have = torch.cuda.device_count()
    if device == "cuda" and have == 0:
        raise ExperimentError(
            "--device cuda was asked for, but torch sees no GPU; try --device cpu"
        )
    if device == "cuda" and machine.devices > have:
        raise ExperimentError(
            f"--devices {machine.devices} were asked for, but torch sees {have} of them"
        )
    from lightning.fabric import Fabric

    fabric = Fabric(
        accelerator=device,
        devices=machine.devices,
        precision=precision,  # type: ignore[arg-type]
        strategy="ddp" if machine.devices > 1 else "auto",
    )
    if machine.devices > 1:
        fabric.launch()
    return fabric
