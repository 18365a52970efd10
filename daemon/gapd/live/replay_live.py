"""Recordings of `gapd record` and `gapd run --record` through the live pipeline: the decisions of the live run.

What `run` records besides frames says what it began with and when fits ended, so that the same windows wait. Without
that, the robot is commissioned anew and each fit takes no time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gapd.errors import InputError
from gapd.fit.cycle import run
from gapd.gap_model.learned import Learned
from gapd.live import overview
from gapd.live.events import Decided, Diverged, Drifted, Judged, Recovered
from gapd.live.memory import Memory
from gapd.live.pipeline import Happening, Pipeline
from gapd.live.recording import Recording
from gapd.live.recording_format import EVENTS, FRAMES, frame_from_json
from gapd.live.state_folder import read_memory
from gapd.live.status import Level, Status
from gapd.live.trial_period import Return
from gapd.messages.frames import Frame
from gapd.model.robot import Robot

Array = NDArray[np.float64]


class Noted(msgspec.Struct):
    """What the daemon has recorded beside the frames."""

    timestamp: float | None
    event: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class Line:
    """One thing that the pipeline has decided, at `time_s` of the robot's clock. `z` (P,): values from then on."""

    time_s: float
    what: str
    level: str
    text: str
    z: tuple[float, ...]


class ReplayLive:
    """One robot's recordings, in their order."""

    def __init__(self, robot: Robot, learned: Learned | None, threads: int = 1) -> None:
        """Begin as a robot that was never commissioned."""
        self.robot, self._learned, self._threads = robot, learned, threads
        self.lines: list[Line] = []
        self._time_s = 0.0
        self._last: Decided | None = None
        self._floors: float | None = None
        self._start(None, noted=False)

    def add(self, path: Path) -> None:
        """Replay a recording. InputError if it is damaged or holds no frames."""
        count = 0
        for arrival_s, item in _items(Recording(path)):
            if isinstance(item, Noted):
                try:
                    self._heed(item)
                except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
                    fault = f"'{item.event}' is not as gapd run records it ({error})"
                    raise InputError(f"{path}: {fault}; replay it with the gapd that made it") from None
            else:
                count += 1
                self._time_s = item.timestamp
                self._handle(self.pipeline.add(item, arrival_s))
                if not self._noted:
                    self._finish()
        if not count:
            raise InputError(f"{path}: holds no frames; give a recording of gapd record, or of gapd run --record")

    def status(self) -> Status:
        """What `gapd status` would show at the end."""
        last = self._last.report.decision if self._last is not None else None
        level = Level[last.level] if last is not None else Level.OK
        return Status(
            level, self.pipeline.keeper.state, self.robot.config.robot,
            (last.sentence,) if last is not None and level else (),
            overview.counters(self.pipeline),
            estimates=overview.estimates(self.robot, self.pipeline.keeper.memory),
            gap_floors=self._floors,
        )  # fmt: skip

    @property
    def z(self) -> Array:
        """Scaled values now (P,)."""
        return self.pipeline.keeper.z

    def ending(self) -> str:
        """What the end of the last recording has cut off, in one line; empty if nothing."""
        keeper = self.pipeline.keeper
        if keeper.job is not None:
            why = f"the recording ends while a fit was being made ({keeper.job.why})"
            return f"{why}, whose outcome is not in there; replay it together with what follows"
        if keeper.state == "watching":
            return ""
        during = "before the robot is commissioned"
        if keeper.state == "gathering":
            during = "while windows are gathered for a fit"
        missing_s = math.ceil(keeper.missing_s(self._time_s))
        missing = f": at most {missing_s} s of usable data are missing" if missing_s else ""
        return f"the recording ends {during}{missing}; replay it together with what follows, or record more motion"

    def _start(self, memory: Memory | None, *, noted: bool) -> None:
        self.pipeline = Pipeline(self.robot, self.robot.config.live.keeper, memory)
        self._noted = noted  # whether the recording tells when fits end

    def _heed(self, noted: Noted) -> None:
        fields, keeper = noted.fields, self.pipeline.keeper
        match noted.event:
            case "started":
                if fields["parameters"] != self.robot.parameters.fingerprint:
                    raise ValueError("other parameters than those of robot.toml")
                self._start(read_memory(fields["memory"]), noted=True)
            case "fit_ended" if keeper.job is not None and fields["failed"]:
                self._handle(self.pipeline.abandon())
            case "fit_ended":
                self._finish(once=True)
            case "adopted":
                keeper.adopt(np.array(fields["z"]))
            case "offered":
                keeper.offer(fields["candidate"], np.array(fields["z"]))

    def _finish(self, *, once: bool = False) -> None:
        """Make the fit that is due, and those that it leads to."""
        while self.pipeline.keeper.job is not None:
            job = self.pipeline.keeper.job
            report = run(self.robot, job.prepared, job.standing, self._learned, self._threads)
            self._handle(self.pipeline.finish(report))
            if once:
                return

    def _handle(self, happened: Sequence[Happening]) -> None:
        for event in happened:
            self._last = event if isinstance(event, Decided) else self._last
            self._floors = overview.floors(event) or self._floors
            told = _told(event)
            if told is not None:
                self.lines.append(Line(self._time_s, *told, self.pipeline.keeper.memory.z))


def _told(event: Happening) -> tuple[str, str, str] | None:
    """What, level and text of an event that is a decision or leads to one."""
    told: tuple[str, str, str] | None = None
    match event:
        case Decided():
            decision = event.report.decision
            told = decision.action, decision.level, decision.sentence
        case Drifted():
            told = "drift", "WARN", f"{event.channel} has changed, since {event.since_s:.1f} s"
        case Recovered():
            told = "recovered", "OK", event.reason
        case Diverged():
            told = "diverged", "ERROR", f"{event.reason}; {event.remedy}"
        case Return():
            told = "return", "WARN", f"the previous values come back: {event.check.reason}"
        case Judged():
            told = "candidate", "OK", f"{event.candidate} {event.check.verdict}: {event.check.reason}"
    return told


def _items(recording: Recording) -> Iterator[tuple[float, Frame | Noted]]:
    """Frames and notes in the order written, with seconds of arrival."""
    for channel, _, message in recording.messages():
        arrival_s = message.log_time / 1e9
        try:
            if channel.topic == FRAMES and channel.message_encoding == "json":
                yield arrival_s, frame_from_json(message.data)
            elif channel.topic == EVENTS and channel.message_encoding == "json":
                yield arrival_s, msgspec.json.decode(message.data, type=Noted)
        except msgspec.DecodeError as error:
            raise InputError(f"{recording.path}: a message does not decode ({error}); record it again") from None


def text(lines: Sequence[Line]) -> str:
    """One line for each decision."""
    return "\n".join(f"{line.time_s:10.2f} s  {line.level:5} {line.what:9} {line.text}" for line in lines)


def plain(lines: Sequence[Line], robot: Robot) -> list[dict[str, Any]]:
    """The decisions as JSON types; `values` are physical, by parameter."""
    space = robot.parameters
    return [
        {
            "time_s": line.time_s, "what": line.what, "level": line.level, "text": line.text,
            "values": dict(zip(space.names, space.to_physical(np.array(line.z)).tolist(), strict=True)),
        }
        for line in lines
    ]  # fmt: skip
