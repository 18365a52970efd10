"""How large forces, inertias and motions of a model are: what bounds of a value that is 0 are made from.

A milligram gripper and a truck differ by twelve powers of ten in torque. Weight tells: the torque that holds a joint's
subtree in the model's gravity, or what its actuators can do, if that is more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import mujoco
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

GRAVITY = 9.81
# What the letters in the comments of the families mean.
LETTERS = (
    "In the comments, T is the torque or force that the weight of what a joint carries puts on it in the reference "
    "pose, or what its actuators can do if they are limited and that is more, up to a hundred times; I its inertia "
    "there; x one radian, or the travel of a slide; v the speed that the weight alone gives it over x. For actuators "
    "and tendons they are what follows from those of the joints that they move."
)
# A force limit of 1e6 in an MJCF means "none".
MOST_TIMES_LOAD = 100.0


@dataclass(frozen=True)
class Magnitudes:
    """Typical values along each of n coordinates: what holds or moves it, what it weighs, and the motion it makes."""

    force: Array  # (n,) N·m or N
    inertia: Array  # (n,) kg·m² or kg
    travel: Array  # (n,) rad or m
    speed: Array  # (n,) rad/s or m/s, what the weight alone gives it over the travel

    def at(self, rows: slice | int) -> Magnitudes:
        """Of one joint, the smallest of its coordinates: arrays (1,)."""
        parts = (self.force, self.inertia, self.travel, self.speed)
        return Magnitudes(*(np.atleast_1d(part[rows]).min(keepdims=True) for part in parts))


@dataclass(frozen=True)
class ModelMagnitudes:
    """Magnitudes of a model's joint coordinates (nv), actuators (nactuator) and tendons (ntendon)."""

    dof: Magnitudes
    actuator: Magnitudes
    tendon: Magnitudes
    length: float  # m, size of a typical body


def magnitudes(model: mujoco.MjModel) -> ModelMagnitudes:
    """Magnitudes of a model in its reference configuration."""
    data = mujoco.MjData(model)
    mujoco.mj_fwdPosition(model, data)
    length = max(float(model.stat.meansize), 1e-6)
    load = _loads(model, length)
    outputs = _moments(model, data)[model.actuator_outadr] if model.nactuator else np.zeros((0, model.nv))
    actuator = _across(model, data, outputs, load, length)
    force = _strength(model, actuator.force)
    limit = np.abs(outputs).T @ np.where(model.actuator_forcelimited, force, 0.0)
    dof = replace(load, force=np.clip(limit, load.force, MOST_TIMES_LOAD * load.force))
    tendon = _across(model, data, _tendon_moments(model, data), load, length)
    return ModelMagnitudes(dof, replace(actuator, force=force), tendon, length)


def _loads(model: mujoco.MjModel, length: float) -> Magnitudes:
    """What gravity asks of each joint coordinate (nv): m g along a slide, m g r about a hinge, r of gyration."""
    gravity = float(np.linalg.norm(model.opt.gravity)) or GRAVITY
    mass = np.maximum(model.body_subtreemass[model.dof_bodyid], 1e-15)
    moving = np.maximum(model.dof_M0 - model.dof_armature, 1e-3 * model.dof_M0)
    linear = _is_linear(model)
    force = gravity * np.where(linear, mass, np.sqrt(np.maximum(moving * mass, 0.0)))
    travel = np.where(linear, length, 1.0)
    for joint in np.flatnonzero(model.jnt_limited & (model.jnt_type == int(mujoco.mjtJoint.mjJNT_SLIDE))):
        travel[model.jnt_dofadr[joint]] = max(float(np.ptp(model.jnt_range[joint])) / 2, 1e-3 * length)
    force, inertia = np.maximum(force, 1e-15), np.maximum(model.dof_M0, 1e-15)
    return Magnitudes(force, inertia, travel, np.sqrt(force * travel / inertia))


def _is_linear(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """Whether each joint coordinate (nv,) is a length."""
    kind = model.jnt_type[model.dof_jntid]
    first = np.arange(model.nv) - model.jnt_dofadr[model.dof_jntid] < 3
    free = (kind == int(mujoco.mjtJoint.mjJNT_FREE)) & first
    return np.asarray(free | (kind == int(mujoco.mjtJoint.mjJNT_SLIDE)))


def _across(model: mujoco.MjModel, data: mujoco.MjData, moments: Array, load: Magnitudes, length: float) -> Magnitudes:
    """Magnitudes of what moves joints with moments (n, nv): the force that balances the loads, the inertia it feels."""
    square = (moments**2).sum(axis=1)
    force = np.abs(moments) @ load.force / np.where(square > 0, square, 1.0)
    solved = np.zeros_like(moments)
    if moments.size:
        mujoco.mj_solveM(model, data, solved, np.ascontiguousarray(moments))
    mobility = (moments * solved).sum(axis=1)
    travel, speed = ((np.abs(moments) * part).max(axis=1, initial=0.0) for part in (load.travel, load.speed))
    weight = max(float(model.body_subtreemass[0]), 1e-15)
    return Magnitudes(
        np.where(square > 0, force, weight * GRAVITY),
        np.where(mobility > 0, 1 / np.where(mobility > 0, mobility, 1.0), weight),
        np.where(travel > 0, travel, length),
        np.where(speed > 0, speed, np.sqrt(GRAVITY * length)),
    )


def _strength(model: mujoco.MjModel, needed: Array) -> Array:
    """Force (nactuator,) of each actuator: its limit where it has one, else what balances the loads."""
    limit = np.abs(model.actuator_forcerange).max(axis=1, initial=0.0)
    limited = np.asarray(model.actuator_forcelimited, bool) & (limit > 0)
    return np.asarray(np.where(limited, np.minimum(limit, MOST_TIMES_LOAD * needed), needed))


def _moments(model: mujoco.MjModel, data: mujoco.MjData) -> Array:
    """Moments (nout, nv) of the actuators' force outputs."""
    dense = np.zeros((len(data.moment_rownnz), model.nv))
    mujoco.mju_sparse2dense(
        dense, data.actuator_moment.reshape(-1), data.moment_rownnz, data.moment_rowadr, data.moment_colind.reshape(-1)
    )
    return dense


def _tendon_moments(model: mujoco.MjModel, data: mujoco.MjData) -> Array:
    """Moments (ntendon, nv) of the tendons."""
    dense = np.zeros((model.ntendon, model.nv))
    if model.ntendon:
        mujoco.mju_sparse2dense(dense, data.ten_J, model.ten_J_rownnz, model.ten_J_rowadr, model.ten_J_colind)
    return dense
