"""Every table of a mixed set of results, to the letter.

`tables.txt` holds the expected text. A change in it is a change that users see.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from atomsep.experiments.registry import EXPERIMENTS, run_key
from atomsep.report.tables import build_tables

EXPECTED = Path(__file__).parent / "tables.txt"


def mixed_results() -> list[dict[str, Any]]:
    """Most experiments, with changed settings, missing seeds and unknown names among them."""
    found: list[dict[str, Any]] = []
    value = count(1)

    def add(name: str, methods: str, seeds: int, *changes: str, **metrics: float) -> None:
        experiment = EXPERIMENTS[name]
        for seed in range(seeds):
            for method in methods.split():
                tiny = "tiny" in changes
                own = [change for change in changes if change != "tiny"]
                key = run_key(experiment, method, seed, own, tiny=tiny)
                shift = (next(value) * 7 % 11) / 1000
                scores = {metric: base + shift for metric, base in metrics.items()}
                record = {**key.record(), "settings": asdict(key.settings), "metrics": scores}
                found.append(record)

    add("own-text", "atom plain", 2, accuracy=0.8, mcc=0.5, f1=0.7)
    add("synthetic", "atom-no-occupancy simclr plain atom hinge-1", 3, accuracy=0.9)
    add("synthetic", "plain atom atom-no-neutrality", 2, "tiny", accuracy=0.6)
    add("mnist-gan", "vq sscl plain atom atom-no-constraints", 2, fid=88.0, precision=0.5)
    add("mnist-gan", "plain atom", 2, "features=classifier", frechet_classifier=120.0, recall=0.3)
    add("flowers", "plain atom hinge-2", 3, top1=0.56, top5=0.8, entropy=1.2)
    add("flowers", "plain rank-h", 2, "epochs=3", "batch=32", top1=0.6)
    add("flowers", "atom", 2, "weight=7", "method.neutrality=0.5", top1=0.5)
    add("imagenet", "plain atom", 1, "augmentation=crop-flip-colour", top1=0.7, top5=0.9)
    add("imagenet", "plain atom", 1, "folder=some_folder", top1=0.7, top5=0.9)
    add("cola", "plain simcse mixcse", 2, "max_length=64", mcc=0.6, accuracy=0.8)
    add("poem", "atom", 1, f1=0.6, f1_micro=0.7)
    found = [
        r for r in found if (r["experiment"], r["method"], r["seed"]) != ("flowers", "atom", 1)
    ]
    gone = {"experiment": "gone | away", "tiny": False, "validation": False, "settings": {"x": 1}}
    found += [{**gone, "method": m, "seed": 0, "metrics": {"score": 2.5}} for m in ("plain", "new")]
    found.append({**found[0], "validation": True, "metrics": {"accuracy": 0.0}})
    return found


def written() -> str:
    texts = [
        getattr(table, form)()
        for table in build_tables(mixed_results())
        for form in ("markdown", "latex", "csv")
    ]
    return "\n".join(texts)


def test_every_table_reads_as_before() -> None:
    assert written() == EXPECTED.read_text()
