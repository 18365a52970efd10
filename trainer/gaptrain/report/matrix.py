"""A matrix of effects as SVG: the stronger, the darker; empty where there is no edge."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gaptrain.report.markup import text
from gaptrain.report.picture import LETTER, short, strength

# Pixels of a cell, and shades of an effect.
CELL, SHADES = 14, 8


def matrix(rows: Sequence[str], columns: Sequence[str], effect: NDArray[np.float64]) -> str:
    """The matrix of effect (rows, columns) in noise standard deviations; 0 is no edge."""
    left, top = (math.ceil(LETTER * max(len(short(name)) for name in names)) + 10 for names in (rows, columns))
    wide, high = left + CELL * len(columns) + 8, top + CELL * len(rows) + 8
    largest = float(effect.max())
    shade = [[math.ceil(SHADES * strength(e, largest)) or 1 if e > 0 else 0 for e in row] for row in effect.tolist()]
    size = f'viewBox="0 0 {wide} {high}" width="{wide}" height="{high}"'
    parts = [f'<svg class="matrix" role="img" aria-label="effects" {size}>']
    for level in range(1, SHADES + 1):
        cells = "".join(
            f"M{left + CELL * c} {top + CELL * r}h{CELL - 1}v{CELL - 1}h-{CELL - 1}z"
            for r, row in enumerate(shade) for c, found in enumerate(row) if found == level
        )  # fmt: skip
        parts.append(f'<path d="{cells}" fill-opacity="{(level / SHADES) ** 1.3:.2f}"/>' if cells else "")
    for r, name in enumerate(rows):
        parts.append(f'<text x="{left - 5}" y="{top + CELL * r + 10}" text-anchor="end">{text(short(name))}</text>')
    for c, name in enumerate(columns):
        place = f"translate({left + CELL * c + 10} {top - 5}) rotate(-90)"
        parts.append(f'<text transform="{place}">{text(short(name))}</text>')
    return "\n".join([*parts, "</svg>"])
