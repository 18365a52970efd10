"""Verdicts: one window of a recording against all tests, with the channel and the number that decided. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gapd.measured.spikes import HUGE, Limits, command_limits, context_limits, measured_limits
from gapd.measured.stuck import Drive, Stretch, actuators_of, friction_bound, stuck_stretches
from gapd.measured.windows import HOLE_PERIODS, LATE_SHARE, Frames
from gapd.model.robot import Robot

Array = NDArray[np.float64]
Verdict = Literal["ok", "not_finite", "spike", "stuck", "missing", "out_of_order", "not_excited", "disabled"]

# A window with fewer frames shows no dynamics; it also catches timestamps in milliseconds.
MIN_FRAMES = 6
# Share of the frames of a regular source below which a window is missing frames although no hole is long.
MIN_SHARE = 0.8
# Peak to peak of pure Gaussian noise stays below this many standard deviations for 10,000 frames.
REST_SD = 8.0
# Commands are quiet while the force they change by is below this share of the largest static friction.
QUIET_SHARE = 0.1
# A frozen stretch that reaches into a window by this share of it spoils it.
STUCK_SHARE = 0.1
# Frames dropped on each side of a break in time: their stamps cannot be trusted.
EDGE_FRAMES = 1


@dataclass(frozen=True)
class Gate:
    """Verdict on the window that starts at start_s; `value` is the number that decided."""

    verdict: Verdict
    start_s: float
    channel: str = ""
    value: float = np.nan
    reason: str = ""
    remedy: str = ""

    @property
    def sentence(self) -> str:
        """One line for the journal."""
        if self.verdict == "ok":
            return f"window at {self.start_s:.3f} s ok"
        named = f"{self.channel}: " if self.channel else ""
        return f"window at {self.start_s:.3f} s {self.verdict}: {named}{self.reason}; {self.remedy}"


@dataclass(frozen=True)
class Bench:
    """What all windows of one recording share, and the tests of one of them."""

    frames: Frames
    robot: Robot
    present: NDArray[np.bool_]  # (C,)
    period_s: float
    increasing: bool
    stuck: tuple[Stretch, ...]
    quiet: Array  # (nu,) change of command that moves nothing

    limits: tuple[Limits, Limits, Limits]  # of channels (C,), commands (nu,) and context (X,)

    @classmethod
    def of(cls, frames: Frames, robot: Robot, present: NDArray[np.bool_]) -> Bench:
        """Look at all frames once."""
        friction, quiet = _commands(frames, robot)
        return cls(
            frames,
            robot,
            present,
            frame_period(frames.timestamp),
            len(time_breaks(frames.timestamp)) == 2,
            tuple(stuck_stretches(frames, robot)),
            quiet,
            (
                measured_limits(frames, robot),
                command_limits(frames, robot, np.where(np.isfinite(friction), friction, 0.0)),
                context_limits(robot),
            ),
        )

    def judge(self, start: float) -> Gate:
        """Verdict of the first test that the window at a start fails, or ok."""
        rows = self._span(start)
        tests: tuple[Callable[[slice, float], Gate | None], ...] = (
            self._order, self._missing, self._finite, self._spike, self._disabled, self._stuck, self._excited,
        )  # fmt: skip
        for test in tests:
            gate = test(rows, start)
            if gate is not None:
                return gate
        return Gate("ok", start)

    def _span(self, start: float) -> slice:
        """Rows from the last frame at or before the window to the first at or after its end."""
        times, timing = self.frames.timestamp, self.robot.config.timing
        early = start - max(timing.command_offset_s, 0.0)
        late = start + timing.window_s - min(timing.command_offset_s, 0.0)
        # Of a source with many frames in a step, those at the edges are none that come late.
        slack = 1e-6 + min(LATE_SHARE * self.robot.layout.step_s, self.period_s)
        if self.increasing:
            first = int(np.searchsorted(times, early + slack, side="right")) - 1
            last = int(np.searchsorted(times, late - slack))
        else:
            inside = np.flatnonzero((times >= early - slack) & (times <= late + slack))
            first, last = (int(inside[0]), int(inside[-1])) if len(inside) else (0, -1)
        return slice(max(first, 0), min(last + 1, len(times)))

    def _order(self, rows: slice, start: float) -> Gate | None:
        if self.increasing:
            return None
        # The frames just outside are interpolated with, so their own neighbours count too.
        near = slice(max(rows.start - EDGE_FRAMES - 1, 0), rows.stop + EDGE_FRAMES + 1)
        steps = np.diff(self.frames.timestamp[near])
        bad = np.flatnonzero(~(steps > 0))
        return order_gate(self.frames, near.start + int(bad[0]) + 1, start) if len(bad) else None

    def _missing(self, rows: slice, start: float) -> Gate | None:
        times, length = self.frames.timestamp[rows], self.robot.config.timing.window_s
        if len(times) < MIN_FRAMES:
            reason = f"{len(times)} frames in {length:g} s, a frame each {self.period_s:.3g} s"
            return Gate("missing", start, "", len(times), reason, "give timestamps in seconds, or record faster")
        for joint, channel in enumerate(self.robot.layout.position):
            if not self.present[channel]:
                name = self.robot.layout.channels[channel]
                reason = f"joint {self.robot.layout.joints[joint]} has no position in the recording"
                return Gate("missing", start, name, np.nan, reason, "map its column in [log.channels]")
        edge = max(times[0] - start, start + length - times[-1])
        hole = float(max(np.diff(times).max(), edge))
        if hole > HOLE_PERIODS * self.period_s:
            reason = f"no frame for {hole:.3g} s, the period is {self.period_s:.3g} s"
            return Gate("missing", start, "", hole, reason, "look for lost messages or a busy recorder")
        expected = (times[-1] - times[0]) / self.period_s + 1
        if len(times) < MIN_SHARE * expected:
            reason = f"{len(times)} of {expected:.0f} frames"
            return Gate("missing", start, "", len(times), reason, "look for lost messages or a busy recorder")
        return None

    def _finite(self, rows: slice, start: float) -> Gate | None:
        remedy = "mend the source, or take the column out of [log]"
        for values, labels, _ in self._signals(rows):
            bad = ~(np.abs(values) < HUGE)
            if bad.any():
                value, at, column = self._first(rows, values, bad)
                reason = f"{value} at {at:.3f} s"
                return Gate("not_finite", start, labels[column], float(bad.sum()), reason, remedy)
        return None

    def _spike(self, rows: slice, start: float) -> Gate | None:
        remedy = "mend the source, or correct the unit in [log]"
        for values, labels, limits in self._signals(rows):
            bad = limits.outside(values)
            if bad.any():
                value, at, column = self._first(rows, values, bad)
                usual = f"{limits.low[column]:.4g} .. {limits.high[column]:.4g}"
                reason = f"{value:.6g} at {at:.3f} s is outside {usual}"
                return Gate("spike", start, labels[column], value, reason, remedy)
        return None

    def _signals(self, rows: slice) -> Iterator[tuple[Array, list[str], Limits]]:
        """Values (T, n) of the channels that are there, the commands and the context, with names and limits (n,)."""
        layout, channels = self.robot.layout, np.flatnonzero(self.present)
        measured, command, context = self.limits
        measured = Limits(measured.low[channels], measured.high[channels])
        yield self.frames.measured[rows][:, channels], [layout.channels[c] for c in channels], measured
        yield self.frames.command[rows], [f"command {a}" for a in layout.actuators], command
        yield self.frames.context[rows], [f"context {n}" for n in self.robot.config.context_names], context

    def _first(self, rows: slice, values: Array, bad: NDArray[np.bool_]) -> tuple[float, float, int]:
        """Value, time and column of the first bad value of the first bad column."""
        column = int(np.argmax(bad.any(axis=0)))
        row = int(np.argmax(bad[:, column]))
        return float(values[row, column]), float(self.frames.timestamp[rows][row]), column

    def _disabled(self, rows: slice, start: float) -> Gate | None:
        switches = [i for i, n in enumerate(self.robot.config.context_names) if "enabled" in n]
        off = [i for i in switches if not self.frames.context[rows, i].any()]
        unknown = [i for i in off if i not in self.robot.binding.context_used]
        # A model that knows the switch replays a drive that is off: a swinging joint tells about friction.
        if unknown or (off and len(off) == len(switches) and self._moving(rows) is None):
            name = self.robot.config.context_names[(unknown or off)[0]]
            remedy = "switch the drive on" if not unknown else "switch the drive on, or use it as a factor of gains"
            return Gate("disabled", start, name, 0.0, "off for the whole window", remedy)
        return None

    def _stuck(self, rows: slice, start: float) -> Gate | None:
        for stretch in self.stuck:
            shared = min(stretch.last + 1, rows.stop) - max(stretch.first, rows.start)
            if shared > STUCK_SHARE * (rows.stop - rows.start):
                name = self.robot.layout.channels[stretch.channel]
                begin, end = self.frames.timestamp[[stretch.first, stretch.last]]
                reason = f"stays at {stretch.value:.6g} from {begin:.3f} to {end:.3f} s while {stretch.reason}"
                return Gate("stuck", start, name, stretch.value, reason, "check sensor and cable, or a blocked joint")
        return None

    def _excited(self, rows: slice, start: float) -> Gate | None:
        if self._moving(rows) is not None:
            return None
        command = self.frames.command[rows]
        if (np.ptp(command, axis=0) > self.quiet).any():
            return None
        spans = self._spans(rows)
        joint = int(np.argmax(spans))
        name = self.robot.layout.channels[self.robot.layout.position[joint]]
        reason = f"no joint moves by more than {REST_SD:g} standard deviations, this one by {spans[joint]:.2g}"
        return Gate("not_excited", start, name, float(spans[joint]), reason, "nothing to learn here; move the robot")

    def _spans(self, rows: slice) -> Array:
        """Peak to peak (nv,) of each joint's position in standard deviations of its channel."""
        channels = self.robot.layout.position
        return np.asarray(np.ptp(self.frames.measured[rows][:, channels], axis=0) / self.robot.layout.noise[channels])

    def _moving(self, rows: slice) -> int | None:
        """First joint that moves by more than noise."""
        moving = np.flatnonzero(self._spans(rows) > REST_SD)
        return int(moving[0]) if len(moving) else None


