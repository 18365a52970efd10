"""Frozen sensors: stretches in which a channel repeats one value although the joint must have moved. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from gapd.measured.windows import Frames
from gapd.model.robot import ABSENT, Robot

Array = NDArray[np.float64]

# A quantised encoder at rest repeats itself as well: a stretch counts from this share of a window on,
# and is called stuck only by one of three contradictions.
MIN_SHARE = 0.5
MIN_FRAMES = 5
# 1. The commanded force changes by more than static friction holds: twice its upper bound, with a margin
#    because friction grows with load (an XL330 servo holds 1.3 times its bound). Over a whole recording of
#    some windows, in which a healthy joint moves at least once, a smaller share will do.
FORCE_MARGIN = 2.0
#    A joint needs this long to answer a command: forces are averaged over it, and its end is left out.
RESPONSE_S = 0.05
WHOLE_SHARE = 0.2
WHOLE_WINDOWS = 4.0
# 2. Position and velocity channels disagree on the way by this many standard deviations of each: far
#    above chance, and above the offset of an ordinary velocity channel.
WAY_POSITION_SD = 10.0
WAY_VELOCITY_SD = 3.0
# 3. The stretch ends in a jump larger than this many standard deviations and than this many times any of the
#    next steps. A joint that starts from rest does the opposite: its first step is its smallest.
JUMP_SD = 10.0
JUMP_RATIO = 3.0
JUMP_FRAMES = 5
# An effort channel may rest while the joint does, and in slow or saturated motion. It is frozen if it repeats
# one value for this many windows while the way bends off a straight line by this many standard deviations.
EFFORT_WINDOWS = 2.0
EFFORT_BEND_SD = 100.0
SATURATED_SHARE = 0.9
# A joint this close to its limit (share of the range) may rest on it under any command.
LIMIT_SHARE = 0.02


@dataclass(frozen=True)
class Stretch:
    """Rows first .. last (both included) in which a channel is frozen, and how that is known."""

    first: int
    last: int
    channel: int
    value: float
    reason: str


def stuck_stretches(frames: Frames, robot: Robot) -> list[Stretch]:
    """All stretches with a frozen position, velocity or effort channel."""
    if len(frames) < MIN_FRAMES:
        return []
    found = []
    with np.errstate(invalid="ignore", over="ignore"):  # data may hold NaN and inf
        for joint, channel in _judged(robot):
            for first, last in _constant(frames, channel, robot):
                reason = _contradiction(frames, robot, joint, channel, first, last)
                if reason:
                    value = float(frames.measured[first, channel])
                    found.append(Stretch(first, last, channel, value, reason))
    return found


def _judged(robot: Robot) -> list[tuple[int, int]]:
    """Joint and channel of all position, velocity and effort channels."""
    kinds = (robot.layout.position, robot.layout.velocity, robot.layout.effort)
    return [(j, int(k[j])) for j in range(robot.model.nv) for k in kinds if k[j] != ABSENT]


def _constant(frames: Frames, channel: int, robot: Robot) -> Iterator[tuple[int, int]]:
    """Row ranges, first to last, in which the channel repeats one finite value for long enough."""
    values = frames.measured[:, channel]
    repeats = np.concatenate([[False], values[1:] == values[:-1], [False]])  # NaN repeats nothing
    edges = np.flatnonzero(np.diff(repeats.astype(np.int8)))
    shortest_s = MIN_SHARE * robot.config.timing.window_s
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        duration = abs(frames.timestamp[last] - frames.timestamp[first])
        if last - first + 1 >= MIN_FRAMES and duration >= shortest_s:
            yield int(first), int(last)


def _contradiction(frames: Frames, robot: Robot, joint: int, channel: int, first: int, last: int) -> str:
    layout = robot.layout
    if channel == layout.effort[joint]:
        return _effort_contradiction(frames, robot, joint, first, last)
    is_position = channel == layout.position[joint]
    way, allowed = _disagreement(frames, robot, joint, first, last)
    if way > allowed:
        return f"position and velocity disagree by {way:.3g} over a window, {allowed:.3g} is allowed"
    if is_position and not _at_limit(robot, joint, float(frames.measured[first, channel])):
        force, held = _force_span(frames, robot, joint, first, last)
        if force > held:
            return f"its command asks for {force:.3g} of force or torque, {held:.3g} would move it"
    jump = _jump(frames, channel, last)
    if is_position and jump > JUMP_SD * layout.noise[channel]:
        return f"it then jumps by {jump:.3g} within a frame"
    return ""


def _effort_contradiction(frames: Frames, robot: Robot, joint: int, first: int, last: int) -> str:
    rows, layout = slice(first, last + 1), robot.layout
    if frames.timestamp[last] - frames.timestamp[first] < EFFORT_WINDOWS * robot.config.timing.window_s:
        return ""
    value = abs(float(frames.measured[first, layout.effort[joint]]))
    for actuator in actuators_of(robot, joint):
        drive = Drive.of(robot, actuator, frames.context[rows])
        if not drive.gain.all() or value >= SATURATED_SHARE * abs(drive.gear) * float(drive.high.min()):
            return ""
    position = frames.measured[rows, layout.position[joint]]
    bend = float(np.max(np.abs(position - np.linspace(position[0], position[-1], len(position)))))
    allowed = EFFORT_BEND_SD * layout.noise[layout.position[joint]]
    return f"the joint moves to and fro by {bend:.3g}" if bend > allowed else ""


def _disagreement(frames: Frames, robot: Robot, joint: int, first: int, last: int) -> tuple[float, float]:
    """Largest difference between way by position and by velocity over a window; what noise allows."""
    layout = robot.layout
    if layout.velocity[joint] == ABSENT:
        return 0.0, np.inf
    rows = slice(first, last + 1)
    times = frames.timestamp[rows]
    position = frames.measured[rows, layout.position[joint]]
    velocity = frames.measured[rows, layout.velocity[joint]]
    steps = np.diff(times) * (velocity[1:] + velocity[:-1]) / 2
    drift = position - np.concatenate([[0.0], np.cumsum(np.where(np.isfinite(steps), steps, 0.0))])
    period = float(np.median(np.diff(times)))
    span = min(len(times) - 1, max(1, round(robot.config.timing.window_s / period))) if period > 0 else 0
    differences = np.abs(drift[span:] - drift[: len(drift) - span])
    differences = differences[np.isfinite(differences)]
    noise = layout.noise[[layout.position[joint], layout.velocity[joint]]]
    allowed = WAY_POSITION_SD * noise[0] + WAY_VELOCITY_SD * noise[1] * span * period
    return (float(differences.max()) if len(differences) else 0.0), float(allowed)


def _jump(frames: Frames, channel: int, last: int) -> float:
    """Step right after a stretch, 0 where the next steps are of its size: then the joint just moves."""
    rows = slice(last, last + 2 + JUMP_FRAMES)
    # Per time: after a hole in the frames a step is larger.
    rates = np.abs(np.diff(frames.measured[rows, channel]) / np.diff(frames.timestamp[rows]))
    if len(rates) < 1 + JUMP_FRAMES or not np.isfinite(rates).all() or rates[0] <= JUMP_RATIO * rates[1:].max():
        return 0.0
    return float(abs(frames.measured[last + 1, channel] - frames.measured[last, channel]))


def _at_limit(robot: Robot, joint: int, position: float) -> bool:
    if not robot.model.jnt_limited[joint]:
        return False
    low, high = robot.model.jnt_range[joint]
    margin = LIMIT_SHARE * (high - low)
    return bool(position <= low + margin or position >= high - margin)


def _force_span(frames: Frames, robot: Robot, joint: int, first: int, last: int) -> tuple[float, float]:
    """Change of the commanded force at a resting joint, and the change that would move it; N or N·m."""
    rows = slice(first, last + 1)
    force = np.zeros(last + 1 - first)
    resolution = 0.0
    position_channel = robot.layout.position[joint]
    for actuator in actuators_of(robot, joint):
        drive = Drive.of(robot, actuator, frames.context[rows])
        if robot.model.nv > 1 and not drive.stiffness.any():
            return 0.0, np.inf  # a force command may hold the joint still against the links that move
        force += drive.force(frames.command[rows, actuator], frames.measured[rows, position_channel])
        resolution += float(np.max(np.abs(drive.stiffness))) * robot.layout.noise[position_channel] * JUMP_SD
    force = _sustained(force, frames.timestamp[rows])
    lasts = frames.timestamp[last] - frames.timestamp[first]
    whole = last - first + 1 == len(frames) and lasts >= WHOLE_WINDOWS * robot.config.timing.window_s
    held = 2 * friction_bound(robot)[joint] * (WHOLE_SHARE if whole else FORCE_MARGIN) + resolution
    force = force[np.isfinite(force)]
    if not len(force) or held == 0:
        return 0.0, np.inf
    return float(np.ptp(force)), float(held)


def _sustained(force: Array, times: Array) -> Array:
    """Means of the force over the joint's response time, those in time to show in the stretch."""
    period = abs(float(np.median(np.diff(times))))
    n = max(1, round(RESPONSE_S / period)) if period > 0 else len(force)
    if len(force) < 2 * n:
        return np.empty(0)
    total = np.concatenate([[0.0], np.cumsum(force[: len(force) - n])])
    return np.asarray((total[n:] - total[:-n]) / n)


