"""Spikes: what each signal of a recording may reach, from its own spread and from the model. Pure.

A lost bit or a wrong unit makes a number that is finite, and that no joint can have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gapd.measured.windows import Frames
from gapd.model.robot import ABSENT, Robot

Array = NDArray[np.float64]

# A sample this many times the spread away from the median is a spike; the spread holds 99 % of the recording.
SPREADS = 50.0
QUANTILES = (0.005, 0.5, 0.995)
# Frames from which quantiles mean something, and rows that suffice for them.
MIN_FRAMES = 20
SAMPLE_ROWS = 100_000
# Least spread, for recordings in which a signal hardly ever moves: of positions and velocities, in rad or m and per
# second; of commanded forces in static frictions; of what else is measured in noise standard deviations.
LEAST_TURN = 1.0
LEAST_WAY = 0.1
LEAST_FRICTIONS = 20.0
LEAST_NOISES = 100.0
# A joint that is limited is not this many of its ranges beyond its limits.
RANGES = 3.0
# No signal in SI units is as large; squares of much larger ones overflow.
HUGE = 1e12


@dataclass(frozen=True)
class Limits:
    """Smallest and largest plausible value of each column."""

    low: Array
    high: Array

    def outside(self, values: Array) -> NDArray[np.bool_]:
        """Which of the values (T, n) are spikes; NaN is not."""
        return np.asarray((values < self.low) | (values > self.high))


def measured_limits(frames: Frames, robot: Robot) -> Limits:
    """Limits (C,) of the channels."""
    layout, model = robot.layout, robot.model
    least = LEAST_NOISES * layout.noise
    for roles in (layout.position, layout.velocity):
        known = np.flatnonzero(roles != ABSENT)
        least[roles[known]] = np.maximum(least[roles[known]], np.where(layout.slides, LEAST_WAY, LEAST_TURN)[known])
    limits = _limits(frames.measured, least)
    joint = np.flatnonzero(model.jnt_limited)
    low, high = model.jnt_range[joint].T
    channel, beyond = layout.position[joint], RANGES * (high - low)
    limits.low[channel] = np.maximum(limits.low[channel], low - beyond)
    limits.high[channel] = np.minimum(limits.high[channel], high + beyond)
    return limits


def command_limits(frames: Frames, robot: Robot, friction: Array) -> Limits:
    """Limits (nu,) of the commands. `friction` (nu,): the command that asks for the joint's static friction, or 0."""
    model, layout = robot.model, robot.layout
    least = LEAST_FRICTIONS * friction
    limited = np.flatnonzero(model.actuator_ctrllimited)
    least[limited] = np.maximum(least[limited], np.ptp(model.actuator_ctrlrange[limited], axis=1))
    servos = np.flatnonzero((layout.actuator_joint != ABSENT) & (model.actuator_biasprm[:, 1] != 0))
    least[servos] = np.maximum(least[servos], LEAST_TURN)
    return _limits(frames.command, least)


def context_limits(robot: Robot) -> Limits:
    """Limits (X,) of the context, from the range that robot.toml declares."""
    low = np.array([c.low for c in robot.config.context], float)
    high = np.array([c.high for c in robot.config.context], float)
    beyond = np.where(high > low, SPREADS * (high - low), HUGE)
    return Limits(low - beyond, high + beyond)


def _limits(values: Array, least: Array) -> Limits:
    """Limits (n,) of columns (T, n) around their medians; none for a column of which too little is known."""
    sampled = values[:: max(1, len(values) // SAMPLE_ROWS)]
    low, high = np.full(values.shape[1], -HUGE), np.full(values.shape[1], HUGE)
    for column, some in enumerate(sampled.T):
        finite = some[np.abs(some) < HUGE]
        if len(finite) < MIN_FRAMES:
            continue
        bottom, middle, top = np.quantile(finite, QUANTILES)
        spread = max(top - bottom, least[column])
        if spread > 0:
            low[column], high[column] = middle - SPREADS * spread, middle + SPREADS * spread
    return Limits(low, high)
