"""The daemon: the thin loop that joins source, pipeline, fits, host and whoever watches."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import zmq
from numpy.typing import NDArray

from gapd import journal, outgoing, overview
from gapd.errors import InputError
from gapd.evidence import pack
from gapd.fitter import Failed, Fitter
from gapd.frame_rows import Refusal
from gapd.hostlink import HostLink
from gapd.keeper import Decided, Judged, Monitored
from gapd.learned import Learned
from gapd.link_events import (
    Acknowledged,
    CandidateOffered,
    Connected,
    Disconnected,
    Event,
    EvidenceWanted,
    Refused,
    Rejected,
)
from gapd.messages.frames import Frame
from gapd.messages.link import CHUNK_BYTES, Candidate, Chunk, Correction, Verdict
from gapd.outbox import Outbox, OutboxError, Stored
from gapd.pipeline import Happening, Pipeline
from gapd.postbox import Postbox
from gapd.recorder import Recorder
from gapd.recording_format import RecordingError
from gapd.robot import Robot
from gapd.sources.zmq_frames import FrameSource
from gapd.state_folder import StateFolder
from gapd.status import Level, LinkState, Status, StatusSocket
from gapd.stream import Publisher
from gapd.telemetry import Logger, ServiceManager, canonical
from gapd.trial_period import Return

Array = NDArray[np.float64]

# The loop waits this long for input, so that nothing that is due is later than this.
TURN_MS = 50
# ... and at least this long after the last turn: a thousand wake-ups a second cost more than what they are for.
LEAST_TURN_S = 0.01
# Frames taken in one turn: at 1 kHz ten turns' worth, so that a stall is made up for quickly.
FRAMES_PER_TURN = 500
# A source that has been silent for this long is stale.
STALE_S = 2.0
# The same joint and term are escalated again only after this long, by the robot's clock.
ESCALATION_S = 3600.0
# After a failed write, the state is written again only this much later.
RETRY_S = 5.0


@dataclass
class Edges:
    """Everything that leads in or out; what robot.toml does not name is None."""

    frames: FrameSource
    state: StateFolder
    status: StatusSocket
    log: Logger
    manager: ServiceManager
    outbox: Outbox | None = None
    link: HostLink | None = None
    stream: Publisher | None = None
    recorder: Recorder | None = None


class Daemon:
    """One robot's daemon. `turn` does what is due and returns."""

    def __init__(self, robot: Robot, learned: Learned | None, edges: Edges) -> None:
        """Take up what the last run left."""
        self.robot, self.edges = robot, edges
        memory, version = edges.state.load()
        self.pipeline = Pipeline(robot, robot.config.live.keeper, memory)
        self.post = Postbox(edges.outbox, version)
        self.fitter = Fitter(robot, learned)
        self._poller = zmq.Poller()
        self._robot_s = 0.0
        self._turned_s = 0.0
        self._began_s = self._alive_s = self._accepted_s = time.monotonic()
        self._saved = (memory, version)
        self._retry_s = 0.0
        self._problems: dict[str, tuple[Level, str]] = {}
        self._refusal: Refusal | None = None
        self._floors: float | None = None
        self._escalated: dict[object, float] = {}
        self._candidates: dict[str, Candidate] = {}
        self._judged: set[str] = set()
        for note in edges.state.notes:
            canonical(edges.log, "state", level="warning", note=note)
        self._note("started", parameters=robot.parameters.fingerprint, memory=self.pipeline.keeper.memory)
        if robot.config.live.frames.exposed:
            text = "frames come over the network in plain text: set server_public_key and secret_key in live.frames"
            self._problem("plaintext", Level.WARN, text)
        left = self.post.left_behind()
        if left is not None:  # killed between the outbox and the state: the values are those on their way
            self._adopt(self.post.version, left.z)

    def turn(self) -> None:
        """Wait for input for a moment at most, then do what is due."""
        self._wait()
        now_s = time.monotonic()
        for frame in self.edges.frames.read(FRAMES_PER_TURN):
            self._take(frame, now_s)
        self._fit()
        self._talk(now_s)
        self._look_at_source(now_s)
        self._save(now_s)
        self.edges.status.serve(self.status)
        if self.edges.manager.watchdog_s is not None and now_s - self._alive_s >= self.edges.manager.watchdog_s:
            self.edges.manager.alive()
            self._alive_s = now_s

    def close(self) -> None:
        """Let a running fit end, keep what is known, and leave. InputError or RecordingError if that fails."""
        self.fitter.close()
        with ExitStack() as stack:
            if self.edges.recorder is not None:
                stack.callback(self.edges.recorder.close)
            self._keep()

    def status(self) -> Status:
        """What `gapd status` shows."""
        return Status(
            level=self.level,
            state=self.pipeline.keeper.state,
            robot=self.robot.config.robot,
            problems=tuple(text for _, text in self._problems.values()),
            counters=self._counters(),
            link=self._link_state(),
            estimates=overview.estimates(self.robot, self.pipeline.keeper.memory),
            gap_floors=self._floors,
            since_s=time.monotonic() - self._began_s,
        )

    def _wait(self) -> None:
        time.sleep(max(0.0, self._turned_s + LEAST_TURN_S - time.monotonic()))
        self._turned_s = time.monotonic()
        sockets = [self.edges.frames.socket, self.edges.link.socket if self.edges.link else None]
        for socket in sockets:
            if socket is not None:
                self._poller.register(socket, zmq.POLLIN)
        self._poller.register(self.edges.status, zmq.POLLIN)
        self._poller.poll(TURN_MS)
        self._poller = zmq.Poller()

    def _take(self, frame: Frame, now_s: float) -> None:
        self._record_frame(frame, now_s)
        happened = self.pipeline.add(frame, now_s)
        row = self.pipeline.row
        self._robot_s = row.timestamp if row is not None else self._robot_s
        self._handle(happened)
        if row is None:
            return
        self._accepted_s, self._refusal = now_s, None
        if self.edges.stream is not None:
            self.edges.stream.frame(row)

    def _fit(self) -> None:
        """Take what a fit has led to, and begin the next."""
        result = self.fitter.take()
        if result is not None:
            self._note("fit_ended", failed=isinstance(result, Failed))
        if isinstance(result, Failed):
            self._failed(result)
        elif result is not None:
            self._problem("fit", Level.OK, "")
            self._handle(self.pipeline.finish(result))
        if self.pipeline.keeper.job is not None and not self.fitter.busy:
            self.fitter.start(self.pipeline.keeper.job)
            journal.fit_started(self.edges.log, self.pipeline.keeper.job)

    def _failed(self, failed: Failed) -> None:
        again_s = self.robot.config.live.keeper.min_interval_s
        remedy = f"the next one is tried after {again_s:g} s; if it fails too, report this line"
        canonical(self.edges.log, "fit_failed", level="error", reason=failed.reason, remedy=remedy)
        self._problem("fit", Level.ERROR, f"a fit has failed: {failed.reason}; {remedy}")
        self._handle(self.pipeline.abandon())

    def _handle(self, happened: list[Happening]) -> None:
        for event in happened:
            journal.write(self.edges.log, event, self.robot)
            self._publish(event)
            floors = overview.floors(event)
            if floors is not None:
                self._floors = floors
            if isinstance(event, Decided):
                self._decided(event)
            elif isinstance(event, Return):
                self._returned(event)
            elif isinstance(event, Judged):
                self._answer(event)
            elif isinstance(event, Refusal):
                self._refusal = event

    def _publish(self, event: Happening) -> None:
        stream = self.edges.stream
        if stream is None:
            return
        if isinstance(event, Monitored):
            stream.gaps(event.start_s, event.gap.tolist(), event.floors)
        elif isinstance(event, Decided):
            space, check = self.robot.parameters, event.report.check
            sd = space.physical_sd(event.z, event.report.identification.uncertainty.sd)
            stream.estimates(self._robot_s, space.to_physical(event.z).tolist(), sd.tolist())
            stream.verdict(
                self._robot_s, event.report.decision.action, accepted=check.verdict == "accepted",
                gap_before=check.floors_before, gap_after=check.floors_after, windows=check.windows,
            )  # fmt: skip
            stream.level(self._robot_s, self.level, self._counters())

    @property
    def level(self) -> Level:
        """The worst of what is wrong."""
        return max((level for level, _ in self._problems.values()), default=Level.OK)

    def _decided(self, event: Decided) -> None:
        decision = event.report.decision
        level = Level[decision.level]
        self._problem("decision", level, f"{decision.reason}; {decision.remedy}" if level else "")
        self._problem("return", Level.OK, "")
        if decision.corrections:
            self._put(outgoing.correction(event, self.post.version, self._robot_s), makes_version=True)
        if decision.action == "escalate":
            self._escalate(event)

    def _escalate(self, event: Decided) -> None:
        """Once for each joint and term, and again only after a while."""
        key = outgoing.escalation_key(event)
        if abs(self._robot_s - self._escalated.get(key, -np.inf)) < ESCALATION_S:
            canonical(self.edges.log, "escalation_known", reason=event.report.decision.reason)
            return
        self._escalated[key] = self._robot_s
        digest, size = self._evidence(event.job.since_s)
        message = outgoing.escalation(event, self.post.version, self._robot_s, digest, size)
        self._put(message, makes_version=False)

    def _evidence(self, since_s: float) -> tuple[str, int]:
        """Store the newest frames since the change; an escalation goes out without them if that fails."""
        frames = self.pipeline.evidence(since_s)
        if frames is None:
            return "", 0
        raw = pack(frames)
        try:
            return self.edges.state.keep_evidence(raw), len(raw)
        except InputError as error:
            canonical(self.edges.log, "evidence_lost", level="error", reason=str(error))
            return "", 0

    def _returned(self, event: Return) -> None:
        names, version = self.robot.parameters.names, self.post.version
        self._put(outgoing.returned(event, names, self._sd(), version, self._robot_s), makes_version=True)
        self._problem("return", Level.WARN, f"the last correction was taken back: {event.check.reason}")

    def _answer(self, event: Judged) -> None:
        offered = self._candidates.pop(event.candidate, None)
        if offered is not None:
            accepted = event.check.verdict == "accepted"
            if accepted:
                self._problem("decision", Level.OK, "")
            self._put(outgoing.verdict(event, offered.base_version, self._robot_s), makes_version=accepted)

    def _put(self, message: Stored, *, makes_version: bool) -> None:
        """Into the outbox, where it waits for the host's acknowledgement."""
        self.post.put(message, makes_version=makes_version)
        self._store()

    def _store(self) -> None:
        try:
            for sequence, message in self.post.store():
                kind = type(message).__name__.lower()
                canonical(self.edges.log, "queued", kind=kind, sequence=sequence, base_version=message.base_version)
        except OutboxError as error:
            self._outbox_failed(error)
        else:
            self._problem("outbox", Level.OK, "")

    def _outbox_failed(self, error: OutboxError) -> None:
        self._problem("outbox", Level.ERROR, str(error))
        canonical(self.edges.log, "outbox", level="error", key=str(error), every_s=60.0, reason=str(error))

    def _talk(self, now_s: float) -> None:
        if self.edges.link is None:
            return
        try:
            for event in self.edges.link.step(now_s):
                journal.link(self.edges.log, event)
                self._heard(event)
        except OutboxError as error:
            self._outbox_failed(error)

    def _heard(self, event: Event) -> None:
        match event:
            case Connected():
                self._problem("link", Level.OK, "")
                if self.post.pending == 0:
                    self._adopt(event.welcome.version, event.welcome.z)
            case Disconnected():
                self._problem("link", Level.WARN, f"{event.reason}; {event.remedy}")
            case Refused():
                self._problem("link", Level.WARN, f"the host refuses this robot ({event.code}); {event.remedy}")
            case Acknowledged():
                self._acknowledged(event)
            case Rejected():
                self._rejected(event)
            case EvidenceWanted():
                self._send_evidence(event)
            case CandidateOffered():
                self._offered(event.candidate)
            case _:
                assert_never(event)

    def _acknowledged(self, event: Acknowledged) -> None:
        self._problem("host", Level.OK, "")
        if self.post.pending == 0 and event.version != self.post.version and self.edges.link is not None:
            self.edges.link.close()  # the host has other values than expected: its next Welcome tells them

    def _rejected(self, event: Rejected) -> None:
        self._problem("host", Level.WARN, f"the host refused a message ({event.code}); {event.remedy}")
        refused = isinstance(event.message, Correction | Verdict) and event.code != "wrong_epoch"
        if event.code == "stale_base" or (refused and (event.z or not event.version)):
            self._adopt(event.version, event.z)  # the simulator does not have the refused values
        elif self.post.pending == 0:
            self.post.version = event.version

    def _adopt(self, version: int, z: tuple[float, ...]) -> None:
        """The host's values are what the simulator has; whether they are right the monitor will tell.

        Before its first correction it has nominal values, also where it has lost others.
        """
        self.post.version = version
        self.post.forget_corrections()
        z = z or tuple(self.robot.parameters.z_nominal.tolist())
        if z != self.pipeline.keeper.memory.z:
            self._problem("decision", Level.OK, "")  # it was about values that are gone
            canonical(self.edges.log, "adopted", version=version)
            self._note("adopted", z=z)
            self.pipeline.keeper.adopt(np.array(z))

    def _offered(self, candidate: Candidate) -> None:
        if candidate.candidate in self._judged or candidate.base_version != self.post.version:
            return
        self._judged.add(candidate.candidate)
        self._candidates[candidate.candidate] = candidate
        self._note("offered", candidate=candidate.candidate, z=candidate.z)
        self.pipeline.keeper.offer(candidate.candidate, np.array(candidate.z))

    def _send_evidence(self, event: EvidenceWanted) -> None:
        data, total = self.edges.state.evidence(event.evidence, event.offset, CHUNK_BYTES)
        if self.edges.link is not None:
            self.edges.link.send_chunk(Chunk(event.evidence, event.offset, total, event.evidence, data))

    def _look_at_source(self, now_s: float) -> None:
        silent_s = self.edges.frames.silent_s(now_s)
        stale = silent_s > STALE_S
        if stale and "source" not in self._problems:
            canonical(self.edges.log, "source_silent", level="warning", remedy="look at the robot and live.frames")
        elif not stale and "source" in self._problems:
            canonical(self.edges.log, "source_back")
        text = f"no frames for {silent_s:.0f} s: look at the robot and live.frames.endpoint" if stale else ""
        self._problem("source", Level.STALE, text)
        refused = self._refusal is not None and not stale and now_s - self._accepted_s > STALE_S
        told = f"no frame can be used: {self._refusal.text}; {self._refusal.remedy}" if self._refusal else ""
        self._problem("frames", Level.ERROR, told if refused else "")
        if self.edges.frames.last_fault:
            fault, self.edges.frames.last_fault = self.edges.frames.last_fault, ""
            canonical(self.edges.log, "frame_refused", level="warning", key="malformed", every_s=60.0, reason=fault)
        self.edges.frames.reopen_if_denied(now_s)
        if self.edges.link is not None:
            self.edges.link.level = int(self.level)

    def _record_frame(self, frame: Frame, now_s: float) -> None:
        if self.edges.recorder is not None:
            self._record(lambda recorder: recorder.frame(frame, now_s))

    def _note(self, event: str, **fields: object) -> None:
        """Record what decisions depend on besides frames, so that a replay decides the same."""
        self._record(lambda recorder: recorder.event(self._robot_s, event, fields))

    def _record(self, write: Callable[[Recorder], None]) -> None:
        recorder = self.edges.recorder
        if recorder is None:
            return
        dropped = recorder.dropped
        try:
            write(recorder)
        except RecordingError as error:
            self._problem("recorder", Level.WARN, str(error))
            canonical(self.edges.log, "recorder", level="warning", key="recorder", every_s=60.0, reason=str(error))
        else:
            if recorder.dropped == dropped:
                self._problem("recorder", Level.OK, "")

    def _problem(self, key: str, level: Level, text: str) -> None:
        """Note why the level is not OK, or that this reason is gone."""
        self._problems.pop(key, None)
        if text:
            self._problems[key] = level, text

    def _save(self, now_s: float) -> None:
        """Write what has changed: the state, and messages that the outbox did not take."""
        if now_s < self._retry_s:
            return
        if "outbox" in self._problems:
            self._retry_s = now_s + RETRY_S
            self._store()
        try:
            self._keep()
        except InputError as error:
            self._retry_s = now_s + RETRY_S
            self._problem("state", Level.ERROR, str(error))
            canonical(self.edges.log, "state", level="error", key="state", every_s=60.0, reason=str(error))
        else:
            self._problem("state", Level.OK, "")

    def _keep(self) -> None:
        now = (self.pipeline.keeper.memory, self.post.version)
        if now != self._saved:
            self.edges.state.save(*now)
            self._saved = now

    def _sd(self) -> Array:
        """Scaled standard deviations (P,) of the last fit; without one, a fourth of the range, as the host has it."""
        space = self.robot.parameters
        known = self.pipeline.keeper.memory.z_sd
        return np.array(known) if known else np.asarray((space.z_max - space.z_min) / 4)

    def _counters(self) -> dict[str, int]:
        malformed = self.edges.frames.malformed
        return overview.counters(self.pipeline) | {f"messages_{reason}": n for reason, n in malformed.items() if n}

    def _link_state(self) -> LinkState | None:
        if self.edges.link is None:
            return None
        try:
            told = self.edges.link.status(self._robot_s)
        except OutboxError as error:
            return LinkState(error=str(error))
        return LinkState(told.endpoint, told.up, told.pending, told.oldest_s, told.version, told.error)
