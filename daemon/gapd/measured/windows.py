"""Frames to windows: synchronised slices on the simulator's time grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from gapd.model.robot import ABSENT, Layout

Array = NDArray[np.float64]

# A measurement farther than this many frame periods from its neighbour is a hole, not interpolated over.
HOLE_PERIODS = 2.5
# Share of a simulation step by which a command may be stamped late and still act in that step.
LATE_SHARE = 0.1
# Half width of the local fit that gives a velocity where none is measured, and its smallest number of frames.
VELOCITY_FIT_S = 0.01
VELOCITY_FIT_FRAMES = 7
# Standard deviation of a velocity that nothing tells, in rad/s or m/s: faster than any joint here moves.
UNKNOWN_VELOCITY_SD = 10.0


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

    @staticmethod
    def concatenate(parts: Sequence[Frames]) -> Frames:
        """Frames of all parts, in order; there is at least one part."""
        return Frames(
            np.concatenate([p.timestamp for p in parts]), np.concatenate([p.measured for p in parts]),
            np.concatenate([p.command for p in parts]), np.concatenate([p.context for p in parts]), parts[0].name,
        )  # fmt: skip

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
    times = frames.timestamp
    length = layout.knots * layout.knot_s
    tolerance = LATE_SHARE * layout.step_s
    if not len(times) or np.spacing(times[-1]) > tolerance:
        return np.zeros(0)  # empty, or stamps so large that they cannot tell two steps apart
    starts: list[float] = []
    # With an offset, the command of the first step must have come, and that of the last too.
    next_s, end_s = times[0] + max(command_offset_s, 0.0), times[-1] + min(command_offset_s, 0.0)
    while True:
        first = int(np.searchsorted(times, next_s - tolerance))
        if first >= len(times) or times[first] + length > end_s + tolerance:
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

    A velocity without a measurement is the slope of a local quadratic through the positions around the start.
    """
    at = _interpolate(frames, starts[:, None])[:, 0]
    position = at[:, layout.position]
    nv = position.shape[1]
    velocity, sd = np.empty_like(position), np.empty((len(starts), 2 * nv))
    sd[:, :nv] = layout.noise[layout.position]
    for joint, channel in enumerate(layout.velocity):
        known = np.zeros(len(starts), bool)
        if channel != ABSENT:
            known = np.isfinite(at[:, channel])
            velocity[known, joint], sd[known, nv + joint] = at[known, channel], layout.noise[channel]
        if not known.all():
            by = layout.position[joint]
            slope, slope_sd = _slopes(frames.timestamp, frames.measured[:, by], starts[~known], layout.noise[by])
            velocity[~known, joint], sd[~known, nv + joint] = slope, slope_sd
    return position, velocity, sd


def _slopes(times: Array, values: Array, starts: Array, noise: float) -> tuple[Array, Array]:
    """Slopes (W,) of local quadratics at the starts, and their standard deviations (W,).

    A quadratic cannot follow jerk. Its error from that is known per cubic coefficient, and how large those are in
    this recording is told by local cubics: their mean square, less what noise makes of it.
    """
    fits = [_local(times, values, start, noise) for start in starts]
    squares = [fit.cubic**2 - fit.cubic_var for fit in fits if np.isfinite(fit.cubic)]
    jerk = float(np.sqrt(max(float(np.mean(squares)), 0.0))) if squares else 0.0
    slope, slope_sd, lag = np.array([(fit.slope, fit.slope_sd, fit.lag) for fit in fits]).T
    return slope, np.hypot(slope_sd, jerk * lag)


@dataclass(frozen=True)
class _Local:
    """Fit around one start: slope with the sd that noise gives it, its error per cubic coefficient, the coefficient."""

    slope: float
    slope_sd: float
    lag: float = 0.0
    cubic: float = np.nan
    cubic_var: float = np.nan


def _local(times: Array, values: Array, start: float, noise: float) -> _Local:
    first, last = np.searchsorted(times, (start - VELOCITY_FIT_S, start + VELOCITY_FIT_S))
    lacking = max(VELOCITY_FIT_FRAMES - (last - first), 0)
    near = slice(max(first - (lacking + 1) // 2, 0), last + (lacking + 1) // 2)
    finite = np.isfinite(values[near])
    if finite.sum() <= VELOCITY_FIT_FRAMES // 2:
        return _Local(0.0, UNKNOWN_VELOCITY_SD)
    design = np.vander(times[near][finite] - start, 4)
    inverse, value = np.linalg.pinv(design[:, 1:]), values[near][finite]
    fitted = inverse @ value
    missed = design[:, 1:] @ fitted - value
    # Noise that the configuration does not know of counts too.
    spread = max(float(np.sqrt(missed @ missed / (len(missed) - 3))), noise)
    slope_sd = spread * float(np.linalg.norm(inverse[1]))
    lag = abs(float(inverse[1] @ design[:, 0]))
    if len(value) == 4:
        return _Local(float(fitted[1]), slope_sd, lag)
    row = np.linalg.pinv(design)[0]
    return _Local(float(fitted[1]), slope_sd, lag, float(row @ value), float(row @ row) * noise**2)
