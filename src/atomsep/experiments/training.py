"""Trains one run, or reads its result if it is finished."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from atomsep.experiments.entry_points import IMPORTED
from atomsep.experiments.errors import layer_errors
from atomsep.experiments.files import CONTINUES, write_text
from atomsep.experiments.loop import Loop
from atomsep.experiments.machine import Machine, make_fabric, same_threads
from atomsep.experiments.progress import Listener
from atomsep.experiments.provenance import provenance
from atomsep.experiments.randomness import seed_step
from atomsep.experiments.runs import Run, RunKey
from atomsep.experiments.task import Context, Experiment


def train(
    experiment: Experiment,
    key: RunKey,
    root: Path,
    machine: Machine | None = None,
    listener: Listener | None = None,
) -> dict[str, Any]:
    """Train one run to its end, or read its result if it is finished.

    Args:
        experiment: the experiment that the key names.
        key: method, seed and settings.
        root: the folder of all runs.
        machine: where to run.
        listener: receives the progress.

    Returns:
        The result, as in `result.json`.

    Raises:
        ExperimentError: the run cannot start or continue.
        StoppedError: it was interrupted, and its checkpoint is on disk.
    """
    machine, listener = machine or Machine(), listener or Listener()
    run = Run(key.folder(root))
    result = run.read_result()
    if result is not None:
        return result
    fabric = make_fabric(machine, key.settings.precision)
    devices = [fabric.device] if fabric.device.type == "cuda" else []
    with (
        run.locked() if fabric.is_global_zero else nullcontext(),
        torch.random.fork_rng(devices=devices),
        same_threads(),
        layer_errors(),
    ):
        # Another process may have finished the run before this one got the lock.
        result = fabric.broadcast(run.read_result() if fabric.is_global_zero else None)
        if result is not None:
            return result
        seed_step(key.seed, "initial weights")
        task = experiment.build(
            Context(
                *(key.settings, key.method, key.seed, fabric, machine.data),
                download=machine.download,
                tiny=key.tiny,
                validation=key.validation,
                workers=machine.workers,
                folder=run.folder,
                data_on=machine.data_on,
                listener=listener,
            )
        )
        about = {**key.record(), **task.describe(), "imports": list(IMPORTED), **provenance()}
        if fabric.is_global_zero:
            write_text(run.config, json.dumps(about, indent=2) + "\n", then=CONTINUES)
        return Loop(task, key, run, fabric, machine, listener, about).run_to_end()
