"""Air hockey: the knob hits puck 1, puck 1 hits puck 2, which has to come to rest near a target."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gaptrain.tasks.arm_task import CONTROL_S, DOWN, JOINTS, ArmTask, Plan
from gaptrain.tasks.simulator import Flags

Array = NDArray[np.float64]

# Where the coordinates of an action have their origin, and how high the knob's frame is held above the table, m.
ORIGIN = np.array([0.45, 0.0, 0.135])
STROKE_STEPS = 8  # the knob is commanded to move for so long: 0.4 s
GUESS = np.array([0.0, 0.4, np.pi, -1.9, 0.0, -0.9, 1.57])
TARGET_M = np.array([0.9, 0.05])
WITHIN_M = 0.10


class AirHockey(ArmTask):
    """Action: x and y where the knob starts (m), direction (rad) and speed (m/s) of its stroke."""

    name = "air_hockey"
    steps = 50
    action_low = np.array([-0.16, 0.07, -0.01 * np.pi, 0.4])
    action_high = np.array([-0.14, 0.08, 0.01 * np.pi, 0.5])
    channels = ("puck1/x", "puck1/y", "puck1/z", "puck2/x", "puck2/y", "puck2/z")
    objects = ((0, 1, 2), (3, 4, 5))
    real: ClassVar[dict[str, float]] = {
        "geom/puck1/sliding_friction": 0.04,
        "geom/puck2/sliding_friction": 0.03,
        "task/arm/velocity_lag": 0.85,
        "task/camera/x": 0.03,
        "task/camera/y": -0.02,
        **{
            f"geom/{geom}/contact_damping": -6.0
            for geom in ("knob", "puck1", "puck2", "table", "wall_near", "wall_far", "wall_left", "wall_right")
        },
    }

    def plan(self, actions: Array, physical: Array) -> Plan:
        """See `ArmTask.plan`."""
        x, y, angle, speed = actions.T
        moving = np.minimum(np.arange(self.steps + 1), STROKE_STEPS) * CONTROL_S
        path = np.stack([np.cos(angle), np.sin(angle), np.zeros_like(angle)], -1) * speed[:, None]
        first = ORIGIN + np.stack([x, y, np.zeros_like(x)], -1)
        rotation = np.broadcast_to(DOWN, (len(actions), 3, 3))
        start = self.arm.solve(np.tile(GUESS, (len(actions), 1)), first, rotation)
        return self.cartesian_plan(first[:, None] + moving[:, None] * path[:, None], start, rotation)

    def place(self, qpos: Array, actions: Array) -> None:
        """The pucks lie where the model has them."""

    def look(self, qpos: Array) -> Array:
        """See `ArmTask.look`: positions of both pucks."""
        return np.concatenate([qpos[:, JOINTS : JOINTS + 3], qpos[:, JOINTS + 7 : JOINTS + 10]], 1)

    def judge(self, seen: Array) -> tuple[Flags, Array]:
        """Puck 2 ends near the target."""
        miss = np.linalg.norm(seen[:, -1, 3:5] - TARGET_M, axis=-1)
        return miss < WITHIN_M, -miss
