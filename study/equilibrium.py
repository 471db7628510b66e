"""Do trained distances follow Theorem 2? Measured on runs of the Gaussian mixtures.

    python -m study.equilibrium RUNS/synthetic/atom-DIGEST/seed-*

The theorem gives pairs of opposite net charge a distance at which they neither attract nor repel.
For 500 test samples of every run this compares it with the distance that the pair has.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean

import torch
from scipy.stats import spearmanr

from atomsep import load_run
from atomsep.experiments.randomness import generator
from atomsep.experiments.synthetic.mixtures import draw
from atomsep.functional import atomic_distance, equilibrium_distance, form_atoms
from atomsep.report.numbers import interval_text, signed

SAMPLES = 500
FILE = Path(__file__).parent / "results" / "equilibrium.json"

Found = dict[str, float]


@torch.no_grad()
def measure(folder: Path) -> Found:
    """One run: how many pairs have an equilibrium, and how it relates to their distance."""
    run = load_run(folder)
    values = draw(SAMPLES, generator(run.seed, "test samples")).values
    latents: list[torch.Tensor] = []
    handle = run.model.get_submodule(run.settings.layer).register_forward_hook(
        lambda module, args, output: latents.append(output)
    )
    run.model(values)
    handle.remove()
    return compare(form_atoms(latents[0].double()))


def compare(atoms: object) -> Found:
    """All pairs of some atoms."""
    first, second = torch.triu_indices(*(len(atoms.radius),) * 2, offset=1)  # type: ignore[attr-defined]
    distance = atomic_distance(atoms)[first, second]  # type: ignore[arg-type]
    wanted = equilibrium_distance(atoms)[first, second]  # type: ignore[arg-type]
    finite = wanted.isfinite()
    shorter = (distance < wanted)[finite].double()
    rank = spearmanr(distance[finite], wanted[finite]).statistic if finite.sum() > 2 else 0.0
    return {
        "pairs with an equilibrium": float(finite.double().mean()),
        "of these, closer than it": float(shorter.mean()) if len(shorter) else 0.0,
        "rank correlation of distance and equilibrium": float(rank),
    }


def table_rows() -> list[list[str]]:
    """Lines of a table: each quantity, its mean over the runs, and its range."""
    found: list[Found] = json.loads(FILE.read_text()) if FILE.exists() else []
    lines = [["of all pairs of 500 samples", "mean over runs", "range", "runs"]]
    for name in found[0] if found else ():
        each = [one[name] for one in found]
        span = interval_text(min(each), max(each)).replace("+", "")
        lines.append([name, signed(fmean(each)).replace("+", ""), span, str(len(each))])
    return lines


def main() -> None:
    """Measure the runs of the command line and keep what came out."""
    parser = argparse.ArgumentParser(prog="python -m study.equilibrium", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    found = [measure(folder) for folder in parser.parse_args().runs]
    FILE.write_text(json.dumps(found, indent=1) + "\n")
    for line in table_rows():
        print(*line, sep=" | ")


if __name__ == "__main__":
    main()
