"""Charts as SVG: every seed, differences with their intervals, training curves.

Colours are classes, so that the page's style chooses them for a light or a dark screen. Labels
stand above what they name, so that a chart is readable on a narrow screen too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atomsep.report.curves import Point
from atomsep.report.groups import Group
from atomsep.report.html import Html, element, together
from atomsep.report.numbers import interval_text, signed
from atomsep.report.verdict import UNTESTED, shown_verdict

WIDTH = 380
MARGIN = 20
TOP = 18
PER_ROW = 36
CURVE_HEIGHT = 190
LEFT, DIGIT = 46, 7
"""Least room for the numbers beside a curve, and the width of a digit."""

COLOURS = 8
"""Colours of rows, after which they repeat with dashes."""


@dataclass(frozen=True)
class Scale:
    """Places on an axis for values from `low` to `high`."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value."""
        low, high, value = (
            (math.log10(number) for number in (self.low, self.high, value))
            if self.logarithmic
            else (self.low, self.high, value)
        )
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round values on the axis; powers of ten if it is logarithmic."""
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            stride = max(1, math.ceil((last - first) / 4))
            return [10.0**power for power in range(first, last + 1, stride)]
        return round_ticks(self.low, self.high)


def round_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, at most `most` of them.

    Example:
        >>> round_ticks(0.0, 1.0), round_ticks(-13, 22)
        ([0.0, 0.5, 1.0], [-10.0, 0.0, 10.0, 20.0])
    """
    power = math.floor(math.log10((high - low) / most))
    for factor in (1, 2, 5, 10, 20):
        step = factor * 10.0**power
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            break
    return [round(place * step, 12) for place in range(first, last + 1)]


def scale(values: Sequence[float], start: float, end: float, label: str = "") -> Scale:
    """A scale with some room around values; logarithmic if they span four powers of ten.

    A scale in percent, which its label says, ends at 100 unless there are values beyond.

    Example:
        >>> scale([98, 100], 0, 1, "accuracy, %").high, scale([98, 100], 0, 1, "FID").high
        (100, 100.12)
    """
    low, high = min(values), max(values)
    if low > 0 and high > 1e4 * low:
        return Scale(low / 1.5, high * 1.5, start, end, logarithmic=True)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    most = 100 if high <= 100 and "%" in label else math.inf
    return Scale(low - room, min(high + room, most), start, end)


def tick_text(value: float) -> str:
    """A number beside an axis.

    Example:
        >>> tick_text(-0.25), tick_text(20000.0), tick_text(0.000125), tick_text(3e7)
        ('−0.25', '20000', '1.25e-4', '3e7')
    """
    size = abs(value)
    if size and not 1e-3 <= size < 1e5:
        mantissa, _, exponent = f"{value:.3e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}".replace("-", "−", value < 0)
    return f"{value:.6g}".replace("-", "−")


def seeds_chart(group: Group) -> Html:
    """Every row's seeds as dots, with their mean, and the plain mean as a dashed line."""
    finite = [[v for v in row.values.values() if math.isfinite(v)] for row in group.rows]
    if not any(finite):
        return Html("")
    place = scale([v for values in finite for v in values], MARGIN, WIDTH - MARGIN, group.label)
    bottom = TOP + PER_ROW * len(group.rows)
    parts = [_axis_below(place, bottom, group.label)]
    for row in group.rows:
        if row.method == "plain" and math.isfinite(row.mean):
            parts += _plain_line(place(row.mean), len(group.rows))
    for number, row in enumerate(group.rows):
        y = TOP + PER_ROW * number + 20
        parts.append(element("text", row.title, x=MARGIN, y=y - 10.0, class_="label"))
        parts += [
            element(
                "circle",
                element("title", f"{row.title}, seed {seed}: {value:.4g}"),
                cx=place(value),
                cy=y,
                r=4,
                class_=f"dot {colour(number)}",
            )
            for seed, value in sorted(row.values.items())
            if math.isfinite(value)
        ]
        if math.isfinite(row.mean):
            x = place(row.mean)
            parts.append(element("line", x1=x, x2=x, y1=y - 7, y2=y + 7, class_="mean"))
    what = f"{group.label}: a dot is a seed, a bar the mean"
    return _svg(bottom + 36, what, parts)


