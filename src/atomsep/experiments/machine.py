"""Where and how a run is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from atomsep.experiments.errors import ExperimentError

if TYPE_CHECKING:
    import torch
    from lightning.fabric import Fabric

DEVICES = ("auto", "cpu", "cuda", "mps")
PLACES = ("auto", "device", "host", "loader")

SHARE = 0.1
"""Share of the device's free memory that a data set may take unasked.

Several processes may share the device, and each needs room for its model: after a dozen of them,
each with its tenth of what the others left, a quarter of the memory is still free.
"""

MOST = 0.8
"""Share of the device's free memory that a data set may take if the user asks for it."""

T = TypeVar("T")


@dataclass(frozen=True)
class Machine:
    """Where and how to run. The result does not depend on it, except for rounding.

    Attributes:
        data_on: where the data is kept during training; see `place_for`. "loader": images are
            decoded again in every epoch.

    Raises:
        ExperimentError: there is no such kind of device, or no such place.
    """

    device: str = "auto"
    devices: int = 1
    workers: int = 0
    data: Path = Path("data")
    download: bool = False
    checkpoint_seconds: float = 30.0
    tensorboard: bool = True
    data_on: str = "auto"

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ExperimentError(f"--device must be auto, cpu, cuda or mps, not {self.device!r}")
        if self.data_on not in PLACES:
            raise ExperimentError(
                f"--data-on must be auto, device, host or loader, not {self.data_on!r}"
            )


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


@contextmanager
def same_threads() -> Iterator[None]:
    """Restore the number of threads at the end, whatever a task chose."""
    import torch

    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def place_for(size: int, wanted: str, device: torch.device) -> str:
    """Where a data set of `size` bytes is kept: "device", or "host" to send it batch by batch.

    Args:
        size: bytes of the data set.
        wanted: "auto", "device" or "host".
        device: the device of the training.

    Raises:
        ExperimentError: `wanted` is "device", and the data set would leave no room for a model.
    """
    if wanted == "host" or device.type == "cpu":  # the CPU's memory is both
        return "host" if wanted == "host" else "device"
    free = _free_memory(device)
    if size <= (MOST if wanted == "device" else SHARE) * free:
        return "device"
    if wanted == "device":
        raise ExperimentError(
            f"--data-on device: the data takes {size / 1e9:.1f} GB, and {device} has "
            f"{free / 1e9:.1f} GB left, of which a fifth must stay free for the model; use "
            f"--data-on host"
        )
    return "host"


def move_if_it_fits(
    move: Callable[[torch.device], T], size: int, wanted: str, device: torch.device
) -> tuple[T, str]:
    """Data on the device, or on the host if `place_for` says so or the device has no memory left.

    Another process may take the device's memory after `place_for` has looked.

    Args:
        move: moves the data to a device.
        size: bytes of the data.
        wanted: "auto", "device" or "host"; "loader", which only images know, counts as "auto".
        device: the device of the training.

    Returns:
        The data, and its place: "device" or "host".

    Raises:
        ExperimentError: `wanted` is "device", and the data does not fit.
        torch.OutOfMemoryError: the same, but only moving the data has shown it.
    """
    import torch

    wanted = "auto" if wanted == "loader" else wanted
    place = place_for(size, wanted, device)
    if place == "device":
        try:
            return move(device), place
        except torch.OutOfMemoryError:
            if wanted == "device":
                raise
    return move(torch.device("cpu")), "host"


def _free_memory(device: torch.device) -> int:
    import torch

    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return 0
