"""Normal equations of a fit with the initial states eliminated, and a damped step inside the bounds. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gapd.jacobian import Linearisation

Array = NDArray[np.float64]

# Scaled parameters (logarithms) move at most this much in a step: a factor of two.
STEP_LIMIT = 0.7


@dataclass(frozen=True)
class Normal:
    """Quadratic model of the cost around a point, per window, for a parameter step d.

    cost(d) = sum over windows of  r'r - 2 b'd + d'A d, after each window's initial state has taken its
    best value. Elimination by the Schur complement keeps the system P x P.
    """

    information: Array  # (W, P, P)
    score: Array  # (W, P)
    x0_gain: Array  # (W, 2 nv, K C): initial-state step per residual
    x0_pull: Array  # (W, 2 nv): initial-state step towards its measurement
    jacobian: Array  # (W, K C, P), rows of absent measurements zero

    def x0_step(self, residual: Array, step: Array) -> Array:
        """Initial-state step (W, 2 nv) that goes with the parameter step (P,) for residuals (W, K C)."""
        left = residual - self.jacobian @ step
        return np.asarray((self.x0_gain @ left[..., None])[..., 0] - self.x0_pull)


def residuals(gap: Array, weight: Array) -> Array:
    """Gaps (W, K, C) to residuals (W, K C): weighted by channel (C,), absent measurements zero."""
    return np.asarray(np.nan_to_num(gap * weight).reshape(len(gap), -1))


def normal_equations(gap: Array, linear: Linearisation, weight: Array, dx0: Array, x0_sd: Array) -> Normal:
    """Assemble the per-window normal equations.

    gap (W, K, C) in channel noise, weight (C,) = noise / (noise and discrepancy), dx0 (W, 2 nv) the current
    correction of the measured initial states and x0_sd (W, 2 nv) its standard deviation.
    """
    present = np.isfinite(gap)
    scale = (present * weight)[..., None]
    n = len(gap)
    jacobian = (linear.jacobian * scale).reshape(n, -1, linear.jacobian.shape[-1])
    x0 = (linear.x0_jacobian * scale).reshape(n, -1, linear.x0_jacobian.shape[-1])
    residual = residuals(gap, weight)
    # In units of its standard deviation the initial state has unit prior, which keeps D well conditioned.
    x0 = x0 * x0_sd[:, None, :]
    inner = x0.transpose(0, 2, 1) @ x0 + np.eye(x0.shape[2])
    gain = np.linalg.solve(inner, x0.transpose(0, 2, 1))
    pull = np.linalg.solve(inner, (dx0 / x0_sd)[..., None])[..., 0]
    cross = x0.transpose(0, 2, 1) @ jacobian
    # A pull of the initial state towards its measurement also changes what the parameters see.
    seen = residual - (x0 @ (gain @ residual[..., None] - pull[..., None]))[..., 0]
    information = jacobian.transpose(0, 2, 1) @ jacobian - cross.transpose(0, 2, 1) @ (gain @ jacobian)
    score = (jacobian.transpose(0, 2, 1) @ seen[..., None])[..., 0]
    return Normal(information, score, gain * x0_sd[..., None], pull * x0_sd, jacobian)


def damped_step(information: Array, score: Array, damping: float, lower: Array, upper: Array) -> Array:
    """Levenberg step (P,) within [lower, upper] (P,), both relative to the current point.

    A parameter that sits on a bound and is pushed outwards leaves the system, so that the others do
    not lean on a move that cannot happen.
    """
    free = np.ones(len(score), bool)
    step = np.zeros(len(score))
    for _ in range(len(score)):
        system = information[np.ix_(free, free)]
        diagonal = np.maximum(np.diag(system), 1e-12)
        step[:] = 0.0
        step[free] = np.linalg.solve(system + np.diag(damping * diagonal + 1e-12), score[free])
        stuck = free & (((step > 0) & (upper <= 0)) | ((step < 0) & (lower >= 0)))
        if not stuck.any():
            break
        free &= ~stuck
    return np.clip(np.clip(step, -STEP_LIMIT, STEP_LIMIT), lower, upper)
