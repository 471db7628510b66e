"""Where a result comes from: versions, commit and machine, recorded with every run."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from atomsep import __version__

LIBRARIES = (
    *("torch", "torchvision", "transformers", "lightning", "torchmetrics"),
    *("torch-fidelity", "numpy"),
)


def provenance() -> dict[str, Any]:
    """Versions, the commit and the machine."""
    versions = {"python": platform.python_version(), "atomsep": __version__}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    machine = {
        "system": platform.platform(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        machine["gpu"] = torch.cuda.get_device_name()
    return {"versions": versions, "commit": commit(), "machine": machine}


def commit() -> str | None:
    """The git commit of atomsep's source, with "+" if it was changed; None outside git."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        # Without locks, so that a run never gets in the way of the user's own git.
        command = ["git", "--no-optional-locks", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", str(here.parent))
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor()