def friction_bound(robot: Robot) -> Array:
    """Largest static friction (nv,) in N or N·m: the upper bound of a parameter, else the model's value."""
    bound: Array = robot.model.dof_frictionloss.copy()
    space = robot.parameters
    for parameter in space.free + space.frozen:
        largest = parameter.nominal if parameter.frozen else parameter.max
        for target in parameter.targets:
            if target.field == "dof_frictionloss":
                bound[robot.model.joint(target.element).dofadr[0]] = abs(largest * target.constant)
    return bound


def actuators_of(robot: Robot, joint: int) -> list[int]:
    """Actuators on a joint whose force is a linear function of command and position."""
    model = robot.model
    linear = (
        (model.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT)
        & (model.actuator_trnid[:, 0] == joint)
        & (model.actuator_gaintype == mujoco.mjtGain.mjGAIN_FIXED)
        & (model.actuator_biastype <= mujoco.mjtBias.mjBIAS_AFFINE.value)
        & (model.actuator_dyntype == mujoco.mjtDyn.mjDYN_NONE)
    )
    return [int(a) for a in np.flatnonzero(linear)]


@dataclass(frozen=True)
class Drive:
    """One actuator at nominal parameters under T rows of context: its force is linear within limits."""

    gear: float
    gain: Array  # (T,)
    stiffness: Array  # (T,) at the joint
    low: Array  # (T,)
    high: Array  # (T,)

    @classmethod
    def of(cls, robot: Robot, actuator: int, context: Array) -> Drive:
        """Resolve actuator and context (T, X) against model and nominal parameters."""
        gear = float(robot.model.actuator_gear[actuator, 0])
        limited = bool(robot.model.actuator_forcelimited[actuator])
        low, high = (_cell(robot, "actuator_forcerange", actuator, i, context) for i in (0, 1))
        return cls(
            gear,
            _cell(robot, "actuator_gainprm", actuator, 0, context),
            -_cell(robot, "actuator_biasprm", actuator, 1, context) * gear**2,
            low if limited else np.full(len(context), -np.inf),
            high if limited else np.full(len(context), np.inf),
        )

    def force(self, command: Array, position: Array) -> Array:
        """Force or torque (T,) at the joint at rest, without constant offset."""
        inside = np.clip(self.gain * command - self.stiffness / self.gear * position, self.low, self.high)
        return np.asarray(self.gear * inside)


def _cell(robot: Robot, field: str, actuator: int, index: int, context: Array) -> Array:
    """Nominal value (T,) of one actuator cell under context (T, X)."""
    array = getattr(robot.model, field)
    flat = actuator * array.shape[1] + index
    for cells in robot.binding.cells:
        for place in np.flatnonzero(cells.flat == flat) if cells.field == field else ():
            owner = cells.owner[place]
            value = cells.constant[place] * (robot.parameters.nominal[owner] if owner >= 0 else 1.0)
            return np.asarray(value * np.prod(context[:, list(cells.context[place])], axis=1))
    return np.full(len(context), array.reshape(-1)[flat])