def _commands(frames: Frames, robot: Robot) -> tuple[Array, Array]:
    """Change of each command (nu,) that asks for static friction (0 unknown, inf for none), and that moves nothing."""
    friction, quiet = np.zeros((2, len(robot.layout.actuators)))
    bound = friction_bound(robot)
    for joint in range(robot.model.nv):
        for actuator in actuators_of(robot, joint):
            drive = Drive.of(robot, actuator, frames.context[:: max(1, len(frames) // 1000)])
            gain = float(np.max(np.abs(drive.gain * drive.gear), initial=0.0, where=np.isfinite(drive.gain)))
            friction[actuator] = bound[joint] / gain if gain > 0 else np.inf
            quiet[actuator] = QUIET_SHARE * friction[actuator]
            if (drive.stiffness > 0).any():
                noise = robot.layout.noise[robot.layout.position[joint]]
                quiet[actuator] = max(quiet[actuator], REST_SD * noise / abs(drive.gear))
    return friction, quiet


def present_channels(frames: Frames) -> NDArray[np.bool_]:
    """Channels (C,) that the recording has: not NaN throughout."""
    return np.asarray(~np.isnan(frames.measured).all(axis=0))


def frame_period(times: Array) -> float:
    """Median of the steps forward in time, 0 if there is none."""
    steps = np.diff(times)
    steps = steps[np.isfinite(steps) & (steps > 0)]
    return float(np.median(steps)) if len(steps) else 0.0


def time_breaks(times: Array) -> list[int]:
    """Row numbers where a strictly increasing, finite run begins, and the number of rows."""
    steps = np.diff(times)
    bad = np.flatnonzero(~((steps > 0) & np.isfinite(steps))) + 1
    return [0, *bad.tolist(), len(times)]


def order_gate(frames: Frames, row: int, start: float) -> Gate:
    before, after = frames.timestamp[row - 1], frames.timestamp[row]
    reason = f"timestamp {after:.6f} s follows {before:.6f} s"
    return Gate("out_of_order", start, "", float(after - before), reason, "sort the frames, and stamp each once")
