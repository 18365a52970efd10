"""Where derivatives of a replay come from: finite differences (exact) or the gap model (cheap)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gapd.errors import InputError
from gapd.gap.replay import NOTHING, Replay, Rollouts, Unmodelled
from gapd.measured.windows import Windows

Array = NDArray[np.float64]
Rows = NDArray[np.intp] | slice

# Forward differences: 1e-3 of a scaled unit moves a prediction far above the solver's tolerance, and
# keeps the truncation error at a thousandth of the derivative.
STEP_Z = 1e-3
STEP_POSITION = 1e-4  # rad or m
STEP_VELOCITY = 1e-3  # rad/s or m/s


@dataclass(frozen=True)
class Point:
    """Where to linearise: windows, scaled parameters (P,) or (W, P), initial state (W, nv) each, their replay.

    `unmodelled` acts besides.
    """

    windows: Windows
    z: Array
    qpos0: Array
    qvel0: Array
    rollouts: Rollouts
    unmodelled: Unmodelled = NOTHING

    @property
    def z_rows(self) -> Array:
        """Scaled parameters (W, P)."""
        return np.broadcast_to(self.z, (len(self.windows), self.z.shape[-1]))


@dataclass(frozen=True)
class Linearisation:
    """Derivatives of the prediction in units of channel noise, at the K knots after the initial one."""

    jacobian: Array  # (W, K, C, P) with respect to scaled parameters
    x0_jacobian: Array  # (W, K, C, 2 nv) with respect to the initial state


class JacobianSource(Protocol):
    """Gives the derivatives at a point."""

    def linearise(self, point: Point) -> Linearisation:
        """Derivatives of the replayed windows with respect to parameters and initial state."""
        ...


class FiniteDifference:
    """Exact derivatives: one rollout per window and column.

    With `coarse` their steps are longer by that factor. Where joints stick a replay is rough, and slopes over a short
    step say nothing of what a long one does.
    """

    def __init__(self, replay: Replay, coarse: float = 1.0) -> None:
        """Use the replay's robot, model and rollout counter."""
        self.replay = replay
        self._coarse = coarse
        self._noise = replay.robot.layout.noise

    def linearise(self, point: Point) -> Linearisation:
        """All P + 2 nv columns."""
        return Linearisation(self.parameters(point), self.initial_state(point))

    def parameters(self, point: Point, directions: Array | None = None) -> Array:
        """Derivatives (W, K, C, D) along the directions (P, D) of scaled parameters; all P axes by default.

        Along one axis the step goes inwards where the upper bound is near, so that no replay leaves the bounds.
        InputError names a direction in which the replay diverges either way.
        """
        space, z = self.replay.robot.parameters, point.z_rows
        axes = np.eye(len(space)) if directions is None else directions
        slopes = self._empty(point, axes.shape[1])
        for number, direction in enumerate(axes.T):
            length = self._coarse * STEP_Z / float(np.linalg.norm(direction))
            step = np.where((z + length * direction <= space.z_max).all(axis=1), length, -length)

            def moved(step: Array, rows: Rows, d: Array = direction) -> Rollouts:
                return self._run(point, rows, z[rows] + step[:, None] * d, point.qpos0[rows], point.qvel0[rows])

            name = space.names[number] if directions is None else f"direction {number}"
            slopes[..., number] = self._slope(moved, step, point, name)
        return slopes

    def initial_state(self, point: Point) -> Array:
        """Derivatives (W, K, C, 2 nv) with respect to initial position and velocity; InputError as above."""
        nv = point.qpos0.shape[1]
        slopes = self._empty(point, 2 * nv)
        for axis in range(2 * nv):
            position, velocity = np.eye(2 * nv)[axis, :nv], np.eye(2 * nv)[axis, nv:]

            def moved(step: Array, rows: Rows, p: Array = position, v: Array = velocity) -> Rollouts:
                qpos0, qvel0 = point.qpos0[rows] + step[:, None] * p, point.qvel0[rows] + step[:, None] * v
                return self._run(point, rows, point.z_rows[rows], qpos0, qvel0)

            step = np.full(len(point.windows), self._coarse * (STEP_POSITION if axis < nv else STEP_VELOCITY))
            name = f"initial state of {self.replay.robot.layout.joints[axis % nv]}"
            slopes[..., axis] = self._slope(moved, step, point, name)
        return slopes

    def _empty(self, point: Point, columns: int) -> Array:
        """Room for derivatives (W, K, C, columns). Stacked at the end, hundreds of them would be there twice."""
        windows, knots, channels = point.rollouts.predicted.shape
        return np.empty((windows, knots - 1, channels, columns))

    def _run(self, point: Point, rows: Rows, z: Array, qpos0: Array, qvel0: Array) -> Rollouts:
        physical = self.replay.robot.parameters.to_physical(z)
        return self.replay.run(point.windows.take(rows), physical, qpos0, qvel0, point.unmodelled.take(rows))

    def _slope(self, moved: Callable[[Array, Rows], Rollouts], step: Array, point: Point, name: str) -> Array:
        """Difference quotient (W, K, C) with steps (W,); where that replay diverges, with the opposite step."""
        there = moved(step, slice(None))
        predicted, again = there.predicted, np.flatnonzero(there.failed & ~point.rollouts.failed)
        if len(again):
            step = step.copy()
            step[again] *= -1
            other = moved(step[again], again)
            predicted[again] = other.predicted
            if other.failed.any():
                start_s = float(point.windows.start_s[again[other.failed]][0])
                raise InputError(
                    f"{name}: the replay from {start_s:.2f} s diverges when it moves by {abs(step[0]):g}; the "
                    "simulation is at the edge of stability: use a smaller timestep or narrower bounds"
                )
        difference = predicted[:, 1:] - point.rollouts.predicted[:, 1:]
        return np.asarray(difference / (step[:, None, None] * self._noise))
