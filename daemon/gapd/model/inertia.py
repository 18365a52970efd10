"""Inertia of a body by ten numbers that can never contradict each other.

Mass, centre of mass and inertia written one by one may describe a body that cannot exist: principal moments that
violate the triangle inequality need negative mass somewhere. What exists is exactly what has a positive semidefinite
pseudo-inertia, the matrix [[S, h], [h^T, m]] of the second moments S, first moments h and mass m of its density
(Wensing, Kim and Slotine, "Linear matrix inequalities for physically-consistent inertial parameter identification",
RA-L 2018). Rucker and Wensing ("Smooth parameterization of rigid-body inertia", RA-L 2022) make any ten numbers such a
matrix by writing it as the product of a triangular factor with its transpose, the diagonal in logarithms. Here the
factor is taken about the centre of mass and split into lengths and a rotation, so that each number has a unit and a
meaning:

    mass       m, kg, positive
    com        c, m, centre of mass in the frame of the body
    spread     s, m, standard deviation of the mass along each principal axis, not negative
    axes       a, rad, rotation vector that turns the frame of the body into the principal one

    S about c = m R(a) diag(s^2) R(a)^T,  principal moments I_k = m (s_i^2 + s_j^2)

Any such numbers have I_i + I_j - I_k = 2 m s_k^2 >= 0, and the inertia grows with the mass at constant shape. All are
absolute: what they mean does not depend on the values that a model had before.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.intp]

# Targets of this kind, with the first of their places among the ten numbers, and how many they are.
PARTS = {"inertia.mass": (0, 1), "inertia.com": (1, 3), "inertia.spread": (4, 3), "inertia.axes": (7, 3)}
# Fields of MjModel that they write, with the first of their places among eleven numbers, and how many they are.
FIELDS = {"body_mass": (0, 1), "body_ipos": (1, 3), "body_inertia": (4, 3), "body_iquat": (7, 4)}
# Which parts decide a field: the mass scales the inertia with it.
DECIDES = {
    "body_mass": ("inertia.mass",),
    "body_ipos": ("inertia.com",),
    "body_inertia": ("inertia.mass", "inertia.spread"),
    "body_iquat": ("inertia.axes",),
}
# The number among the ten that stands for each of the eleven, so that cells of different meaning look different.
STANDS_FOR = np.array([0, 1, 2, 3, 4, 5, 6, -1, 7, 8, 9])


@dataclass(frozen=True)
class InertiaCells:
    """The columns of one field that bodies with a consistent inertia write; B such bodies in the model, Q columns."""

    column: Index  # (Q,) among the cells of the field
    flat: Index  # (Q,) position in the flattened field
    body: Index  # (Q,) among the B bodies
    place: Index  # (Q,) among the eleven numbers
    owner: Index  # (B, 10) parameter that gives the number, -1 where it is constant
    constant: Array  # (B, 10) factor of the parameter, or the constant itself

    @property
    def owners(self) -> Index:
        """Parameter (Q,) that each column stands for, -1 for none."""
        number = STANDS_FOR[self.place]
        return np.where(number < 0, -1, self.owner[self.body, number])

    @property
    def constants(self) -> Array:
        """Factor or constant (Q,) of the number that each column stands for."""
        number = STANDS_FOR[self.place]
        return np.where(number < 0, 1.0, self.constant[self.body, number])

    def values(self, padded: Array) -> Array:
        """Values (n, Q) for the columns from physical values (n, P + 1) of which the last is 1."""
        return cells_of(padded[:, self.owner] * self.constant)[:, self.body, self.place]


def numbers_of(model: mujoco.MjModel, body: int) -> Array:
    """The ten numbers of a body as it is in the model; spreads of a body without mass are 0."""
    mass, inertia = float(model.body_mass[body]), model.body_inertia[body]
    second = (inertia.sum() / 2 - inertia) / mass if mass > 0 else np.zeros(3)
    spread = np.sqrt(np.maximum(second, 0.0))
    return np.concatenate([[mass], model.body_ipos[body], spread, rotation_vector(model.body_iquat[body])])


def cells_of(numbers: Array) -> Array:
    """The eleven cells (..., 11) of MjModel, mass, ipos, inertia and iquat, from ten numbers (..., 10)."""
    mass, second = numbers[..., :1], numbers[..., 4:7] ** 2
    inertia = mass * (second.sum(axis=-1, keepdims=True) - second)
    return np.concatenate([numbers[..., :4], inertia, quaternion(numbers[..., 7:])], axis=-1)


def quaternion(vector: Array) -> Array:
    """Unit quaternion (..., 4), w first, of a rotation vector (..., 3) in rad."""
    half = np.linalg.norm(vector, axis=-1, keepdims=True) / 2
    # sin(half) / (2 half), which is 1 / 2 at 0
    return np.concatenate([np.cos(half), vector * np.sinc(half / np.pi) / 2], axis=-1)


def rotation_vector(quaternion: Array) -> Array:
    """Rotation vector (3,) in rad, not longer than pi, of a quaternion (4,), w first."""
    w, xyz = quaternion[0], quaternion[1:]
    length = float(np.linalg.norm(xyz))
    if length == 0:
        return np.zeros(3)
    angle = 2 * np.arctan2(length, abs(w))
    return np.asarray(xyz / length * (angle if w >= 0 else -angle))
