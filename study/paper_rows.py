"""The rows of the paper's tables beside the study's: which of them hold."""

from __future__ import annotations

from typing import NamedTuple

from atomsep.report import paper
from atomsep.report.numbers import signed
from study.gains import CALIBRATED, Gain, Shown, shown
from study.questions import Arm
from study.tables import markdown, name_of
from study.tasks import TASKS


class PaperRow(NamedTuple):
    """An experiment of the paper, its metric there, and the study's nearest comparison."""

    title: str
    experiment: str
    metric: str
    here: Shown | None


ROWS = (
    PaperRow(
        *("Gaussian mixtures, accuracy, %", "synthetic", "accuracy"),
        Shown("paper", "demo", Arm("atom", 12.5)),
    ),
    PaperRow(
        *("DCGAN on MNIST, FID", "mnist-gan", "fid"),
        Shown("example", "example-mnist", Arm("atom", 10.0), before=False),
    ),
    PaperRow(
        *("DCGAN on CIFAR-10, FID", "cifar10-gan", "fid"),
        Shown("gans", "small-cifar10", CALIBRATED),
    ),
    PaperRow("StyleSwin on CelebA-HQ, FID", "faces-gan", "ema_fid", None),
    PaperRow(
        *("Pets, top-1, %", "pets", "top1"), Shown("classifiers", "pets-10", Arm("atom", 0.2))
    ),
    PaperRow(
        *("Flowers, top-1, %", "flowers", "top1"),
        Shown("strength", "flowers", Arm("atom", 0.2), before=False),
    ),
    PaperRow("ResNet-50 on ImageNet, top-1, %", "imagenet", "top1", None),
    PaperRow(*("CoLA, MCC", "cola", "mcc"), Shown("text", "cola", Arm("atom", 0.01))),
    PaperRow(*("Poem, F1", "poem", "f1"), Shown("text", "poem", Arm("atom", 0.01))),
)


def as_large(claimed: float | None, gain: Gain) -> str:
    """Whether the interval of a gain holds the paper's gain, in per cent.

    Example:
        >>> gain = Gain(3.0, -5.0, 11.0, (), 0.4, 0.4)
        >>> as_large(12.0, gain), as_large(10.0, gain), as_large(None, gain)
        ('excluded', 'possible', '')
    """
    if claimed is None:
        return ""
    if gain.low > claimed:
        return "larger"
    return "excluded" if gain.high < claimed else "possible"


def paper_rows() -> str:
    """What the paper reports, and what was found here on the nearest task."""
    heads = ["its figures", "its gain, %", "nearest task here", "arm", "gain here, %"]
    lines = [["row of the paper", *heads, "a gain like the paper's"]]
    gains = shown([row.here for row in ROWS if row.here])
    for row in ROWS:
        plain, atom = (paper.result(row.experiment, row.metric, m) for m in ("plain", "atom"))
        assert atom is not None
        figures, claimed = f"{atom:g}", None
        if plain is not None:
            figures = f"{plain:g} to {atom:g}"
            better = -1 if row.metric.endswith("fid") else 1
            claimed = 100 * better * (atom - plain) / plain
        cells = [figures, "" if claimed is None else signed(claimed, 1)]
        gain = gains.get(row.here) if row.here else None
        if row.here is None or gain is None:
            lines.append([row.title, *cells, "not run", "", "", ""])
            continue
        interval = f"{signed(gain.low, 1)} to {signed(gain.high, 1)}"
        cells += [TASKS[row.here.task].title, name_of(row.here.arm)]
        cells += [f"{signed(gain.mean, 1)} ({interval})", as_large(claimed, gain)]
        lines.append([row.title, *cells])
    return markdown(lines)
