"""Small charts as SVG: a bar in a table, coverage beside its nominal value, the training curve."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gaptrain.report.markup import number

BAR, BAR_HEIGHT = 130, 12
# Of the training curve: whole size, and room for the labels of its axes.
WIDE, HIGH, LEFT, BELOW = 640, 240, 64, 34
# Ratio of largest to smallest loss from which the axis is logarithmic.
LOG_FROM = 8.0


def bar(share: float, inner: float | None = None, words: str = "") -> str:
    """A bar of a share 0 .. 1 of the cell, a part `inner` of the cell marked in it; words for who cannot see it."""
    marked = "" if inner is None else _rect(inner, "part")
    size = f'role="img" aria-label="{words}" width="{BAR}" height="{BAR_HEIGHT}"'
    return f'<svg class="bar" {size}>{_rect(share, "whole")}{marked}</svg>'


def _rect(share: float, kind: str) -> str:
    return f'<rect class="{kind}" x="0" y="1" width="{BAR * min(max(share, 0.0), 1.0):.1f}" height="{BAR_HEIGHT - 2}"/>'


def coverage(share: float, nominal: float) -> str:
    """A share on a line of 0 to 100 %, with a mark at what it should be."""
    width, y = 400, 12
    labels = {tick: f"{100 * tick:g} %" for tick in (0.0, 0.5, nominal)}
    ticks = "".join(
        f'<text x="{20 + width * tick:g}" y="42" text-anchor="middle">{words}</text>' for tick, words in labels.items()
    )
    return (
        f'<svg class="chart" role="img" aria-label="{100 * share:.1f} % covered, {100 * nominal:g} % wanted" '
        f'width="{width + 40}" height="48">'
        f'<rect class="whole" x="20" y="{y}" width="{width}" height="14"/>'
        f'<rect class="part" x="20" y="{y}" width="{width * share:.1f}" height="14"/>'
        f'<path class="mark" d="M{20 + width * nominal:g} {y - 6}V{y + 20}"/>{ticks}</svg>'
    )


def curve(loss: Sequence[float]) -> str:
    """Loss over the epochs, on a logarithmic axis where it falls far."""
    logarithmic = min(loss) > 0 and max(loss) / min(loss) >= LOG_FROM
    values = [math.log10(v) for v in loss] if logarithmic else list(loss)
    low, high = min(values), max(values)
    low, high = (low, high) if high > low else (low - 1.0, high + 1.0)
    marks = _marks(low, high, logarithmic)
    across, up = (WIDE - LEFT - 16) / max(len(loss) - 1, 1), (HIGH - BELOW - 14) / (high - low)

    def x(epoch: float) -> float:
        return round(LEFT + epoch * across, 1)

    def y(value: float) -> float:
        return round(HIGH - BELOW - (value - low) * up, 1)

    grid = "".join(
        f'<path class="grid" d="M{LEFT} {y(v):g}H{WIDE - 16}"/><text x="{LEFT - 8}" y="{y(v) + 4:g}" '
        f'text-anchor="end">{number(10**v if logarithmic else v)}</text>'
        for v in marks
    )
    count = len(loss)
    epochs = sorted({0, count - 1, *(round(k * (count - 1) / 4) for k in (1, 2, 3))})
    bottom = "".join(f'<text x="{x(e):g}" y="{HIGH - BELOW + 18}" text-anchor="middle">{e + 1}</text>' for e in epochs)
    points = " ".join(f"{x(e):g},{y(v):g}" for e, v in enumerate(values))
    last = f'<circle cx="{x(count - 1):g}" cy="{y(values[-1]):g}" r="3"/>'
    return (
        f'<svg class="chart curve" role="img" aria-label="training loss" viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" '
        f'height="{HIGH}">{grid}{bottom}<polyline points="{points}"/>{last}'
        f'<text x="{(WIDE + LEFT) / 2:g}" y="{HIGH - 2}" text-anchor="middle">epoch</text></svg>'
    )


def _marks(low: float, high: float, logarithmic: bool) -> list[float]:
    """Values of the grid within low .. high: 1, 2, 5 times powers of ten on a logarithmic axis, else round steps."""
    if logarithmic:
        decades = range(math.floor(low), math.ceil(high) + 1)
        marks = [d + math.log10(m) for d in decades for m in ((1,) if high - low > 2.5 else (1, 2, 5))]
        return [m for m in marks if low <= m <= high] or [low, high]
    step = 10 ** math.floor(math.log10(high - low))
    step *= next(s for s in (0.2, 0.5, 1.0, 2.0) if (high - low) / (s * step) <= 5.001)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
