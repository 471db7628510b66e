"""Real processes for tests that kill or starve one, with the imports paid for once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["lightning.fabric", "atomsep.experiments.training"])


def start(function: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Run a module's function in a process of its own."""
    process = _SERVER.Process(target=function, args=arguments)
    process.start()
    return process
