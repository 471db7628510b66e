"""The overview as a picture: gains over plain training with their intervals, an SVG of its own.

Written by hand rather than by a plotting library, so that the same runs give the same file
everywhere, and a test can compare it.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import NamedTuple

from atomsep.report.numbers import signed
from study.gains import PEERS, SUMMARY, Gain, Shown, answer, averages, r1_gain, shown
from study.tables import ROOT, name_of
from study.tasks import TASKS

FILE = ROOT / "docs/images/results.svg"
WIDTH, ROW = 860, 22
LEFT, RIGHT = 370, 620
"""Where the axes start and end."""

COLOURS = {"better": "#12877a", "worse": "#c8402f"}
GREY, INK, FAINT = "#8a90a2", "#1f2743", "#d5d8e2"


class Axis(NamedTuple):
    """Gains on an axis, in per cent; intervals that reach further end in an arrow."""

    low: int
    high: int
    step: int

    def place(self, gain: float) -> float:
        """Where a gain is."""
        share = (min(max(gain, self.low), self.high) - self.low) / (self.high - self.low)
        return LEFT + share * (RIGHT - LEFT)


class Labelled(NamedTuple):
    """A line of the picture."""

    label: str
    gain: Gain
    before: bool = True


GANS, OTHERS = Axis(-40, 80, 20), Axis(-20, 20, 5)


def text(x: float, y: float, words: str, **style: str) -> str:
    """A line of text."""
    given = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{given}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> str:
    """A straight line."""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def row(axis: Axis, middle: float, each: Labelled) -> list[str]:
    """One arm on one task: its name, seeds, interval, mean and numbers."""
    gain = each.gain
    verdict = answer(gain)
    colour = COLOURS.get(verdict, GREY)
    low, high = axis.place(gain.low), axis.place(gain.high)
    parts = [text(12, middle + 4, each.label)]
    for pair in gain.pairs:
        if axis.low <= pair <= axis.high:
            x = axis.place(pair)
            parts.append(line(x, middle - 5, x, middle + 5, colour, 0.7))
    parts.append(line(low, middle, high, middle, colour, 2))
    if gain.low < axis.low:
        parts.append(_arrow(low, middle, -1, colour))
    if gain.high > axis.high:
        parts.append(_arrow(high, middle, 1, colour))
    if axis.low <= gain.mean <= axis.high:
        fill = colour if each.before else "#ffffff"
        parts.append(
            f'<circle cx="{axis.place(gain.mean):.1f}" cy="{middle}" r="4" fill="{fill}"'
            f' stroke="{colour}" stroke-width="1.5"/>'
        )
    numbers = f"{signed(gain.mean, 1)} ({signed(gain.low, 1)} to {signed(gain.high, 1)})"
    bold = {"font_weight": "bold"} if verdict in COLOURS else {}
    words = f"{numbers}, n = {len(gain.pairs)}"
    return [*parts, text(RIGHT + 14, middle + 4, words, fill=colour if bold else INK, **bold)]


def _arrow(x: float, y: float, way: int, colour: str) -> str:
    tip = f"{x + 7 * way:.1f},{y} {x:.1f},{y - 4} {x:.1f},{y + 4}"
    return f'<polygon points="{tip}" fill="{colour}"/>'


def panel(axis: Axis, top: float, groups: dict[str, list[Labelled]]) -> tuple[list[str], float]:
    """Groups of lines over an axis of their own; returns the parts and where they end."""
    body: list[str] = []
    y = top + 10
    for title, lines in groups.items():
        body.append(text(12, y + 10, title, font_weight="bold"))
        y += ROW
        for each in lines:
            body += row(axis, y + 6, each)
            y += ROW
        y += 6
    marks = []
    for tick in range(axis.low, axis.high + 1, axis.step):
        x = axis.place(tick)
        marks.append(line(x, top, x, y - 8, INK if tick == 0 else FAINT))
        number = signed(tick, 0) if tick else "0"
        marks.append(text(x, top - 6, number, text_anchor="middle", fill=GREY))
    return [*marks, *body], y


def draw() -> str:
    """The picture."""
    own, rest = shown(SUMMARY), shown(PEERS)
    r1 = Labelled(f"{TASKS['example-mnist'].title}: R1", r1_gain())
    gans, others = _split(own, is_gan), _split(own, lambda each: not is_gan(each))
    over, end = panel(
        GANS,
        64,
        {
            "GANs: atom modeling": gans,
            "The same, moving average of the generator": _split(averages(), is_gan),
            "GANs: other methods": [*_split(rest, is_gan), r1],
        },
    )
    under, end = panel(
        OTHERS,
        end + 26,
        {
            "Classifiers and text: atom modeling": others,
            "Other methods, and the constraints alone": _split(rest, lambda x: not is_gan(x)),
        },
    )
    title = "Paired gains over plain training by task, with 95 % intervals"
    head = "Gain over plain training, % of its metric, with 95 % interval; right is better."
    legend = "Short strokes are seeds. Hollow: the arm was picked after the runs. "
    legend += "Colour: significant for its task."
    style = "font-family: system-ui, sans-serif; font-size: 12px"
    size = f'width="{WIDTH}" height="{end + 4:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {end + 4:.0f}"'
            f' role="img" {size} style="{style}" fill="{INK}">',
            f"<title>{title}</title>",
            f'<rect {size} rx="8" fill="#ffffff"/>',
            *(text(12, 20, head), text(12, 37, legend, fill=GREY)),
            *over,
            *under,
            "</svg>\n",
        ]
    )


def is_gan(each: Shown) -> bool:
    """Whether a line is of a GAN."""
    return TASKS[each.task].experiment.endswith("gan")


def _split(lines: dict[Shown, Gain], wanted: Callable[[Shown], bool]) -> list[Labelled]:
    return [
        Labelled(_label(each), gain, each.before) for each, gain in lines.items() if wanted(each)
    ]


def _label(each: Shown) -> str:
    return f"{TASKS[each.task].title}: {name_of(each.arm)}"


def write() -> Path:
    """Write the picture; returns its file."""
    FILE.write_text(draw())
    return FILE
