"""How tables show numbers."""

from __future__ import annotations

import math

NONE = "–"
"""Shown where there is no number."""


def p_text(p: float) -> str:
    """A p value.

    Example:
        >>> p_text(0.0312), p_text(2.2e-06), p_text(float("nan"))
        ('0.031', '2e-6', '–')
    """
    if math.isnan(p):
        return NONE
    if p >= 0.001:
        return f"{p:.3f}"
    mantissa, _, exponent = f"{p:.0e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def spread_text(mean: float, spread: float) -> str:
    """Mean ± standard deviation.

    Example:
        >>> spread_text(95.3, 0.551), spread_text(95.3, float("nan"))
        ('95.30 ± 0.55', '95.30')
    """
    return f"{mean:.2f}" + ("" if math.isnan(spread) else f" ± {spread:.2f}")


def signed(number: float | None, digits: int = 2) -> str:
    """A difference with its sign.

    Example:
        >>> signed(0.861), signed(-0.15), signed(-0.0001), signed(None)
        ('+0.86', '−0.15', '0.00', '–')
    """
    if number is None or math.isnan(number):
        return NONE
    text = f"{number:+.{digits}f}".replace("-", "−")
    return text if any(digit in text for digit in "123456789") else text[1:]


def interval_text(low: float, high: float) -> str:
    """Both ends of an interval.

    Example:
        >>> interval_text(-0.1, 0.5)
        '−0.10 to +0.50'
    """
    return NONE if math.isnan(low) else f"{signed(low)} to {signed(high)}"
