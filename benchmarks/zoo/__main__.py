"""Attach to models that nobody here wrote, and compare every gradient with one taken by hand.

    python -m benchmarks.zoo                    # everything that is not in the table yet
    python -m benchmarks.zoo --only 'timm:*'    # some of it
    python -m benchmarks.zoo --again            # repeat the models that were not exact
    python -m benchmarks.zoo --page             # only write docs/models.md from the table

The models are chosen by a rule: every classification builder of torchvision, the smallest model of
every timm family, every text, vision and audio family of transformers with a tiny configuration,
and the UNets, transformers and autoencoders of diffusers. Three layers each: the one that
`atomsep.layers` recommends, one in the middle, and the last with tokens. Each model runs in a
process of its own with a time limit. Rows go to `results/zoo.csv` as they come, and a model that
has rows is not repeated.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import signal
import time
from fnmatch import fnmatchcase
from importlib import import_module
from multiprocessing.connection import Connection
from zlib import crc32

import torch

from benchmarks.zoo import page, table
from benchmarks.zoo.cases import Case, all_cases, rows_of

LIMIT, PATIENCE = 60, 600.0
"""Seconds of the processor that a model may take, and seconds of the clock."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="*", help="a pattern of LIBRARY:FAMILY")
    parser.add_argument("--again", action="store_true", help="repeat what was not exact")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    if not options.page:
        run(options.only, options.again)
    print(f"wrote {page.write()}")


def run(only: str, again: bool) -> None:
    torch.set_num_threads(1)
    known = table.read()
    chosen = all_cases()
    table.write_chosen(chosen)
    cases = [case for case in chosen if fnmatchcase(case.key, only)]
    done = {(row["library"], row["model"]) for row in known}
    if again:
        done -= {(r["library"], r["model"]) for r in known if r["outcome"] != "exact"}
    cases.sort(key=lambda case: crc32(case.model.encode()))  # mixed: what is slow is spread out
    waiting = [case for case in cases if (case.library, case.model) not in done]
    print(f"{len(cases)} models, {len(waiting)} to run", flush=True)
    import_first({case.library for case in waiting})
    began = time.monotonic()
    for number, case in enumerate(waiting, 1):
        rows = run_apart(case)
        table.replace(case, rows)
        said = ", ".join(f"{row.get('place', '')} {row['outcome']}" for row in rows)
        minutes = (time.monotonic() - began) / 60
        print(
            f"[{number}/{len(waiting)}, {minutes:.1f} min] {case.key} {case.model}: {said}",
            flush=True,
        )


def import_first(libraries: set[str]) -> None:
    """Import what most models need, once and not in each of their processes."""
    names = ["atomsep.hooks.attaching", "atomsep.hooks.layers", "scipy.optimize"]
    if "transformers" in libraries:
        families = ("bert", "llama", "vit", "wav2vec2", "t5", "auto")
        names += [f"transformers.models.{family}.modeling_{family}" for family in families]
    for name in names:
        import_module(name)


def run_apart(case: Case) -> list[dict[str, str]]:
    """The rows of a model, from a process that may crash or hang."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send_rows, args=(case, there), daemon=True)
    process.start()
    there.close()
    rows: list[dict[str, str]] = []
    deadline = time.monotonic() + PATIENCE
    try:
        while here.poll(max(0.0, deadline - time.monotonic())):
            rows.append(here.recv())
    except EOFError:
        process.join()
        if process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL):
            rows.append(case.row(outcome="timed out", message=f"after {LIMIT} s of the processor"))
        elif process.exitcode:
            rows.append(case.row(outcome="crashed", message=f"exit code {process.exitcode}"))
    else:
        process.kill()
        process.join()
        rows.append(case.row(outcome="timed out", message=f"after {PATIENCE:.0f} s"))
    return rows


def _send_rows(case: Case, connection: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT + 5))
    try:
        for row in rows_of(case):
            connection.send(row)
    except Exception as error:  # of the model, between the steps that are compared
        connection.send(case.row(outcome="not built", message=f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    main()
