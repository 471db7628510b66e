"""Folders of finished runs, written by hand: everything in them is known."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from atomsep.experiments.atoms_file import Atoms, Token, write_atoms
from atomsep.experiments.registry import EXPERIMENTS, run_key

EVIL = "</script><script>document.title = 'owned'</script><b>"
"""Text that must stay text."""

CLASSES = ["rose", f"tulip {EVIL}", "lily"]

SENTENCES = ["The cat sat.", f"A dog {EVIL} ran."]


def write_run(
    root: Path,
    experiment: str,
    method: str,
    seed: int,
    metric: float,
    /,
    *,
    atoms: Atoms | None = None,
    classes: Any = None,
    tiny: bool = False,
    **more: Any,
) -> Path:
    """A finished run with curves over ten epochs; returns its folder."""
    known = EXPERIMENTS[experiment]
    key = run_key(known, method, seed, tiny=tiny)
    folder = key.folder(root)
    folder.mkdir(parents=True)
    result = {
        **key.record(),
        "settings": asdict(key.settings),
        "metrics": {known.metric: metric},
        "seconds": 2.0,
        "versions": {"torch": "2.9", "python": "3.11"},
        "commit": "0123abc",
        "classes": classes,
        **more,
    }
    (folder / "result.json").write_text(json.dumps(result))
    lines = [
        {
            "epoch": epoch,
            "step": 5 * epoch,
            "cross-entropy": 3 / epoch + seed / 10,
            **({} if method == "plain" else {"method": math.exp(-epoch)}),
            "metrics": {known.metric: metric * epoch / 10},
            "seconds": epoch,
        }
        for epoch in range(1, 11)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if atoms is not None:
        write_atoms(folder, atoms)
    return folder


def image_atoms(count: int = 6, rows: int = 3, columns: int = 5) -> Atoms:
    """Noise of 13 x 22 pixels, which tokens do not divide, with charges in tenths."""
    random = np.random.default_rng(0)
    charges = random.integers(-10, 11, (count, rows, columns)) / 10
    images = random.integers(0, 256, (count, 3, 13, 22), dtype=np.uint8)
    labels = np.arange(count) % 3
    predictions = np.where(np.arange(count) % 2, (labels + 1) % 3, labels)
    return Atoms(charges, labels, predictions, images)


def text_atoms() -> Atoms:
    """Two sentences, with a word in two pieces and special tokens around them."""
    tokens = []
    for sentence in SENTENCES:
        words, place = [Token("[CLS]", -1, 0, 0)], 0
        for number, word in enumerate(sentence.split(" ")):
            half = len(word) // 2
            for start, end in ((0, half), (half, len(word))) if half > 1 else ((0, len(word)),):
                words.append(Token(word[start:end].lower(), number, place + start, place + end))
            place += len(word) + 1
        tokens.append([*words, Token("[SEP]", -1, 0, 0)])
    lengths = np.array([len(each) for each in tokens])
    charges = np.random.default_rng(1).integers(-10, 11, (2, lengths.max())) / 10
    charges[np.arange(lengths.max()) >= lengths[:, None]] = 0
    return Atoms(
        charges,
        labels=np.array([0, 1]),
        predictions=np.array([0, 0]),
        sentences=SENTENCES,
        tokens=tokens,
        lengths=lengths,
    )


def write_runs(root: Path) -> None:
    """Flowers, where atom modeling is better; CoLA, with two seeds; mixtures in their tiny form."""
    for seed, noise in enumerate((0.001, 0.0, 0.002)):
        write_run(root, "flowers", "plain", seed, 0.56 + noise)
        atoms = image_atoms() if seed == 0 else None
        write_run(root, "flowers", "atom", seed, 0.59 - noise, atoms=atoms, classes=CLASSES)
        values = np.linspace(-2, 2, 10).reshape(2, 5)
        write_run(root, "synthetic", "plain", seed, 0.9, tiny=True)
        mixtures = Atoms(values / 2, np.array([0, 1]), np.array([0, 1]), values=values)
        write_run(root, "synthetic", "atom", seed, 0.9, tiny=True, atoms=mixtures)
    for seed in (0, 1):
        write_run(root, "cola", "plain", seed, 0.5)
        write_run(root, "cola", "atom", seed, 0.6, atoms=text_atoms(), classes=["no", "yes"])
