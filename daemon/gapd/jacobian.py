"""Where derivatives of a replay come from: finite differences (exact) or the gap model (cheap)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gapd.replay import Replay, Rollouts
from gapd.windows import Windows

Array = NDArray[np.float64]

# Forward differences: 1e-3 of a scaled unit moves a prediction far above the solver's tolerance, and
# keeps the truncation error at a thousandth of the derivative.
STEP_Z = 1e-3
STEP_POSITION = 1e-4  # rad or m
STEP_VELOCITY = 1e-3  # rad/s or m/s


@dataclass(frozen=True)
class Point:
    """Where to linearise: windows, scaled parameters (P,) or (W, P), initial state (W, nv) each, their replay."""

    windows: Windows
    z: Array
    qpos0: Array
    qvel0: Array
    rollouts: Rollouts


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
    """Exact derivatives: one rollout per window and column."""

    def __init__(self, replay: Replay) -> None:
        """Use the replay's robot, model and rollout counter."""
        self.replay = replay
        self._noise = replay.robot.layout.noise

    def linearise(self, point: Point) -> Linearisation:
        """All P + 2 nv columns."""
        return Linearisation(self.parameters(point), self.initial_state(point))

    def parameters(self, point: Point, directions: Array | None = None) -> Array:
        """Derivatives (W, K, C, D) along the directions (P, D) of scaled parameters; all P axes by default.

        Along one axis the step goes inwards where the upper bound is near, so that no replay leaves the bounds.
        """
        space = self.replay.robot.parameters
        if directions is None:
            directions = np.eye(len(space))
        columns = []
        for direction in directions.T:
            length = STEP_Z / float(np.linalg.norm(direction))
            inside = np.all(point.z + length * direction <= space.z_max)
            step = length if inside else -length
            physical = space.to_physical(point.z + step * direction)
            moved = self.replay.run(point.windows, physical, point.qpos0, point.qvel0)
            columns.append(self._slope(moved, point, step))
        return np.stack(columns, axis=-1)

    def initial_state(self, point: Point) -> Array:
        """Derivatives (W, K, C, 2 nv) with respect to initial position and velocity."""
        physical = self.replay.robot.parameters.to_physical(point.z)
        nv = point.qpos0.shape[1]
        columns = []
        for axis in range(2 * nv):
            shift = np.zeros(2 * nv)
            shift[axis] = STEP_POSITION if axis < nv else STEP_VELOCITY
            moved = self.replay.run(point.windows, physical, point.qpos0 + shift[:nv], point.qvel0 + shift[nv:])
            columns.append(self._slope(moved, point, shift[axis]))
        return np.stack(columns, axis=-1)

    def _slope(self, moved: Rollouts, point: Point, step: float) -> Array:
        difference = moved.predicted[:, 1:] - point.rollouts.predicted[:, 1:]
        return np.asarray(difference / (step * self._noise))
