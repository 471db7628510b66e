"""Speaks a worker's protocol without training, so that it starts at once.

The seed says what becomes of a trial: 1 fails, 2 kills the process, 3 waits for the end of its
input, 7 loses the server of MPS the first LOSSES times (by default never), all others finish.
Prints the trial's start and end to the file in TRACE.

From seed 10 on, trials take as many units of memory as their number of epochs, of the ROOM units
that all workers share. A file per worker says what it holds.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path


def answer(**message: object) -> None:
    print(json.dumps(message), flush=True)


def trace(word: str, key: dict[str, object]) -> None:
    with open(os.environ["TRACE"], "a") as file:
        file.write(f"{word} {key['method']} {key['seed']} {os.getpid()}\n")


def share_memory(need: int) -> bool:
    """Hold memory for a while, and measure it; returns whether there was enough."""
    folder, room = Path(os.environ["TRACE"]).parent / "memory", int(os.environ["ROOM"])
    folder.mkdir(exist_ok=True)
    held = folder / str(os.getpid())
    time.sleep(0.05)
    for taken in (need, 0):
        held.write_text(str(taken))
        free = room - sum(int(file.read_text() or 0) for file in folder.iterdir())
        if free < 0:
            held.write_text("0")
            answer(memory={"host": [need, 0, free + need]}, evaluated=False)
            return False
        answer(memory={"host": [need, taken, free]}, evaluated=True)
        time.sleep(0.1 if taken else 0)
    return True


def loses(key: dict[str, object]) -> bool:
    """Whether this attempt at a trial is one that loses the server."""
    time.sleep(0.3)  # other workers are idle by then
    begins = [
        line for line in Path(os.environ["TRACE"]).read_text().splitlines() if "begins" in line
    ]
    tried = sum(line.startswith(f"begins {key['method']} {key['seed']} ") for line in begins)
    return tried <= int(os.environ.get("LOSSES", "0"))


def main() -> None:
    if "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        with open(os.environ["TRACE"], "a") as file:
            file.write(f"pipes {os.environ['CUDA_MPS_PIPE_DIRECTORY']}\n")
    answer(ready=True)
    for line in sys.stdin:
        trial = json.loads(line)
        key = trial["key"]
        trace("begins", key)
        if trial["machine"]["download"]:
            time.sleep(0.3)
        trace("trains", key)
        answer(done=0, total=4)
        answer(done=1, total=4)
        if key["seed"] >= 10 and not share_memory(key["settings"]["epochs"]):
            trace("lacks", key)
            answer(crowded="out of memory")
        elif key["seed"] == 7 and loses(key):
            answer(lost="no server")
            return
        elif key["seed"] == 1:
            answer(failed="out of luck")
        elif key["seed"] == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        elif key["seed"] == 3:
            sys.stdin.read()
            answer(stopped="in epoch 1")
        else:
            settings = {**key["settings"], "evaluate_every": 0}  # which changes no result
            text = json.dumps(settings, sort_keys=True).encode()
            digest = hashlib.blake2b(text, digest_size=4).hexdigest()
            folder = Path(trial["root"], "synthetic-tiny", f"{key['method']}-{digest}")
            folder = folder / f"seed-{key['seed']}"
            folder.mkdir(parents=True)
            (folder / "result.json").write_text(json.dumps({**key, "metrics": {"accuracy": 0.5}}))
            trace("ends", key)
            answer(finished=True)


if __name__ == "__main__":
    main()
