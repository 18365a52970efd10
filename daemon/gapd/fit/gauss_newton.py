"""Normal equations of a fit with the initial states eliminated, and a damped step inside the bounds. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from gapd.gap.jacobian import Linearisation

Array = NDArray[np.float64]

# Changes of faces at most, per parameter; one or two suffice.
FACE_CHANGES = 10
# Windows whose derivatives are weighted at a time.
BLOCK = 4


@dataclass(frozen=True)
class Normal:
    """Quadratic model of the cost around a point, per window, for a parameter step d.

    cost(d) = sum over windows of  r'r - 2 b'd + d'A d, after each window's initial state has taken its
    best value. Elimination by the Schur complement keeps the system P x P.
    """

    information: Array  # (W, P, P)
    score: Array  # (W, P)
    x0_rest: Array  # (W, 2 nv): initial-state step while the parameters stay
    x0_along: Array  # (W, 2 nv, P): what each parameter's step takes from it

    def x0_step(self, step: Array) -> Array:
        """Initial-state step (W, 2 nv) that goes with the parameter step (P,)."""
        return np.asarray(self.x0_rest - self.x0_along @ step)


def residuals(gap: Array, weight: Array) -> Array:
    """Gaps (W, K, C) to residuals (W, K C): weighted by channel (C,), absent measurements zero."""
    return np.asarray(np.nan_to_num(gap * weight).reshape(len(gap), -1))


def channel_rms(values: Array) -> Array:
    """RMS (C,) over windows and knots of values (W, K, C), absent ones left out; 0 for a channel that is all absent."""
    present = np.isfinite(values)
    total = np.sum(np.where(present, values, 0.0) ** 2, axis=(0, 1))
    return np.asarray(np.sqrt(total / np.maximum(present.sum(axis=(0, 1)), 1)))


def normal_equations(gap: Array, linear: Linearisation, weight: Array, dx0: Array, x0_sd: Array) -> Normal:
    """Assemble the per-window normal equations, some windows at a time: of hundreds of parameters all would not fit.

    gap (W, K, C) in channel noise, weight (C,) = noise / (noise and discrepancy), dx0 (W, 2 nv) the current
    correction of the measured initial states and x0_sd (W, 2 nv) its standard deviation.
    """
    n, p, states = len(gap), linear.jacobian.shape[-1], dx0.shape[1]
    normal = Normal(np.empty((n, p, p)), np.empty((n, p)), np.empty((n, states)), np.empty((n, states, p)))
    for first in range(0, n, BLOCK):
        rows = slice(first, first + BLOCK)
        taken = Linearisation(linear.jacobian[rows], linear.x0_jacobian[rows])
        part = _block(gap[rows], taken, weight, dx0[rows], x0_sd[rows])
        for f in fields(Normal):
            getattr(normal, f.name)[rows] = getattr(part, f.name)
    return normal


def _block(gap: Array, linear: Linearisation, weight: Array, dx0: Array, x0_sd: Array) -> Normal:
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
    along = gain @ jacobian
    rest = (gain @ residual[..., None])[..., 0] - pull
    # A pull of the initial state towards its measurement also changes what the parameters see.
    seen = residual - (x0 @ rest[..., None])[..., 0]
    information = jacobian.transpose(0, 2, 1) @ jacobian - cross.transpose(0, 2, 1) @ along
    score = (jacobian.transpose(0, 2, 1) @ seen[..., None])[..., 0]
    return Normal(information, score, rest * x0_sd, along * x0_sd[..., None])


def damped_step(information: Array, score: Array, damping: float, lower: Array, upper: Array) -> Array:
    """Levenberg step (P,): the minimum of the damped quadratic model in a box.

    The box is [lower, upper] (P,), relative to the current point. Parameters on its faces are found by a primal
    active-set method (Nocedal and Wright 2006, algorithm 16.3): clipping the free minimum instead would leave
    the others where they only made sense together with the part that was cut off.
    """
    diagonal = np.maximum(np.diag(information), 1e-12)
    # A trace of damping keeps the system regular, however large the derivatives of a nearly unstable replay are.
    system = information + np.diag((damping + 1e-12) * diagonal)
    step = np.clip(np.zeros(len(score)), lower, upper)
    pinned = lower >= upper
    for _ in range(FACE_CHANGES * len(score)):
        direction = np.zeros(len(score))
        free = ~pinned
        direction[free] = np.linalg.solve(system[np.ix_(free, free)], (score - system @ step)[free])
        face = np.where(direction < 0, lower, upper)
        room = np.full(len(score), np.inf)
        np.divide(face - step, direction, out=room, where=direction != 0)
        first = int(np.argmin(room))
        if room[first] < 1.0:
            step = np.clip(step + room[first] * direction, lower, upper)
            step[first], pinned[first] = face[first], True
            continue
        step = np.clip(step + direction, lower, upper)
        # The minimum on these faces. Leave the one that the quadratic falls away from the most, if there is one.
        slope = (score - system @ step) / np.sqrt(np.diag(system))
        inwards = np.where(pinned & (lower < upper), np.where(step <= lower, slope, -slope), -np.inf)
        best = int(np.argmax(inwards))
        if inwards[best] <= 1e-9 * np.max(np.abs(score) / np.sqrt(np.diag(system)), initial=0.0):
            break
        pinned[best] = False
    return step