def differences_chart(group: Group) -> Html:
    """Every row's difference to the plain one with its interval, and what that shows."""
    found = {p: c for p, c in group.comparisons.items() if math.isfinite(c.difference)}
    if not found:
        return Html("")
    ends = [e for c in found.values() for e in (c.low, c.high, c.difference) if math.isfinite(e)]
    place = scale([0.0, *ends], MARGIN, WIDTH - MARGIN)
    bottom = TOP + PER_ROW * len(found)
    plain = next(row.title for row in group.rows if row.method == "plain")
    parts = [_axis_below(place, bottom, f"difference to {plain}, 95 % interval")]
    parts += _plain_line(place(0), len(found))
    for number, (row, comparison) in enumerate(found.items()):
        y = TOP + PER_ROW * number + 20
        judged = shown_verdict(group, row)
        word = UNTESTED if judged is None else judged.word
        shown = f"verdict {word.split()[0]}"
        interval = interval_text(comparison.low, comparison.high)
        marks = [element("title", f"{signed(comparison.difference)} ({interval})")]
        if math.isfinite(comparison.low):
            left, right = place(comparison.low), place(comparison.high)
            marks.append(element("line", x1=left, x2=right, y1=y, y2=y, class_="interval"))
        marks.append(element("circle", cx=place(comparison.difference), cy=y, r=4.5))
        parts += [
            element("text", group.rows[row].title, x=MARGIN, y=y - 10, class_="label"),
            element("text", word, x=WIDTH - MARGIN, y=y - 10, class_=f"label end {shown}"),
            element("g", *marks, class_=shown),
        ]
    return _svg(bottom + 36, "Differences to the plain method", parts)


def curve_chart(title: str, rows: Mapping[int, Sequence[Point]]) -> Html:
    """A quantity over the steps: a line per row, and a band from the least to the largest seed.

    Args:
        title: the quantity, above the chart.
        rows: points by the place of the row, which chooses the colour.
    """
    points = [point for each in rows.values() for point in each]
    bottom = CURVE_HEIGHT - 24
    up = scale([end for p in points for end in (p.low, p.high)], bottom, TOP + 10, title)
    left = max(LEFT, 10 + DIGIT * max(len(tick_text(tick)) for tick in up.ticks()))
    across = Scale(0, max(point.step for point in points) or 1, left, WIDTH - MARGIN)
    parts = [element("text", title, x=4, y=14, class_="label")]
    for tick in up.ticks():
        y = up(tick)
        parts.append(element("line", x1=left, x2=WIDTH - MARGIN, y1=y, y2=y, class_="grid"))
        parts.append(element("text", tick_text(tick), x=left - 6, y=y + 4, class_="tick end"))
    for tick in across.ticks():
        parts.append(_tick_below(across(tick), bottom, tick))
    parts.append(element("text", "steps", x=WIDTH - MARGIN, y=bottom + 27, class_="tick end"))
    for number, line in rows.items():
        upper = [f"{across(p.step):.1f},{up(p.high):.1f}" for p in line]
        lower = [f"{across(p.step):.1f},{up(p.low):.1f}" for p in reversed(line)]
        middle = [f"{across(p.step):.1f},{up(p.mean):.1f}" for p in line]
        marks = [
            element("polygon", points=" ".join(upper + lower), class_="band"),
            element("polyline", points=" ".join(middle)),
        ]
        if len(line) == 1:
            marks.append(element("circle", cx=across(line[0].step), cy=up(line[0].mean), r=3))
        parts.append(element("g", *marks, class_=f"curve {colour(number)}", data_row=number))
    return _svg(CURVE_HEIGHT + 6, title, parts)


def colour(number: int) -> str:
    """Classes for the colour of a row."""
    return f"colour{number % COLOURS}" + (" dashed" if number >= COLOURS else "")


def _plain_line(x: float, rows: int) -> list[Html]:
    """A dashed line at the plain mean, beside the rows' marks but not through their labels."""
    tops = [TOP + PER_ROW * row for row in range(rows)]
    return [
        element("line", x1=x, x2=x, y1=top + 14, y2=top + PER_ROW, class_="plain") for top in tops
    ]


def _axis_below(place: Scale, bottom: float, label: str) -> Html:
    line = element("line", x1=place.start, x2=place.end, y1=bottom, y2=bottom, class_="axis")
    ticks = [_tick_below(place(tick), bottom, tick) for tick in place.ticks()]
    middle = (place.start + place.end) / 2
    return together(
        line, *ticks, element("text", label, x=middle, y=bottom + 31, class_="tick middle")
    )


def _tick_below(x: float, bottom: float, value: float) -> Html:
    return together(
        element("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="axis"),
        element("text", tick_text(value), x=x, y=bottom + 16, class_="tick middle"),
    )


def _svg(height: float, what: str, parts: Sequence[Html]) -> Html:
    attributes = {"viewBox": f"0 0 {WIDTH} {height:g}", "role": "img", "aria_label": what}
    return element("svg", *parts, **attributes)
