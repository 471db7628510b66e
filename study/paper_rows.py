"""The rows of the paper's tables beside the study's: which of them hold."""

from __future__ import annotations

from typing import NamedTuple

from atomsep.report import paper
from atomsep.report.numbers import signed
from study.overview import Shown, answer, shown
from study.questions import Arm
from study.tables import NARROW, markdown, name_of
from study.tasks import TASKS


class PaperRow(NamedTuple):
    """An experiment of the paper, its metric there, and the study's nearest comparison."""

    title: str
    experiment: str
    metric: str
    here: Shown | None


CALIBRATED = Arm("atom-calibrated", 0.1)
ROWS = (
    PaperRow(
        *("Gaussian mixtures, accuracy, %", "synthetic", "accuracy"),
        Shown("paper", "demo", Arm("atom", 12.5)),
    ),
    PaperRow(
        *("DCGAN on MNIST, FID", "mnist-gan", "fid"),
        Shown("example", "example-mnist", Arm("atom", 10.0)),
    ),
    PaperRow(
        *("DCGAN on CIFAR-10, FID", "cifar10-gan", "fid"),
        Shown("gans", "small-cifar10", CALIBRATED),
    ),
    PaperRow(
        *("StyleSwin on CelebA-HQ, FID", "faces-gan", "ema_fid"),
        Shown("gans", "faces", CALIBRATED),
    ),
    PaperRow(
        *("Pets, top-1, %", "pets", "top1"), Shown("classifiers", "pets-10", Arm("atom", 0.2))
    ),
    PaperRow(
        *("Flowers, top-1, %", "flowers", "top1"),
        Shown("strength", "flowers", Arm("atom", 0.2)),
    ),
    PaperRow("ResNet-50 on ImageNet, top-1, %", "imagenet", "top1", None),
    PaperRow(*("CoLA, MCC", "cola", "mcc"), Shown("text", "cola", Arm("atom", 0.01))),
    PaperRow(*("Poem, F1", "poem", "f1"), Shown("text", "poem", Arm("atom", 0.01))),
)


def paper_rows() -> str:
    """What the paper reports, and what was found here on the nearest task."""
    lines = [["row of the paper", "its figures", "nearest task here", "arm", "gain, %", "answer"]]
    gains = shown([row.here for row in ROWS if row.here])
    for row in ROWS:
        plain, atom = (paper.result(row.experiment, row.metric, m) for m in ("plain", "atom"))
        figures = f"{plain:g} to {atom:g}" if plain is not None else f"{atom:g}"
        gain = gains.get(row.here) if row.here else None
        if row.here is None or gain is None:
            lines.append([row.title, figures, "not run", "", "", "open"])
            continue
        interval = f"{signed(gain.low, 1)} to {signed(gain.high, 1)}"
        cells = [TASKS[row.here.task].title, name_of(row.here.arm)]
        cells += [f"{signed(gain.mean, 1)} ({interval})", answer(gain).replace(" ", NARROW)]
        lines.append([row.title, figures, *cells])
    return markdown(lines)
