"""Frames of the wire to rows of numbers in the robot's order: what fits goes on, what does not is counted. Pure.

The clock check needs to know when each frame came in. A frame is never older than its delivery, but may be read late,
so that timestamp - arrival only ever jumps *up* where the robot's clock does; back it jumps where a timestamp falls far
below the last one. A jump costs the one frame that shows it: those after it agree with it and begin a new run of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from gapd.errors import nearest, printable
from gapd.messages.frames import Frame
from gapd.model.robot import ABSENT, Robot

Array = NDArray[np.float64]

Reason = Literal["wrong_length", "unknown_name", "repeated_name", "not_finite_time", "backwards", "clock_jump"]
Fault = tuple[Reason, str, str]  # with text and remedy

# Seconds by which the robot's clock may be off its course. Timestamps in milliseconds at 1 kHz are off by 1 per frame.
CLOCK_LIMIT_S = 0.5
# Between two clocks: far more than a crystal drifts or NTP slews.
CLOCK_DRIFT = 1e-3
# Sets of names that are remembered: a source has one, or one per kind of frame.
MOST_PLANS = 32
# Unknown names that are spelt out, so that a source that makes them up costs no more than others.
MOST_NAMED = 50
NOUNS = ("position", "velocity", "effort")


class Row(NamedTuple):
    """One frame in SI units. NaN marks what is absent; `context` is shared between rows, so never write into it."""

    timestamp: float  # s, of the robot's clock
    measured: Array  # (C,)
    command: Array  # (nu,)
    context: Array  # (X,)
    restarted: bool  # the clock jumped: rows before this one are on another time


@dataclass(frozen=True)
class Refusal:
    """A frame that was dropped. `new`: for the first time for this reason, or with this unknown name."""

    reason: Reason
    text: str
    remedy: str
    new: bool


# Names, numbers of positions, velocities, efforts and commands, names of sensors and context.
Shape = tuple[tuple[str, ...], int, int, int, int, tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class _Plan:
    """Where the values of frames of one shape go, or why they go nowhere."""

    shape: Shape
    target: NDArray[np.intp]  # for each value: its channel, C where no channel measures it
    context: NDArray[np.intp]
    fault: Fault | None


class FrameRows:
    """Rows of one source: its names, its clock, its losses."""

    def __init__(self, robot: Robot, ignore: tuple[str, ...] = ()) -> None:
        """Frames may name what the robot does not have only where `ignore` lists it."""
        self.accepted = 0
        self.refused: dict[Reason, int] = dict.fromkeys(get_args(Reason), 0)
        self.not_finite = 0  # values that are NaN or infinite, passed on for the gates to judge
        self._lost: int | None = None
        self._sequence: int | None = None
        self._names = _Names(robot, ignore)
        self._plans: dict[Shape, _Plan] = {}
        self._plan: _Plan | None = None
        self._named: set[str] = set()
        self._blank = np.full(len(robot.layout.channels) + 1, np.nan)  # the last one takes what nobody wants
        self._context = robot.context_nominal
        self._clock = _Clock()

    @property
    def lost(self) -> int | None:
        """Frames that never came, by the gaps in their sequence; None if the source numbers none."""
        return self._lost

    def row(self, frame: Frame, arrival_s: float = math.nan) -> Row | Refusal:
        """The frame as a row. arrival_s: monotonic time at which it was read; without it jumps ahead are not seen."""
        if frame.sequence is not None:
            self._count_lost(frame.sequence)
        shape = (
            frame.name, len(frame.position), len(frame.velocity), len(frame.effort), len(frame.command),
            tuple(frame.sensors), tuple(frame.context),
        )  # fmt: skip
        plan = self._plan
        if plan is None or plan.shape != shape:
            plan = self._plan = self._plan_of(shape)
        fault = plan.fault or self._clock.fault(frame.timestamp, arrival_s)
        return self._refuse(*fault) if fault is not None else self._filled(frame, plan)

    def _filled(self, frame: Frame, plan: _Plan) -> Row:
        values = [*frame.position, *frame.velocity, *frame.effort, *frame.sensors.values()]
        measured = self._blank.copy()
        measured[plan.target] = values
        if frame.context:
            self._hold(plan, list(frame.context.values()))
        if not math.isfinite(sum(values) + sum(frame.command)):
            self.not_finite += sum(not math.isfinite(v) for v in (*values, *frame.command))
        self.accepted += 1
        restarted, self._clock.restarted = self._clock.restarted, False
        return Row(frame.timestamp, measured[:-1], np.array(frame.command, float), self._context, restarted)

    def _hold(self, plan: _Plan, values: list[float]) -> None:
        """Keep these context values until another frame says otherwise."""
        held = self._context[plan.context]
        if held.tolist() == values:
            return
        self.not_finite += sum(not math.isfinite(v) for v in values)
        self._context = self._context.copy()
        self._context[plan.context] = values

    def _plan_of(self, shape: Shape) -> _Plan:
        plan = self._plans.get(shape)
        if plan is None:
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            plan = self._plans[shape] = self._names.plan(shape, spell=len(self._named) < MOST_NAMED)
        return plan

    def _count_lost(self, sequence: int) -> None:
        """A smaller number than the last is a source that began anew, or a frame that came late."""
        gap = 0 if self._sequence is None else max(sequence - self._sequence - 1, 0)
        self._lost = (self._lost or 0) + gap
        self._sequence = sequence

    def _refuse(self, reason: Reason, text: str, remedy: str) -> Refusal:
        self.refused[reason] += 1
        new = self.refused[reason] == 1
        if reason == "unknown_name":
            new = text not in self._named and len(self._named) < MOST_NAMED
            if new:
                self._named.add(text)
        return Refusal(reason, printable(text), printable(remedy), new)


class _Names:
    """What a frame may name."""

    def __init__(self, robot: Robot, ignore: tuple[str, ...]) -> None:
        layout = robot.layout
        self._ignore = frozenset(ignore)
        self._channels = {name: i for i, name in enumerate(layout.channels)}
        self._context = {name: i for i, name in enumerate(robot.config.context_names)}
        self._nowhere = len(layout.channels)
        self._actuators = layout.actuators
        self._joints = {
            joint: tuple(self._channels.get(f"{joint}/{noun}", int(getattr(layout, noun)[j])) for noun in NOUNS)
            for j, joint in enumerate(layout.joints)
        }

    def plan(self, shape: Shape, *, spell: bool) -> _Plan:
        """The plan of a shape; `spell`: with the nearest known name for an unknown one, which takes time."""
        names, *counts, _, sensors, context = shape
        fault = next(self._faults(shape, spell=spell), None)
        target: list[int] = []
        if fault is None:
            for noun, count in enumerate(counts):
                target += [self._channel_of(name, noun) for name in names[:count]]
            target += [self._channels.get(name, self._nowhere) for name in sensors]
        known = [] if fault else [self._context[name] for name in context]
        return _Plan(shape, np.array(target, np.intp), np.array(known, np.intp), fault)

    def _channel_of(self, joint: str, noun: int) -> int:
        channel = self._joints[joint][noun] if joint in self._joints else ABSENT
        return self._nowhere if channel == ABSENT else channel

    def _faults(self, shape: Shape, *, spell: bool) -> Iterator[Fault]:
        names, *counts, commands, sensors, context = shape
        for kind, given, known in (
            ("name", names, self._joints),
            ("sensors", sensors, self._channels),
            ("context", context, self._context),
        ):
            for name in given:
                # Context that is not known would leave the replay at a wrong nominal value: never ignored.
                if name not in known and (kind == "context" or name not in self._ignore):
                    yield _unknown(kind, name, list(known), spell=spell)
        for name in names:
            if names.count(name) > 1:
                yield "repeated_name", f"name {_short(name)} is there twice", "name each joint once"
        for noun, count in zip(NOUNS, counts, strict=True):
            if count not in (0, len(names)):
                text = f"{count} {noun} values for {len(names)} names"
                yield "wrong_length", text, f"send one {noun} per name, or none"
        if commands != len(self._actuators):
            text = f"{commands} command values for {len(self._actuators)} actuators"
            yield "wrong_length", text, f"send one per actuator, in the model's order: {', '.join(self._actuators)}"


def _unknown(kind: str, name: str, known: list[str], *, spell: bool) -> Fault:
    what = {"name": "no joint of the model", "sensors": "no [[channel]]", "context": "no [[context]]"}[kind]
    hint = nearest(name[:80], known) if spell else ""
    instead = "" if kind == "context" else ", or list it in live.frames.ignore"
    return "unknown_name", f"{kind} {_short(name)}: {what}{hint}", f"correct the source or robot.toml{instead}"


def _short(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:77] + "...")


class _Clock:
    """Order of the timestamps, and their course against the arrivals."""

    def __init__(self) -> None:
        self.restarted = False
        self._course = _Course(math.nan, math.nan)
        self._other: _Course | None = None  # where the clock may have jumped to

    def fault(self, timestamp: float, arrival_s: float) -> Fault | None:
        """What is wrong with the timestamp of a frame, which otherwise is the last one from now on."""
        if not math.isfinite(timestamp):
            return "not_finite_time", f"timestamp is {timestamp}", "send seconds of the robot's clock"
        off_s = self._course.off_s(timestamp, arrival_s)
        if off_s == 0.0:
            self._other = None
            return None
        other, self._other = self._other, None
        if other is not None and other.off_s(timestamp, arrival_s) == 0.0:
            self._course, self.restarted = other, True
            return None
        last = self._course.last
        if -CLOCK_LIMIT_S < off_s < 0:
            self._other = other
            remedy = "send frames in the order of their time, from one source"
            return "backwards", f"timestamp {timestamp:.6f} is not above the last, {last:.6f}", remedy
        self._other = _Course(timestamp, timestamp - arrival_s, arrival_s)
        text = f"timestamp {timestamp:.6f} is {abs(off_s):.3g} s {'ahead of' if off_s > 0 else 'behind'} where it"
        return "clock_jump", f"{text} should be after {last:.6f}", "send seconds of a monotonic clock, from one source"


@dataclass
class _Course:
    """Last timestamp, and the largest timestamp - arrival so far: that of the frame read with the least delay."""

    last: float
    ahead: float
    arrival: float = math.nan

    def off_s(self, timestamp: float, arrival_s: float) -> float:
        """0 if the timestamp goes on from the last, which it then replaces; else seconds that it is off."""
        if timestamp <= self.last:
            return min(timestamp - self.last, -1e-9)
        ahead, drift = timestamp - arrival_s, CLOCK_DRIFT * (arrival_s - self.arrival)
        if ahead - self.ahead > CLOCK_LIMIT_S + drift:  # never with NaN
            return ahead - self.ahead
        # The robot's clock may be slower than ours: then what is usual sinks. Where that is NaN, max gives ahead.
        self.last, self.arrival, self.ahead = timestamp, arrival_s, max(ahead, self.ahead - drift)
        return 0.0
