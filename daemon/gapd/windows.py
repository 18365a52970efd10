"""Frames to windows: synchronised slices on the simulator's time grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from gapd.robot import ABSENT, Layout

Array = NDArray[np.float64]

# A measurement farther than this many frame periods from its neighbour is a hole, not interpolated over.
HOLE_PERIODS = 2.5
# Share of a simulation step by which a command may be stamped late and still act in that step.
LATE_SHARE = 0.1
# Half width of the local fit that gives a velocity where none is measured, and its smallest number of frames.
VELOCITY_FIT_S = 0.01
VELOCITY_FIT_FRAMES = 7


@dataclass(frozen=True)
class Frames:
    """T frames of one source in SI units: NaN marks what is absent."""

    timestamp: Array  # (T,) s
    measured: Array  # (T, C)
    command: Array  # (T, nu)
    context: Array  # (T, X)
    name: str = ""

    def __len__(self) -> int:
        """Return T."""
        return len(self.timestamp)

    def between(self, start_s: float, end_s: float) -> Frames:
        """Frames with start_s <= timestamp <= end_s."""
        keep = (self.timestamp >= start_s) & (self.timestamp <= end_s)
        return Frames(self.timestamp[keep], self.measured[keep], self.command[keep], self.context[keep], self.name)


@dataclass(frozen=True)
class Windows:
    """W windows on one grid: K knots after the initial one, N simulation steps."""

    start_s: Array  # (W,)
    control: Array  # (W, N+1, nu) command acting in each simulation step
    context: Array  # (W, N+1, X)
    measured: Array  # (W, K+1, C), NaN where absent
    qpos0: Array  # (W, nv) measured initial position
    qvel0: Array  # (W, nv) measured initial velocity
    x0_sd: Array  # (W, 2 nv) standard deviation of the measured initial state
    source: NDArray[np.intp]  # (W,) number of the recording

    def __len__(self) -> int:
        """Return W."""
        return len(self.start_s)

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_] | Sequence[int] | slice) -> Windows:
        """The windows at `index`."""
        keep = index if isinstance(index, slice) else np.asarray(index)
        return Windows(*(getattr(self, f.name)[keep] for f in fields(self)))

    @staticmethod
    def concatenate(parts: Sequence[Windows]) -> Windows:
        """Windows of all parts, in order."""
        return Windows(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Windows)))


def window_starts(frames: Frames, layout: Layout, command_offset_s: float = 0.0) -> Array:
    """Start times (W,) of back-to-back windows, each on a frame, that lie wholly inside the frames."""
    starts: list[float] = []
    times = frames.timestamp
    next_s = times[0] + max(command_offset_s, 0.0)
    length = layout.knots * layout.knot_s
    tolerance = LATE_SHARE * layout.step_s
    while True:
        first = int(np.searchsorted(times, next_s - tolerance))
        if first >= len(times) or times[first] + length > times[-1] + tolerance:
            return np.array(starts)
        starts.append(float(times[first]))
        next_s = times[first] + length


def cut(frames: Frames, layout: Layout, starts: Array, command_offset_s: float = 0.0, source: int = 0) -> Windows:
    """Windows that start at the given times (W,). Frames must be finite in time, in order, and cover them."""
    knots = starts[:, None] + np.arange(layout.knots + 1) * layout.knot_s
    steps = starts[:, None] + np.arange(layout.steps + 1) * layout.step_s
    active = _last_frame(frames.timestamp + command_offset_s, steps, LATE_SHARE * layout.step_s)
    qpos, qvel, sd = initial_state(frames, layout, starts)
    return Windows(
        start_s=starts,
        control=frames.command[active],
        context=frames.context[_last_frame(frames.timestamp, steps, LATE_SHARE * layout.step_s)],
        measured=_interpolate(frames, knots),
        qpos0=qpos,
        qvel0=qvel,
        x0_sd=sd,
        source=np.full(len(starts), source, np.intp),
    )


def _last_frame(times: Array, at: Array, tolerance_s: float) -> NDArray[np.intp]:
    index = np.searchsorted(times, at + tolerance_s, side="right") - 1
    return np.clip(index, 0, len(times) - 1)


def _interpolate(frames: Frames, at: Array) -> Array:
    """Measurements (W, K+1, C) at times (W, K+1): linear between neighbours, NaN in holes."""
    times = frames.timestamp
    right = np.clip(np.searchsorted(times, at), 1, len(times) - 1)
    left = right - 1
    span = times[right] - times[left]
    share = np.clip((at - times[left]) / span, 0.0, 1.0)[..., None]
    before, after = frames.measured[left], frames.measured[right]
    # On a frame the other neighbour must not matter, even if it is absent.
    value = np.where(share < 1e-9, before, np.where(share > 1 - 1e-9, after, (1 - share) * before + share * after))
    hole = span > HOLE_PERIODS * float(np.median(np.diff(times)))
    value[hole & (share[..., 0] > 1e-9) & (share[..., 0] < 1 - 1e-9)] = np.nan
    return np.asarray(value)


def initial_state(frames: Frames, layout: Layout, starts: Array) -> tuple[Array, Array, Array]:
    """Measured state at the window starts: position (W, nv), velocity (W, nv), standard deviation (W, 2 nv).

    A velocity without a channel is the slope of a local quadratic through the positions around the
    start; its standard deviation follows from the channel noise.
    """
    at = _interpolate(frames, starts[:, None])[:, 0]
    position = at[:, layout.position]
    velocity = np.empty_like(position)
    sd = np.empty((len(starts), 2 * position.shape[1]))
    sd[:, : position.shape[1]] = layout.noise[layout.position]
    for joint, channel in enumerate(layout.velocity):
        column = position.shape[1] + joint
        if channel != ABSENT and np.isfinite(at[:, channel]).all():
            velocity[:, joint], sd[:, column] = at[:, channel], layout.noise[channel]
        else:
            measured = layout.position[joint]
            slope, unit_sd = _slopes(frames.timestamp, frames.measured[:, measured], starts)
            velocity[:, joint], sd[:, column] = slope, unit_sd * layout.noise[measured]
    return position, velocity, sd


def _slopes(times: Array, values: Array, starts: Array) -> tuple[Array, Array]:
    """Slope (W,) of a local quadratic at each start, and its standard deviation per unit of noise."""
    slope, unit_sd = np.empty(len(starts)), np.empty(len(starts))
    for row, start in enumerate(starts):
        near = np.flatnonzero(np.abs(times - start) <= VELOCITY_FIT_S)
        if len(near) < VELOCITY_FIT_FRAMES:
            near = np.argsort(np.abs(times - start))[:VELOCITY_FIT_FRAMES]
        near = near[np.isfinite(values[near])]
        design = np.vander(times[near] - start, 3)
        inverse = np.linalg.pinv(design)
        slope[row] = inverse[1] @ values[near]
        unit_sd[row] = np.sqrt(inverse[1] @ inverse[1])
    return slope, unit_sd
