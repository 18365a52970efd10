"""Kinematics of a serial arm at nominal: where its tool is, and which joint velocities move it as wanted."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

DAMPING = 0.02  # of the least squares, m and rad: bounds joint velocities near singular poses


class Arm:
    """A chain of hinges, each about the z axis at the origin of its body, that ends in body `tool`."""

    def __init__(self, model: mujoco.MjModel) -> None:
        """Read offsets and rotations between neighbouring bodies off the model."""
        chain = [model.body("tool").id]
        while chain[0]:
            chain.insert(0, int(model.body_parentid[chain[0]]))
        self._links = [(model.body_pos[b].copy(), _matrix(model.body_quat[b])) for b in chain[1:]]
        self._hinged = [bool(model.body_jntnum[b]) for b in chain[1:]]

    def pose(self, q: Array) -> tuple[Array, Array, Array]:
        """Position (n, 3) m, rotation (n, 3, 3) and Jacobian (n, 6, 7) of the tool at joint angles (n, 7) rad."""
        n, joint = len(q), 0
        position, rotation = np.zeros((n, 3)), np.broadcast_to(np.eye(3), (n, 3, 3))
        origins, axes = [], []
        for (offset, turn), hinged in zip(self._links, self._hinged, strict=True):
            position = position + rotation @ offset
            rotation = rotation @ turn
            if hinged:
                origins.append(position)
                axes.append(rotation[:, :, 2])
                rotation = rotation @ _about_z(q[:, joint])
                joint += 1
        arms = np.stack([np.cross(a, position - o) for a, o in zip(axes, origins, strict=True)], -1)
        return position, rotation, np.concatenate([arms, np.stack(axes, -1)], 1)

    def step(self, q: Array, position: Array, rotation: Array | None) -> Array:
        """Joint angles (n, 7) one Newton step nearer to position (n, 3) and, where given, rotation (n, 3, 3)."""
        here, turned, jacobian = self.pose(q)
        wanted = position - here
        if rotation is None:
            jacobian = jacobian[:, :3]
        else:
            wanted = np.concatenate([wanted, rotation_vector(rotation @ turned.swapaxes(1, 2))], 1)
        square = jacobian @ jacobian.swapaxes(1, 2) + DAMPING**2 * np.eye(wanted.shape[1])
        return np.asarray(q + (jacobian.swapaxes(1, 2) @ np.linalg.solve(square, wanted[..., None]))[..., 0])

    def solve(self, q: Array, position: Array, rotation: Array | None, rounds: int = 60) -> Array:
        """Joint angles (n, 7) that reach a pose, from a guess (n, 7)."""
        for _ in range(rounds):
            q = self.step(q, position, rotation)
        return q


def rotation_vector(rotation: Array) -> Array:
    """Axis times angle (..., 3) rad of rotation matrices (..., 3, 3), by the sine: for angles well below pi/2."""
    skew = rotation - rotation.swapaxes(-1, -2)
    vector = np.stack([skew[..., 2, 1], skew[..., 0, 2], skew[..., 1, 0]], -1) / 2
    sine = np.linalg.norm(vector, axis=-1, keepdims=True)
    trace = np.trace(rotation, axis1=-2, axis2=-1)[..., None]
    angle = np.arctan2(sine, (trace - 1) / 2)
    return np.asarray(vector * np.where(sine > 1e-9, angle / np.maximum(sine, 1e-12), 1.0))


def matrices(quaternions: Array) -> Array:
    """Rotation matrices (..., 3, 3) of unit quaternions (..., 4), wxyz."""
    w, x, y, z = np.moveaxis(quaternions, -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, -1) for row in rows], -2)


def _matrix(quaternion: Array) -> Array:
    return matrices(np.asarray(quaternion, float) / np.linalg.norm(quaternion))


def _about_z(angle: Array) -> Array:
    half = angle / 2
    zero = np.zeros_like(half)
    return matrices(np.stack([np.cos(half), zero, zero, np.sin(half)], -1))
