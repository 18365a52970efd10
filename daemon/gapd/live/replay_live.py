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
from gapd.live.events import Decided, Diverged, Drifted, EscalationOver, Judged
from gapd.live.memory import Memory
from gapd.live.pipeline import Happening, Pipeline
from gapd.live.problems import Problems
from gapd.live.recording import Recording
from gapd.live.recording_format import EVENTS, FRAMES, frame_from_json
from gapd.live.state_folder import read_memory
from gapd.live.status import Status
from gapd.live.trial_period import Return
from gapd.messages.frames import Frame
from gapd.model.robot import Robot

Array = NDArray[np.float64]


class Noted(msgspec.Struct):
    """What the daemon has recorded beside the frames; `fields` are those of one of NOTES."""

    timestamp: float | None
    event: str
    fields: dict[str, Any]


class Started(msgspec.Struct):
    """A daemon began, with the fingerprint of its parameters and the memory of its keeper."""

    parameters: str
    memory: dict[str, Any]


class FitEnded(msgspec.Struct):
    """The fit that was being made came to its end."""

    failed: bool


class Adopted(msgspec.Struct):
    """The values of the host became those of the robot: z (P,), scaled."""

    z: tuple[float, ...]


class Offered(msgspec.Struct):
    """The host offered values z (P,), scaled."""

    candidate: str
    z: tuple[float, ...]


Note = Started | FitEnded | Adopted | Offered
NOTES: dict[str, type[Note]] = {"started": Started, "fit_ended": FitEnded, "adopted": Adopted, "offered": Offered}


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
        self.notes: list[str] = []  # what a reader should know of the recordings
        self._newest: tuple[float, Path] | None = None  # arrival of the last message so far, and its recording
        self._time_s = 0.0
        self._floors: float | None
        self._start(None, noted=False)

    def add(self, path: Path) -> None:
        """Replay a recording. InputError if it is damaged, holds no frames, or is older than the one before."""
        count, middle, recording = 0, False, Recording(path)
        for arrival_s, item in _items(recording):
            self._require_order(arrival_s, path)
            if isinstance(item, Noted):
                if item.event in NOTES:
                    self._heed(self._note(path, item))
                    middle = middle or not self._noted
            else:
                count += 1
                self._time_s = item.timestamp
                self._handle(self.pipeline.add(item, arrival_s))
                if not self._noted:
                    self._finish()
        if not count:
            raise InputError(f"{path}: holds no frames; give a recording of gapd record, or of gapd run --record")
        if middle:
            self.notes.append(f"{path}: begins in the middle of a run; give the recordings before it, too")
        if recording.cut_off:
            self.notes.append(f"{path}: is cut short; what was written last is missing")

    def _require_order(self, arrival_s: float, path: Path) -> None:
        if self._newest is not None and arrival_s < self._newest[0] and path != self._newest[1]:
            raise InputError(
                f"{path}: was recorded before {self._newest[1]}; give recordings in the order of their time"
            )
        self._newest = arrival_s, path

    def status(self) -> Status:
        """What `gapd status` would show at the end."""
        return Status(
            self._problems.level, self.pipeline.keeper.state, self.robot.config.robot, self._problems.lines,
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
        missing_s = math.ceil(keeper.missing_s)
        missing = f": at most {missing_s} s of usable data are missing" if missing_s else ""
        return f"the recording ends {during}{missing}; replay it together with what follows, or record more motion"

    def _start(self, memory: Memory | None, *, noted: bool) -> None:
        self.pipeline = Pipeline(self.robot, self.robot.config.live.keeper, memory)
        self._problems, self._floors = Problems(self.pipeline.keeper.memory), None
        self._noted = noted  # whether the recording tells when fits end

    def _note(self, path: Path, noted: Noted) -> Note | Memory:
        """What a note says, a memory where a daemon began."""
        try:
            note = msgspec.convert(noted.fields, NOTES[noted.event])
            memory = read_memory(note.memory) if isinstance(note, Started) else None
        except msgspec.ValidationError as error:
            fault = f"'{noted.event}' is not as gapd run records it ({error})"
            raise InputError(f"{path}: {fault}; replay it with the gapd that made it") from None
        if isinstance(note, Started) and note.parameters != self.robot.parameters.fingerprint:
            raise InputError(f"{path}: recorded with other parameters; replay it with the robot.toml of the daemon")
        return memory or note

    def _heed(self, note: Note | Memory) -> None:
        keeper = self.pipeline.keeper
        match note:
            case Memory():
                self._start(note, noted=True)
            case FitEnded() if keeper.job is not None and note.failed:
                self._handle(keeper.abandon())
            case FitEnded():
                self._finish(once=True)
            case Adopted():
                keeper.adopt(np.array(note.z))
            case Offered():
                keeper.offer(note.candidate, np.array(note.z))

    def _finish(self, *, once: bool = False) -> None:
        """Make the fit that is due, and those that it leads to."""
        while self.pipeline.keeper.job is not None:
            job = self.pipeline.keeper.job
            report = run(self.robot, job.prepared, job.standing, self._learned, self._threads)
            self._handle(self.pipeline.keeper.finish(report))
            if once:
                return

    def _handle(self, happened: Sequence[Happening]) -> None:
        for event in happened:
            self._problems.heard(event)
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
        case EscalationOver():
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
