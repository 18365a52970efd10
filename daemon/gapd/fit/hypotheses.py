"""Hypotheses of structure: what could act on a robot that no parameter writes, along its replayed motion. Pure.

The effect of each on the prediction is exact to first order: one more replay with a little of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gapd.fit.finding import MEANING
from gapd.gap.replay import Unmodelled
from gapd.measured.windows import Windows
from gapd.model.robot import ABSENT, Layout, Robot

Array = NDArray[np.float64]

# Speed at which a smoothed sign reaches 0.76, as a share of the joint's RMS speed: slower is "at rest".
SIGN_SHARE = 0.1
# Speed, as a share of the joint's RMS speed, below which extra friction counts as sticking.
STICK_SHARE = 0.3
# Share of the motion at either end in which a stop is looked for.
STOP_SHARE = 0.2
# Size of the trial force, as a share of the joint's RMS load: far above solver tolerance, still linear.
TRIAL_SHARE = 0.01
# Rotation of a body frame that matters, rad: derivatives are taken at a hundredth of it.
BEND = 0.1
# Joints slower or under less load than this (SI) are at rest: there is nothing to test.
MOVES = 1e-6
LOADED = 1e-9


@dataclass(frozen=True)
class Hypothesis:
    """Something at a joint whose strength is one coefficient, or a vector of them, in units of the regressor.

    `size` is a coefficient that matters: for a force the one that makes it as large as the joint's RMS load.
    """

    regressor: str
    joint: str
    effects: tuple[Unmodelled, ...]  # of a unit of each coefficient
    size: float
    unit: str  # of the coefficient

    @property
    def name(self) -> tuple[str, str]:
        """Regressor and joint: there is one hypothesis of a name along one motion."""
        return self.regressor, self.joint


def hypotheses(robot: Robot, windows: Windows, features: Array) -> list[Hypothesis]:
    """All hypotheses for all joints that move, from the replayed features (W, K+1, F) at the knots."""
    layout = robot.layout
    nv, nu = windows.qpos0.shape[1], windows.control.shape[2]
    steps = _to_steps(features, layout)
    position, velocity = steps[..., :nv], steps[..., nv : 2 * nv]
    load = np.zeros_like(position)
    for actuator in np.flatnonzero(layout.actuator_joint != ABSENT):
        force_at_joint = layout.actuator_gear[actuator] * steps[..., 2 * nv + nu + actuator]
        load[..., layout.actuator_joint[actuator]] += force_at_joint
    elapsed = _elapsed(windows)[:, None] + np.arange(layout.steps + 1) * layout.step_s
    found: list[Hypothesis] = []
    for joint in range(nv):
        speed, torque = _rms(velocity[..., joint]), _rms(load[..., joint])
        if speed < MOVES or torque < LOADED:
            continue
        q, v, tau = position[..., joint], velocity[..., joint], load[..., joint]
        sign = np.tanh(v / (SIGN_SHARE * speed))
        shapes = {
            "load friction": -np.abs(tau) * sign,
            "stiction": -sign * np.exp(-((v / (STICK_SHARE * speed)) ** 2)),
            "direction": -np.abs(sign),
            "spring": -(q - q.mean()),
            "upper stop": -np.maximum(q - np.quantile(q, 1 - STOP_SHARE), 0.0),
            "lower stop": np.maximum(np.quantile(q, STOP_SHARE) - q, 0.0),
            "drift": elapsed - elapsed.mean(),
        }
        for regressor, shape in shapes.items():
            size = _rms(shape)
            if size < LOADED:
                continue
            force = np.zeros_like(position)
            force[..., joint] = shape
            found.append(_at(layout, joint, regressor, Unmodelled(force=force), size=torque / size))
        if (play := _play(robot, joint, tau)) is not None:
            found.append(play)
        if (bend := _bend(robot, joint)) is not None:
            found.append(bend)
    return found


def _at(layout: Layout, joint: int, regressor: str, *effects: Unmodelled, size: float) -> Hypothesis:
    unit = MEANING[regressor].slide if layout.slides[joint] else MEANING[regressor].hinge
    return Hypothesis(regressor, layout.joints[joint], effects, size, unit)


def _play(robot: Robot, joint: int, load: Array) -> Hypothesis | None:
    """Backlash between a joint (number) and its position servo, which sees the motor; load (W, N+1), N·m or N.

    The motor is ahead of the joint by half the gap on the side that the load asks for, so the servo acts as if its
    command were short by that much.
    """
    layout, model = robot.layout, robot.model
    servos = np.flatnonzero((layout.actuator_joint == joint) & (model.actuator_biasprm[:, 1] < 0))
    stiffness = float(-model.actuator_biasprm[servos, 1] @ layout.actuator_gear[servos] ** 2)
    if stiffness < LOADED:
        return None
    torque = _rms(load)
    command = np.zeros((*load.shape, model.nu))
    command[..., servos] = -np.tanh(load / (SIGN_SHARE * torque))[..., None] * layout.actuator_gear[servos]
    return _at(layout, joint, "backlash", Unmodelled(command=command), size=torque / stiffness)


def _bend(robot: Robot, joint: int) -> Hypothesis | None:
    """Any small rotation of the frame of the body that a joint (number) moves: three coefficients."""
    number = int(robot.model.dof_bodyid[joint])
    if robot.model.body_jntnum[number] != 1:
        return None
    rotations = np.zeros((3, robot.model.nbody, 3))
    rotations[range(3), number, range(3)] = 1.0
    return _at(robot.layout, joint, "bent link", *(Unmodelled(rotation=r) for r in rotations), size=BEND)


def _to_steps(features: Array, layout: Layout) -> Array:
    """Features at knots (W, K+1, F) to simulation steps (W, N+1, F), linear in between."""
    at = np.arange(layout.steps + 1) / layout.substeps
    left = np.minimum(at.astype(int), layout.knots - 1)
    share = (at - left)[:, None]
    return np.asarray((1 - share) * features[:, left] + share * features[:, left + 1])


def _elapsed(windows: Windows) -> Array:
    """Start times (W,) around the middle of each recording: clocks of different recordings have nothing in common."""
    recordings, number = np.unique(windows.source, return_inverse=True)
    mean = np.bincount(number, windows.start_s) / np.bincount(number, minlength=len(recordings))
    return np.asarray(windows.start_s - mean[number])


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(values**2)))
