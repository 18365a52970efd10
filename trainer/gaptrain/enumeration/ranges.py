"""Bounds and scale of one parameter from its value in the model."""

from __future__ import annotations

from typing import Literal, NamedTuple

from gapd.limits import LARGEST, SMALLEST


class Range(NamedTuple):
    """Value in the model, bounds, and the scale in which they are evenly uncertain."""

    nominal: float
    min: float
    max: float
    scale: Literal["log", "linear", "asinh"]


def ratio(nominal: float, times: float, if_zero: float) -> Range:
    """From a `times`-th to `times` the value, on a log scale; a value of 0 may grow to `if_zero`.

    What may be zero has no logarithm: from 0 on, an asinh scale goes linearly up to a tenth of its bound and by powers
    of ten from there. The same scale serves negative values, whose sign means something.
    """
    if abs(nominal) < times * SMALLEST:
        return Range(nominal, min(0.0, nominal), max(min(if_zero, LARGEST), times * nominal), "asinh")
    low, high = sorted((nominal / times, nominal * times))
    return Range(nominal, low, high, "log" if nominal > 0 else "asinh")


def either_way(nominal: float, reach: float) -> Range:
    """As far as `reach` up and down: for offsets, angles and what else is uncertain by an amount."""
    return Range(nominal, nominal - reach, nominal + reach, "linear")


def either_sign(nominal: float, times: float, if_zero: float) -> Range:
    """As `ratio`, but a value of 0 may become positive or negative."""
    if nominal:
        return ratio(nominal, times, if_zero)
    return Range(0.0, -if_zero, if_zero, "asinh")


def between(nominal: float, low: float, high: float) -> Range:
    """Between two fixed numbers, or up to the value in the model where that lies outside."""
    return Range(nominal, min(low, nominal), max(high, nominal), "linear")
