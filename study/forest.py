"""The overview as a picture: gains over plain training with their intervals, an SVG of its own.

Written by hand rather than by a plotting library, so that the same runs give the same file
everywhere, and a test can compare it.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from atomsep.report.numbers import signed
from study.overview import PEERS, SUMMARY, Gain, Shown, answer, averages, r1_gain, shown
from study.tables import ROOT, name_of
from study.tasks import TASKS

FILE = ROOT / "docs/images/results.svg"
WIDTH, ROW, TOP = 860, 24, 58
LEFT, RIGHT = 370, 620
"""Where the axis starts and ends."""

LOW, HIGH, STEP = -40, 80, 20
"""Gains on the axis, in per cent; intervals that reach further end in an arrow."""

COLOURS = {"better": "#12877a", "worse": "#c8402f"}
GREY, INK, FAINT = "#8a90a2", "#1f2743", "#d5d8e2"


def place(gain: float) -> float:
    """Where a gain is on the axis."""
    return LEFT + (min(max(gain, LOW), HIGH) - LOW) / (HIGH - LOW) * (RIGHT - LEFT)


def text(x: float, y: float, words: str, **style: str) -> str:
    """A line of text."""
    given = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{given}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> str:
    """A straight line."""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def row(middle: float, label: str, gain: Gain) -> list[str]:
    """One arm on one task: its name, interval, mean and answer."""
    verdict = answer(gain)
    colour = COLOURS.get(verdict, GREY)
    low, high = place(gain.low), place(gain.high)
    parts = [
        text(12, middle + 4, label),
        line(low, middle, high, middle, colour, 2),
        *(_arrow(low, middle, -1, colour) if gain.low < LOW else ()),
        *(_arrow(high, middle, 1, colour) if gain.high > HIGH else ()),
    ]
    if LOW <= gain.mean <= HIGH:
        parts.append(f'<circle cx="{place(gain.mean):.1f}" cy="{middle}" r="4" fill="{colour}"/>')
    numbers = f"{signed(gain.mean, 1)} ({signed(gain.low, 1)} to {signed(gain.high, 1)})"
    bold = {"font_weight": "bold"} if verdict in COLOURS else {}
    words = f"{numbers}, n = {gain.seeds}"
    return [*parts, text(RIGHT + 14, middle + 4, words, fill=colour if bold else INK, **bold)]


def _arrow(x: float, y: float, way: int, colour: str) -> list[str]:
    tip = f"{x + 7 * way:.1f},{y} {x:.1f},{y - 4} {x:.1f},{y + 4}"
    return [f'<polygon points="{tip}" fill="{colour}"/>']


def draw() -> str:
    """The picture."""
    groups = {
        "Atom modeling": {_label(each): gain for each, gain in shown(SUMMARY).items()},
        "Atom modeling, moving average of the generator": {
            _label(each): gain for each, gain in averages().items()
        },
        "Other methods, and the constraints alone": {
            **{_label(each): gain for each, gain in shown(PEERS).items()},
            f"{TASKS['example-mnist'].title}: R1": r1_gain(),
        },
    }
    body: list[str] = []
    y = TOP
    for title, lines in groups.items():
        body.append(text(12, y + 10, title, font_weight="bold"))
        y += ROW
        for label, gain in lines.items():
            body += row(y + 6, label, gain)
            y += ROW
        y += 6
    end = y - 6
    axis = []
    for tick in range(LOW, HIGH + 1, STEP):
        x = place(tick)
        axis.append(line(x, TOP - 10, x, end, INK if tick == 0 else FAINT))
        number = signed(tick, 0) if tick else "0"
        axis.append(text(x, TOP - 16, number, text_anchor="middle", fill=GREY))
    head = "Gain over plain training, % of its metric, with 95 % interval (right is better)"
    title = "Paired gains over plain training by task, with 95 % intervals"
    style = "font-family: system-ui, sans-serif; font-size: 12px"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {end + 12}" role="img"'
            f' width="{WIDTH}" height="{end + 12}" style="{style}" fill="{INK}">',
            f"<title>{title}</title>",
            f'<rect width="{WIDTH}" height="{end + 12}" rx="8" fill="#ffffff"/>',
            text(12, 22, head),
            *axis,
            *body,
            "</svg>\n",
        ]
    )


def _label(each: Shown) -> str:
    return f"{TASKS[each.task].title}: {name_of(each.arm)}"


def write() -> Path:
    """Write the picture; returns its file."""
    FILE.write_text(draw())
    return FILE
