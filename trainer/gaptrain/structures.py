"""Hidden structure of stand-in robots: what no parameter of theirs expresses, bound to batches of simulations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mujoco
import numpy as np
from mujoco import batch
from numpy.typing import NDArray

from gapd.errors import InputError
from gapd.model.robot import Robot
from gaptrain.simulate import Structure

Array = NDArray[np.float64]


def load_dependent_friction(robot: Robot, joint: str, share: float) -> Structure:
    """Hidden structure: frictionloss of the joint grows by `share` of the absolute actuator torque on it."""
    dof = int(robot.model.joint(joint).dofadr[0])

    def bind(sims: batch.Batch) -> Callable[[], None]:
        friction, torque = sims.expand("dof_frictionloss"), sims.bind("qfrc_actuator")
        base = friction[:, dof].copy()

        def apply() -> None:
            friction[:, dof] = base + share * np.abs(torque[:, dof])

        return apply

    return bind


def backlash(robot: Robot, joint: str, half_gap: float) -> Structure:
    """Hidden structure: play of +-half_gap (rad, m on a slide) between the joint's actuators and the joint.

    The actuators move a motor side without mass, which has their position and velocity feedback; sensors of the joint
    see the joint. Inside the gap the motor runs against its own damping and no force reaches the joint. At a face
    contact is rigid: the actuators see the joint's position plus or minus half_gap. So there is no contact stiffness,
    and stable is what is stable without the gap. InputError where the actuators have no feedback of both kinds: a motor
    side without mass would cross the gap at once. Limits of the force hold at the faces only.
    """
    model, dof = robot.model, int(robot.model.joint(joint).dofadr[0])
    mine = np.flatnonzero(robot.layout.actuator_joint == dof)
    gear = robot.layout.actuator_gear[mine]
    step_s = robot.layout.step_s

    def bind(sims: batch.Batch) -> Callable[[], None]:
        gain, bias = sims.expand("actuator_gainprm"), sims.expand("actuator_biasprm")
        gain0, bias0 = gain[:, mine].copy(), bias[:, mine].copy()
        stiffness = -(bias0[..., 1] @ gear**2)
        damping = -(bias0[..., 2] @ gear**2)
        if not ((stiffness > 0).all() and (damping > 0).all()):
            raise InputError(
                f"backlash at {joint}: its actuators feed back stiffness {stiffness.min() + 0.0:g} and damping "
                f"{damping.min() + 0.0:g}, and both have to be above zero; choose a joint with a position servo"
            )
        qpos, ctrl = sims.bind("qpos"), sims.bind("ctrl")
        motor = qpos[:, dof].copy()

        def apply() -> None:
            nonlocal motor
            q, command = qpos[:, dof], ctrl[:, mine]
            asked = (gain0[..., 0] * command + bias0[..., 0]) @ gear
            # Implicit Euler of  damping motor' = asked - stiffness motor.
            free = (damping * motor + step_s * asked) / (damping + step_s * stiffness)
            side = np.where(free > q + half_gap, 1.0, np.where(free < q - half_gap, -1.0, 0.0))
            motor = np.clip(free, q - half_gap, q + half_gap)
            touching = (side != 0.0)[:, None]
            gain[:, mine] = gain0 * touching[..., None]
            bias[:, mine] = bias0 * touching[..., None]
            bias[:, mine, 0] += bias0[..., 1] * gear * half_gap * side[:, None]

        return apply

    if not len(mine):
        driven = [robot.layout.joints[j] for j in robot.layout.actuator_joint if j >= 0]
        raise InputError(f"backlash at {joint}: no actuator drives it; choose one of {', '.join(driven)}")
    _require_affine(model, mine, joint)
    return bind


def _require_affine(model: mujoco.MjModel, actuators: NDArray[np.intp], joint: str) -> None:
    """InputError where the actuators are no affine function of command, position and velocity."""
    plain = (model.actuator_gaintype[actuators] == mujoco.mjtGain.mjGAIN_FIXED.value) & (
        model.actuator_dyntype[actuators] == mujoco.mjtDyn.mjDYN_NONE.value
    )
    if not plain.all():
        raise InputError(f"backlash at {joint}: an actuator has a state or a gain that is not fixed; use a servo")


def bent_link(robot: Robot, body: str, angle: float, axis: Sequence[float] = (1.0, 0.0, 0.0)) -> Structure:
    """Hidden structure: the body's frame is rotated in its parent by `angle` (rad) about `axis` (3,), in that frame.

    The body's mass and all that hangs on it turn along; about the axis of the body's own joint it is an offset of that
    joint.
    """
    number = int(robot.model.body(body).id)
    turn = np.empty(4)
    mujoco.mju_axisAngle2Quat(turn, np.asarray(axis, float) / np.linalg.norm(axis), angle)

    def bind(sims: batch.Batch) -> Callable[[], None]:
        quat, turned = sims.expand("body_quat"), np.empty(4)
        for row in quat[:, number]:
            mujoco.mju_mulQuat(turned, row, turn)
            row[:] = turned
        sims.set_const()
        return _nothing

    return bind


def _nothing() -> None:
    """Change nothing in a step."""
