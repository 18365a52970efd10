"""Student's t, as much as gapd needs: it spares the robot a statistics library. Pure."""

from __future__ import annotations

from math import atan, cos, erfc, sin, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Degrees of freedom from which the normal distribution is taken: its tail is then right to 1 % down to p = 1e-3.
NORMAL_FROM = 300


def quantile(probability: float, dof: Array) -> Array:
    """Two-sided quantile for an interval of `probability`, by degrees of freedom (P,), which need not be whole.

    Cornish-Fisher expansion in 1/dof (Abramowitz and Stegun 26.7.5): above 10 degrees of freedom within 0.3 % up to
    0.99 and within 1 % up to 0.9999.
    """
    x = NormalDist().inv_cdf(0.5 + probability / 2)
    first = (x**3 + x) / 4
    second = (5 * x**5 + 16 * x**3 + 3 * x) / 96
    third = (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384
    return np.asarray(x + first / dof + second / dof**2 + third / dof**3)


def tail(t: float, dof: int) -> float:
    """P(T > t) for whole degrees of freedom: finite sums (Abramowitz and Stegun 26.7.3-4)."""
    if dof > NORMAL_FROM:
        return erfc(t / sqrt(2)) / 2
    angle = atan(abs(t) / sqrt(dof))
    odd = dof % 2
    term = cos(angle) if odd else 1.0
    total = term if dof > 1 else 0.0
    for k in range(2 + odd, dof - 1, 2):
        term *= (k - 1) / k * cos(angle) ** 2
        total += term
    inside = sin(angle) * total
    if odd:
        inside = (angle + inside) * 2 / np.pi
    beyond = max((1.0 - inside) / 2, 0.0)
    return beyond if t >= 0 else 1.0 - beyond
