"""The daemon: the thin loop that joins source, pipeline, fits, host and whoever watches."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec
import numpy as np
import zmq

from gapd import journal, outgoing
from gapd.evidence import pack
from gapd.fitter import Fitter
from gapd.hostlink import Acknowledged, CandidateOffered, Connected, EvidenceWanted, HostLink, Rejected
from gapd.keeper import Decided, Judged, Monitored
from gapd.learned import Learned
from gapd.messages.link import CHUNK_BYTES, Candidate, Chunk
from gapd.outbox import Outbox, OutboxError, Stored
from gapd.pipeline import Happening, Pipeline
from gapd.recorder import Recorder, RecordingError
from gapd.robot import Robot
from gapd.sources.zmq_frames import FrameSource
from gapd.state_folder import StateFolder
from gapd.status import Estimate, Level, LinkState, Status, StatusSocket
from gapd.stream import Publisher
from gapd.telemetry import Logger, ServiceManager, canonical
from gapd.trial_period import Return

# The loop waits this long for input, so that nothing that is due is later than this.
TURN_MS = 50
# Frames taken in one turn: at 1 kHz ten turns' worth, so that a stall is made up for quickly.
FRAMES_PER_TURN = 500
# A source that has been silent for this long is stale.
STALE_S = 2.0
# The same joint and term are escalated again only after this long, by the robot's clock.
ESCALATION_S = 3600.0


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
        memory, self.version = edges.state.load()
        self.pipeline = Pipeline(robot, robot.config.live.keeper, memory)
        self.fitter = Fitter(robot, learned)
        self._poller = zmq.Poller()
        self._robot_s = 0.0
        self._began_s = self._alive_s = time.monotonic()
        self._saved = (memory, self.version)
        self._problems: dict[str, tuple[Level, str]] = {}
        self._floors: float | None = None
        self._last: Decided | None = None
        self._escalated: dict[object, float] = {}
        self._candidates: dict[str, Candidate] = {}
        self._judged: set[str] = set()
        for note in edges.state.notes:
            canonical(edges.log, "state", level="warning", note=note)

    def turn(self) -> None:
        """Wait for input for a moment at most, then do what is due."""
        self._wait()
        now_s = time.monotonic()
        for frame in self.edges.frames.read(FRAMES_PER_TURN):
            self._robot_s = frame.timestamp
            self._record_frame(frame, now_s)
            self._handle(self.pipeline.add(frame, now_s))
            if self.edges.stream is not None and self.pipeline.row is not None:
                self.edges.stream.frame(self.pipeline.row)
        report = self.fitter.take()
        if report is not None:
            self._handle(self.pipeline.finish(report))
        if self.pipeline.keeper.job is not None and not self.fitter.busy:
            self.fitter.start(self.pipeline.keeper.job)
            journal.fit_started(self.edges.log, self.pipeline.keeper.job)
        self._talk(now_s)
        self._look_at_source(now_s)
        self._save()
        self.edges.status.serve(self.status)
        if self.edges.manager.watchdog_s is not None and now_s - self._alive_s >= self.edges.manager.watchdog_s:
            self.edges.manager.alive()
            self._alive_s = now_s

    def close(self) -> None:
        """Let a running fit end, keep what is known, and leave."""
        self.fitter.close()
        self._save()
        if self.edges.recorder is not None:
            self.edges.recorder.close()

    def status(self) -> Status:
        """What `gapd status` shows."""
        return Status(
            level=self.level,
            state=self.pipeline.keeper.state,
            robot=self.robot.config.robot,
            problems=tuple(text for _, text in self._problems.values()),
            counters=self._counters(),
            link=self._link_state(),
            estimates=self._estimates(),
            gap_floors=self._floors,
            since_s=time.monotonic() - self._began_s,
        )

    def _wait(self) -> None:
        sockets = [self.edges.frames.socket, self.edges.link.socket if self.edges.link else None]
        for socket in sockets:
            if socket is not None:
                self._poller.register(socket, zmq.POLLIN)
        self._poller.register(self.edges.status, zmq.POLLIN)
        self._poller.poll(TURN_MS)
        self._poller = zmq.Poller()

    def _handle(self, happened: list[Happening]) -> None:
        for event in happened:
            journal.write(self.edges.log, event, self.robot)
            self._publish(event)
            floors = journal.floors(event)
            if floors is not None:
                self._floors = floors
            if isinstance(event, Decided):
                self._decided(event)
            elif isinstance(event, Return):
                self._returned(event)
            elif isinstance(event, Judged):
                self._answer(event)

    def _publish(self, event: Happening) -> None:
        stream = self.edges.stream
        if stream is None:
            return
        if isinstance(event, Monitored):
            stream.gaps(self._robot_s, event.gap.tolist(), event.floors)
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
        self._last = event
        decision = event.report.decision
        level = Level[decision.level]
        if decision.action != "escalate":
            self._problem("decision", level, f"{decision.reason}; {decision.remedy}" if level else "")
        if decision.corrections:
            self._put(outgoing.correction(event, self.version, self._robot_s), makes_version=True)
        if decision.action == "escalate":
            self._problem("decision", level, f"{decision.reason}; {decision.remedy}")
            self._escalate(event)

    def _escalate(self, event: Decided) -> None:
        """Once for each joint and term, and again only after a while."""
        key = outgoing.escalation_key(event)
        if self._robot_s - self._escalated.get(key, -np.inf) < ESCALATION_S:
            canonical(self.edges.log, "escalation_known", reason=event.report.decision.reason)
            return
        self._escalated[key] = self._robot_s
        raw = pack(self.pipeline.evidence())
        digest = self.edges.state.keep_evidence(raw)
        self._put(outgoing.escalation(event, self.version, self._robot_s, digest, len(raw)), makes_version=False)

    def _returned(self, event: Return) -> None:
        names, sd = self.robot.parameters.names, self._sd()
        message = outgoing.returned(event, names, self.pipeline.keeper.z, sd, self.version, self._robot_s)
        self._put(message, makes_version=True)
        self._problem("return", Level.WARN, f"the last correction was taken back: {event.check.reason}")

    def _answer(self, event: Judged) -> None:
        offered = self._candidates.pop(event.candidate, None)
        if offered is not None:
            accepted = event.check.verdict == "accepted"
            self._put(outgoing.verdict(event, offered.base_version, self._robot_s), makes_version=accepted)

    def _put(self, message: Stored, *, makes_version: bool) -> None:
        """Into the outbox, where it waits for the host's acknowledgement."""
        if self.edges.outbox is None:
            return
        try:
            sequence = self.edges.outbox.put(message)
        except OutboxError as error:
            self._problem("outbox", Level.ERROR, str(error))
            canonical(self.edges.log, "outbox", level="error", reason=str(error))
            return
        self._problem("outbox", Level.OK, "")
        kind = type(message).__name__.lower()
        canonical(self.edges.log, "queued", kind=kind, sequence=sequence, base_version=self.version)
        self.version += makes_version

    def _talk(self, now_s: float) -> None:
        if self.edges.link is None:
            return
        try:
            for event in self.edges.link.step(now_s):
                journal.link(self.edges.log, event)
                self._heard(event)
        except OutboxError as error:
            self._problem("outbox", Level.ERROR, str(error))
            canonical(self.edges.log, "outbox", level="error", key=str(error), every_s=60.0, reason=str(error))

    def _heard(self, event: object) -> None:
        waiting = len(self.edges.outbox) if self.edges.outbox is not None else 0
        if isinstance(event, Connected):
            if waiting == 0:
                self._adopt(event.welcome.version, event.welcome.z)
        elif isinstance(event, Acknowledged):
            self.version = event.version if waiting == 0 else self.version
        elif isinstance(event, Rejected):
            self._problem("host", Level.WARN, f"the host refused a message ({event.code}); {event.remedy}")
            if event.code == "stale_base":
                self._adopt(event.version, event.z)
        elif isinstance(event, EvidenceWanted):
            self._send_evidence(event)
        elif isinstance(event, CandidateOffered):
            self._offered(event.candidate)

    def _adopt(self, version: int, z: tuple[float, ...]) -> None:
        """The host's values are what the simulator has; whether they are right the monitor will tell."""
        self.version = version
        if z and z != self.pipeline.keeper.memory.z:
            canonical(self.edges.log, "adopted", version=version)
            self.pipeline.keeper.adopt(np.array(z))

    def _offered(self, candidate: Candidate) -> None:
        if candidate.candidate in self._judged or candidate.base_version != self.version:
            return
        self._judged.add(candidate.candidate)
        self._candidates[candidate.candidate] = candidate
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
        if self.edges.frames.last_fault:
            fault, self.edges.frames.last_fault = self.edges.frames.last_fault, ""
            canonical(self.edges.log, "frame_refused", level="warning", key="malformed", every_s=60.0, reason=fault)
        self.edges.frames.reopen_if_denied(now_s)
        if self.edges.link is not None:
            self.edges.link.level = int(self.level)

    def _record_frame(self, frame: msgspec.Struct, now_s: float) -> None:
        if self.edges.recorder is None:
            return
        try:
            self.edges.recorder.frame(frame, now_s)  # type: ignore[arg-type]
        except RecordingError as error:
            self._problem("recorder", Level.WARN, str(error))
            canonical(self.edges.log, "recorder", level="warning", key="recorder", every_s=60.0, reason=str(error))

    def _problem(self, key: str, level: Level, text: str) -> None:
        """Note why the level is not OK, or that this reason is gone."""
        self._problems.pop(key, None)
        if text:
            self._problems[key] = level, text

    def _save(self) -> None:
        now = (self.pipeline.keeper.memory, self.version)
        if now != self._saved:
            self.edges.state.save(*now)
            self._saved = now

    def _sd(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        if self._last is None:
            return np.full(len(self.robot.parameters), np.nan)
        return self._last.report.identification.uncertainty.sd

    def _counters(self) -> dict[str, int]:
        rows = self.pipeline.rows
        lost = {} if rows.lost is None else {"frames_lost": rows.lost}
        return {
            "frames": rows.accepted, **lost, "values_not_finite": rows.not_finite,
            **{f"frames_{reason}": n for reason, n in rows.refused.items() if n},
            **{f"messages_{reason}": n for reason, n in self.edges.frames.malformed.items() if n},
            **{f"windows_{verdict}": n for verdict, n in self.pipeline.verdicts.items()},
            "windows_dropped": self.pipeline.dropped,
        }  # fmt: skip

    def _link_state(self) -> LinkState | None:
        if self.edges.link is None:
            return None
        told = self.edges.link.status(self._robot_s)
        return LinkState(told.endpoint, told.up, told.pending, told.oldest_s, told.version, told.error)

    def _estimates(self) -> tuple[Estimate, ...]:
        space, z = self.robot.parameters, self.pipeline.keeper.z
        physical = space.to_physical(z)
        sd, status = np.full(len(space), np.nan), ("unestimated",) * len(space)
        if self._last is not None:
            told = self._last.report.identification.uncertainty
            sd, status = space.physical_sd(z, told.sd), told.status
        rows = zip(space.names, space.units, physical.tolist(), sd.tolist(), status, strict=True)
        return tuple(Estimate(*row) for row in rows)
