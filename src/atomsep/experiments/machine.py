"""Where and how a run is computed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from atomsep.experiments.errors import ExperimentError

if TYPE_CHECKING:
    from lightning.fabric import Fabric

DEVICES = ("auto", "cpu", "cuda", "mps")


@dataclass(frozen=True)
class Machine:
    """Where and how to run. The result does not depend on it, except for rounding.

    Raises:
        ExperimentError: there is no such kind of device.
    """

    device: str = "auto"
    devices: int = 1
    workers: int = 0
    data: Path = Path("data")
    download: bool = False
    checkpoint_seconds: float = 30.0
    tensorboard: bool = True

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ExperimentError(f"--device must be auto, cpu, cuda or mps, not {self.device!r}")


def make_fabric(machine: Machine, precision: str) -> Fabric:
    """Device, precision and processes.

    Raises:
        ExperimentError: the machine does not have such a device, or not as many.
    """
    import torch
    from lightning.fabric import Fabric

    device, have = machine.device, torch.cuda.device_count()
    if device == "cuda" and have == 0:
        raise ExperimentError("--device cuda: torch sees no GPU; try --device cpu")
    if device in ("auto", "cuda") and 0 < have < machine.devices:
        raise ExperimentError(f"--devices {machine.devices}: torch sees only {have} of them")
    if device == "mps" and not torch.backends.mps.is_available():
        raise ExperimentError("--device mps: torch has no MPS device here; try --device cpu")
    fabric = Fabric(
        accelerator=device,
        devices=machine.devices,
        precision=precision,  # type: ignore[arg-type]
        strategy="ddp" if machine.devices > 1 else "auto",
    )
    if machine.devices > 1:
        fabric.launch()
    return fabric
