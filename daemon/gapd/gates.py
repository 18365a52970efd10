"""Gates: one verdict per candidate window, from the raw frames. Pure.

Only `ok` windows go on. Every other one is counted, and says which channel, which number, and what to do.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gapd.robot import Robot
from gapd.stuck import Drive, Stretch, actuators_of, friction_bound, stuck_stretches
from gapd.windows import HOLE_PERIODS, Frames, window_starts

Array = NDArray[np.float64]
Verdict = Literal["ok", "not_finite", "stuck", "missing", "out_of_order", "not_excited", "disabled"]

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
# No signal in SI units is as large; squares of much larger ones overflow.
HUGE = 1e12
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
class Run:
    """Frames in strictly increasing time, with the windows that start in them."""

    frames: Frames
    starts: Array  # (W,) s
    gates: tuple[Gate, ...]  # (W,), one for each start

    @property
    def usable(self) -> Array:
        """Starts of the ok windows, to be cut from `frames`."""
        return self.starts[[gate.verdict == "ok" for gate in self.gates]]


def count(gates: Sequence[Gate]) -> dict[Verdict, int]:
    """Windows per verdict, all verdicts named."""
    counts = Counter(gate.verdict for gate in gates)
    return {verdict: counts[verdict] for verdict in get_args(Verdict)}


def usable_starts(frames: Frames, robot: Robot) -> list[Run]:
    """Candidate windows in every strictly increasing run of the frames, each with a verdict.

    Where time breaks, a frame on each side is dropped, and the window that would have gone on is
    out_of_order; breaks within a window's number of frames count once.
    """
    edges = _breaks(frames.timestamp)
    present = _present(frames)
    length = robot.config.timing.window_s
    period = _period(frames.timestamp)
    per_window = length / max(period, 1e-9)
    runs, lost_row = [], -np.inf
    for first, end in itertools.pairwise(edges):
        left = first + (EDGE_FRAMES if first > 0 else 0)
        right = end - (EDGE_FRAMES if end < len(frames) else 0)
        part = _rows(frames, slice(left, max(left, right)))
        starts = np.empty(0)
        if len(part) >= 2 and period <= length:
            starts = window_starts(part, robot.layout, robot.config.timing.command_offset_s)
        gates = judge(part, starts, robot, present)
        row = left if not len(starts) else left + int(np.searchsorted(part.timestamp, starts[-1] + length))
        if end < len(frames) and row >= lost_row + per_window:
            gates.append(_order_gate(frames, end, float(frames.timestamp[min(row, end - 1)])))
            lost_row = row
        elif end == len(frames) and not gates and len(edges) == 2:
            gates.append(_no_window(frames, length, period))
        if gates:
            runs.append(Run(part, np.array([gate.start_s for gate in gates]), tuple(gates)))
    return runs


def judge(frames: Frames, starts: Array, robot: Robot, present: NDArray[np.bool_] | None = None) -> list[Gate]:
    """One gate per start (W,). `present` (C,): channels of the whole recording; default: of these frames."""
    if not len(starts):
        return []
    bench = _Bench.of(frames, robot, _present(frames) if present is None else present)
    return [bench.judge(float(start)) for start in starts]


@dataclass(frozen=True)
class _Bench:
    """What all windows of one recording share."""

    frames: Frames
    robot: Robot
    present: NDArray[np.bool_]  # (C,)
    period_s: float
    increasing: bool
    stuck: tuple[Stretch, ...]
    quiet: Array  # (nu,) change of command that moves nothing

    @classmethod
    def of(cls, frames: Frames, robot: Robot, present: NDArray[np.bool_]) -> _Bench:
        return cls(
            frames,
            robot,
            present,
            _period(frames.timestamp),
            len(_breaks(frames.timestamp)) == 2,
            tuple(stuck_stretches(frames, robot)),
            _quiet(frames, robot),
        )

    def judge(self, start: float) -> Gate:
        rows = self._span(start)
        tests: tuple[Callable[[slice, float], Gate | None], ...] = (
            self._order, self._missing, self._finite, self._disabled, self._stuck, self._excited,
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
        slack = 1e-6 + 0.1 * self.robot.layout.step_s
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
        return _order_gate(self.frames, near.start + int(bad[0]) + 1, start) if len(bad) else None

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
        layout, names = self.robot.layout, self.robot.config.context_names
        groups = (
            (self.frames.measured[rows][:, self.present], np.array(layout.channels)[self.present]),
            (self.frames.command[rows], np.array([f"command {a}" for a in layout.actuators])),
            (self.frames.context[rows], np.array([f"context {n}" for n in names])),
        )
        for values, labels in groups:
            bad = ~(np.abs(values) < HUGE)
            if bad.any():
                column = int(np.argmax(bad.any(axis=0)))
                row = int(np.argmax(bad[:, column]))
                reason = f"{values[row, column]} at {self.frames.timestamp[rows][row]:.3f} s"
                remedy = "mend the source, or take the column out of [log]"
                return Gate("not_finite", start, str(labels[column]), float(bad.sum()), reason, remedy)
        return None

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


def _quiet(frames: Frames, robot: Robot) -> Array:
    """Change of each command (nu,) below which it moves nothing."""
    quiet = np.zeros(len(robot.layout.actuators))
    friction = friction_bound(robot)
    for joint in range(robot.model.nv):
        for actuator in actuators_of(robot, joint):
            drive = Drive.of(robot, actuator, frames.context[:: max(1, len(frames) // 1000)])
            gain = float(np.max(np.abs(drive.gain * drive.gear), initial=0.0, where=np.isfinite(drive.gain)))
            quiet[actuator] = QUIET_SHARE * friction[joint] / gain if gain > 0 else np.inf
            if (drive.stiffness > 0).any():
                noise = robot.layout.noise[robot.layout.position[joint]]
                quiet[actuator] = max(quiet[actuator], REST_SD * noise / abs(drive.gear))
    return quiet


def _present(frames: Frames) -> NDArray[np.bool_]:
    """Channels (C,) that the recording has: not NaN throughout."""
    return np.asarray(~np.isnan(frames.measured).all(axis=0))


def _period(times: Array) -> float:
    """Median of the steps forward in time, 0 if there is none."""
    steps = np.diff(times)
    steps = steps[np.isfinite(steps) & (steps > 0)]
    return float(np.median(steps)) if len(steps) else 0.0


def _breaks(times: Array) -> list[int]:
    """Row numbers where a strictly increasing, finite run begins, and the number of rows."""
    steps = np.diff(times)
    bad = np.flatnonzero(~((steps > 0) & np.isfinite(steps))) + 1
    return [0, *bad.tolist(), len(times)]


def _rows(frames: Frames, rows: slice) -> Frames:
    return Frames(
        frames.timestamp[rows], frames.measured[rows], frames.command[rows], frames.context[rows], frames.name
    )


def _order_gate(frames: Frames, row: int, start: float) -> Gate:
    before, after = frames.timestamp[row - 1], frames.timestamp[row]
    reason = f"timestamp {after:.6f} s follows {before:.6f} s"
    return Gate("out_of_order", start, "", float(after - before), reason, "sort the frames, and stamp each once")


def _no_window(frames: Frames, length: float, period: float) -> Gate:
    start = float(frames.timestamp[0]) if len(frames) else 0.0
    lasts = float(frames.timestamp[-1]) - start if len(frames) else 0.0
    if period > length:
        reason, remedy = f"a frame each {period:.3g} s", "give timestamps in seconds, or record faster"
    else:
        reason, remedy = f"{lasts:.3g} s recorded", "record longer"
    return Gate("missing", start, "", lasts, f"{reason}, a window lasts {length:g} s", remedy)
