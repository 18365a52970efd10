"""Ball drop: a ball falls on one stone, bounces to another and has to fall past a target."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gaptrain.tasks.arm_task import JOINTS, ArmTask, Plan
from gaptrain.tasks.simulator import Flags

Array = NDArray[np.float64]

TABLE_M = 0.8  # the table's top, where the model has its origin, above the floor
RELEASE_M = np.array([0.5, 0.0])  # where the ball is released
GUESS = np.array([0.0, 0.1, np.pi, -1.0, 0.0, 0.5, 1.57])
BALL = slice(JOINTS + 2, JOINTS + 5)
TARGET_M = np.array([1.9, 0.0, 0.5])
WITHIN_M = 0.065


class BallDrop(ArmTask):
    """Action: the height above the floor at which the ball is released (m)."""

    name = "ball_drop"
    steps = 30
    action_low = np.array([1.5])
    action_high = np.array([1.75])
    channels = ("ball/x", "ball/y", "ball/z")
    objects = ((0, 1, 2),)
    real: ClassVar[dict[str, float]] = {
        "geom/ball/contact_damping": -7.0,
        "geom/stone1/contact_damping": -20.0,
        "geom/stone2/contact_damping": -15.0,
    }

    def plan(self, actions: Array, physical: Array) -> Plan:
        """See `ArmTask.plan`: the hand holds still where it lets go."""
        n = len(actions)
        hand = np.concatenate([np.tile(RELEASE_M, (n, 1)), actions - TABLE_M], 1)
        start = self.arm.solve(np.tile(GUESS, (n, 1)), hand, None)
        return Plan(start, np.zeros((n, self.steps, JOINTS)))

    def place(self, qpos: Array, actions: Array) -> None:
        """Put the ball between the fingers."""
        qpos[:, BALL.start : BALL.start + 2] = RELEASE_M
        qpos[:, BALL.stop - 1] = actions[:, 0] - TABLE_M

    def look(self, qpos: Array) -> Array:
        """See `ArmTask.look`: position of the ball."""
        return np.asarray(qpos[:, BALL].copy())

    def judge(self, seen: Array) -> tuple[Flags, Array]:
        """The ball's path between control steps, taken as straight, passes the target while it falls."""
        first, leg = seen[:, :-1], np.diff(seen, axis=1)
        share = ((TARGET_M - first) * leg).sum(-1) / np.maximum((leg**2).sum(-1), 1e-12)
        near = np.linalg.norm(first + np.clip(share, 0, 1)[..., None] * leg - TARGET_M, axis=-1)
        miss = np.where(leg[..., 2] < 0, near, np.inf).min(1)
        return miss < WITHIN_M, -miss
