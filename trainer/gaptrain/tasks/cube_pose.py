"""Cube pose: two fingertips push a cube over the table to a position and heading."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gaptrain.tasks.arm_task import CONTROL_S, DOWN, JOINTS, ArmTask, Plan
from gaptrain.tasks.kinematics import matrices, rotation_vector
from gaptrain.tasks.simulator import Flags

Array = NDArray[np.float64]

START_M = np.array([0.43, 0.0, 0.14])  # of the tool: the fingers stand behind the cube
GUESS = np.array([0.0, 0.4, np.pi, -1.9, 0.0, -0.9, 1.57])
CUBE = JOINTS + 7  # its free joint in qpos
SPEED = np.array([0.2, 0.1, 0.01, 0.6])  # largest commands along x, y, z (m/s) and about z (rad/s)
TARGET_M = np.array([0.64, 0.0])
TARGET_RAD = 0.0
WITHIN_M, WITHIN_RAD = 0.05, 0.05
CORNERS = 3  # a drawn motion is straight lines between so many random commands
GAINS = ("action_gain_x", "action_gain_y", "action_gain_z", "action_gain_yaw")


class CubePose(ArmTask):
    """Action: velocity along x, y, z and about z for each of 30 steps, as a share of the largest, flattened (120,).

    The published table gives no shift for it: there the robot was real. The one here is ours.
    """

    name = "cube_pose"
    steps = 30
    action_low = np.tile([0.0, -1.0, -1.0, -1.0], 30)
    action_high = np.ones(120)
    channels = ("cube/x", "cube/y", "cube/z", "cube_turn/rx", "cube_turn/ry", "cube_turn/rz")
    objects = ((0, 1, 2), (3, 4, 5))
    real: ClassVar[dict[str, float]] = {
        "geom/cube/sliding_friction": 0.2,
        "body/cube/mass": 0.2,
        "body/cube/com_y": 0.008,
        "geom/fingers/sliding_friction": 0.3,
        "task/arm/velocity_lag": 0.85,
        "task/arm/action_gain_x": 0.75,
        "task/camera/x": 0.03,
        "task/camera/y": -0.02,
    }

    def plan(self, actions: Array, physical: Array) -> Plan:
        """See `ArmTask.plan`: the gains of the robot's own controller multiply what the action asks for."""
        n = len(actions)
        gains = np.stack([self.parameters.own(name, physical, 1.0) for name in GAINS], -1)
        moved = np.cumsum(actions.reshape(n, self.steps, 4) * (SPEED * gains)[:, None] * CONTROL_S, axis=1)
        moved = np.concatenate([np.zeros((n, 1, 4)), moved], 1)
        q = start = np.repeat(self.arm.solve(GUESS[None], START_M[None], DOWN[None]), n, axis=0)
        velocity = np.empty((n, self.steps, JOINTS))
        for step in range(self.steps):
            wanted = moved[:, step + 1]
            following = self.arm.step(q, START_M + wanted[:, :3], _turned(wanted[:, 3]) @ DOWN)
            velocity[:, step] = (following - q) / CONTROL_S
            q = following
        return Plan(start, velocity)

    def draw(self, rng: np.random.Generator, n: int) -> Array:
        """Smooth motions (n, 120): independent noise in each step would average to the same push every time."""
        corners = rng.uniform(self.action_low[:4], self.action_high[:4], (n, CORNERS, 4))
        place = np.linspace(0, CORNERS - 1, self.steps)
        left = np.minimum(place.astype(int), CORNERS - 2)
        share = (place - left)[:, None]
        return np.asarray(((1 - share) * corners[:, left] + share * corners[:, left + 1]).reshape(n, -1))

    def place(self, qpos: Array, actions: Array) -> None:
        """The cube lies where the model has it."""

    def look(self, qpos: Array) -> Array:
        """See `ArmTask.look`: position and rotation vector of the cube."""
        turned = rotation_vector(matrices(qpos[:, CUBE + 3 : CUBE + 7]))
        return np.concatenate([qpos[:, CUBE : CUBE + 3], turned], 1)

    def judge(self, seen: Array) -> tuple[Flags, Array]:
        """The cube ends at the target, not turned."""
        miss = np.linalg.norm(seen[:, -1, :2] - TARGET_M, axis=-1)
        turn = np.abs(seen[:, -1, 5] - TARGET_RAD)
        return (miss < WITHIN_M) & (turn < WITHIN_RAD), -(miss + turn)


def _turned(angle: Array) -> Array:
    half, zero = angle / 2, np.zeros_like(angle)
    return matrices(np.stack([np.cos(half), zero, zero, np.sin(half)], -1))
