"""Hypotheses of structure: what could act on a robot that no parameter writes, along its replayed motion. Pure.

The effect of each on the prediction is exact to first order: one more replay with a little of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

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
# Half gaps of backlash that are tried, as shares of what the joint's RMS load bends its servo.
GAPS = (0.03, 0.3, 1.0)
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


def hypotheses(
    robot: Robot, windows: Windows, features: Array, gaps: Mapping[str, float] = MappingProxyType({})
) -> list[Hypothesis]:
    """All hypotheses for all joints that move, from the replayed features (W, K+1, F) at the knots.

    gaps: half gap by joint, rad or m, of backlash that acts in these features.
    """
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
        found.extend(_play(robot, joint, steps, torque, gaps.get(layout.joints[joint])))
        if (bend := _bend(robot, joint)) is not None:
            found.append(bend)
    return found


def _at(layout: Layout, joint: int, regressor: str, *effects: Unmodelled, size: float) -> Hypothesis:
    unit = MEANING[regressor].slide if layout.slides[joint] else MEANING[regressor].hinge
    return Hypothesis(regressor, layout.joints[joint], effects, size, unit)


def _play(robot: Robot, joint: int, steps: Array, load: float, half_gap: float | None) -> list[Hypothesis]:
    """Backlash between a joint (number) and its position servo, which sees the motor; along features (W, N+1, F).

    One for each gap that is tried, or for half_gap alone, rad or m, which acts in these features already; load is the
    joint's RMS load. The motor has no mass: it runs against the servo's own damping to the face that the command asks
    for. At a face the servo acts as if its command were short by half the gap, between them as if it were short by all
    that it asks for.
    """
    layout, model = robot.layout, robot.model
    mine = np.flatnonzero(layout.actuator_joint == joint)
    gear = layout.actuator_gear[mine]
    stiffness, damping = (-model.actuator_biasprm[mine, i] @ gear**2 for i in (1, 2))
    servos = mine[model.actuator_biasprm[mine, 1] < 0]
    if stiffness < LOADED:
        return []
    size = load / stiffness
    halves = [share * size for share in GAPS] if half_gap is None else [max(half_gap, TRIAL_SHARE * size)]
    nv = len(layout.joints)
    q, v, u = (steps[..., joint], steps[..., nv + joint], steps[..., 2 * nv + mine])
    asked = u @ (gear * model.actuator_gainprm[mine, 0]) + model.actuator_biasprm[mine, 0] @ gear
    wanted = (asked - damping * v) / stiffness - q  # by how much a motor without a gap would be pulled ahead
    lag, found = damping / stiffness / layout.step_s, []
    for half in halves:
        short = np.empty_like(q)
        motor = q[:, 0] + np.clip(wanted[:, 0], -half, half)
        for step in range(q.shape[1]):
            free = (lag * motor + asked[:, step] / stiffness) / (lag + 1.0)
            motor = np.clip(free, q[:, step] - half, q[:, step] + half)
            short[:, step] = np.where(motor == free, wanted[:, step], motor - q[:, step])
        command = np.zeros((*q.shape, model.nu))
        command[..., servos] = -short[..., None] / half * layout.actuator_gear[servos]
        found.append(_at(layout, joint, "backlash", Unmodelled(command=command), size=size))
    return found


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
