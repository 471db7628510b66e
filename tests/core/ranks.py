"""Real processes in a gloo group, which run functions of the tests."""

from __future__ import annotations

import os
import socket
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


class Ranks:
    """Processes that wait for work; `run` has each of them call a function with its rank.

    Args:
        size: how many.
        timeout: seconds after which a collective gives up.
        tcp: whether the first of them hosts their store, which is a file otherwise.
    """

    def __init__(self, size: int, timeout: float = 60, tcp: bool = False) -> None:
        context = mp.get_context("spawn")
        self.folder = tempfile.TemporaryDirectory()
        store = Path(self.folder.name, "store").as_uri()
        if tcp:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                store = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self.pipes, self.processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, size, store, timeout, theirs), daemon=True
            )
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
        """What each rank's call returned; an exception as a text."""
        for pipe in self.pipes:
            pipe.send((function, arguments, options))
        return [self._receive(pipe) for pipe in self.pipes]

    def _receive(self, pipe: Connection) -> Any:
        try:
            return pipe.recv()
        except EOFError:
            return "died"

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
        self.folder.cleanup()


def _serve(rank: int, size: int, store: str, timeout: float, pipe: Connection) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=store,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
    )
    while True:
        try:
            function, arguments, options = pipe.recv()
        except EOFError:
            break
        try:
            pipe.send(function(rank, *arguments, **options))
        except Exception as error:
            traceback.print_exc()
            pipe.send(f"{type(error).__name__}: {error}")
    os._exit(0)  # without waiting for ranks that are gone
