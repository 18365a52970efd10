"""The daemon's side of the conversation with the host: what it is told, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from gapd.errors import InputError
from gapd.link.link_events import (
    Acknowledged,
    CandidateOffered,
    Connected,
    Disconnected,
    Event,
    EvidenceWanted,
    Refused,
    Rejected,
)
from gapd.link.outbox import MessageTooLargeError, OutboxError
from gapd.link.outbox_rows import Stored
from gapd.live import journal, outgoing
from gapd.live.edges import Edges
from gapd.live.events import Decided, Diverged, Judged
from gapd.live.pipeline import Happening, Pipeline
from gapd.live.postbox import Postbox
from gapd.live.problems import Problems
from gapd.live.status import Level, LinkState
from gapd.live.telemetry import canonical
from gapd.live.trial_period import Return
from gapd.measured.evidence import pack
from gapd.messages.link import CHUNK_BYTES, Candidate, Chunk, Correction, Verdict

Array = NDArray[np.float64]

TOO_LARGE = "freeze parameters that matter least: the host takes a message of all values at once"
# The same joint and term are escalated again only after this long, by the robot's clock.
ESCALATION_S = 3600.0


class HostTalk:
    """Corrections, escalations and verdicts out; acknowledgements, values and candidates in.

    `post` knows the version of the values on the host.
    """

    def __init__(
        self, edges: Edges, pipeline: Pipeline, version: int, problems: Problems, record: Callable[..., None]
    ) -> None:
        """`version` is that of the values on the host, as last known; `record` keeps what a replay needs to know."""
        self.post, self.problems = Postbox(edges.outbox, version), problems
        self._edges, self._pipeline, self._robot, self._record = edges, pipeline, pipeline.keeper.robot, record
        self._escalated: dict[object, float] = {}
        self._candidates: dict[str, Candidate] = {}
        self._known: set[str] = set()

    def take_up(self) -> None:
        """What an earlier process left in the outbox: killed before the state, its values are those on their way."""
        left = self.post.left_behind()
        if left is not None:
            self.adopt(self.post.version, left.z)

    @property
    def robot_s(self) -> float:
        """The robot's clock."""
        return self._pipeline.robot_s

    def heard(self, event: Happening) -> None:
        """Send what the pipeline corrects, and what it cannot explain."""
        match event:
            case Decided():
                self._decided(event)
            case Diverged():
                self._escalate(event, event.reason, event.since_s)
            case Return():
                self.put(outgoing.returned(event, self._robot.parameters.names, self._sd(), self.robot_s))
            case Judged():
                self._answer(event)

    def _decided(self, event: Decided) -> None:
        decision = event.report.decision
        if decision.corrections:
            self.put(outgoing.correction(event, self.robot_s))
        if decision.action == "escalate":
            self._escalate(event, decision.reason, event.job.since_s)

    def _escalate(self, event: Decided | Diverged, reason: str, since_s: float) -> None:
        """Once for each joint and term, and again only after a while."""
        key = outgoing.escalation_key(event)
        if abs(self.robot_s - self._escalated.get(key, -np.inf)) < ESCALATION_S:
            canonical(self._edges.log, "escalation_known", reason=reason)
            return
        self._escalated[key] = self.robot_s
        digest, size = self._evidence(since_s)
        self.put(outgoing.escalation(event, self.robot_s, digest, size))

    def _evidence(self, since_s: float) -> tuple[str, int]:
        """Store the newest frames since the change; an escalation goes out without them if that fails."""
        frames = self._pipeline.evidence(since_s)
        if frames is None:
            return "", 0
        raw = pack(frames)
        try:
            return self._edges.state.keep_evidence(raw), len(raw)
        except InputError as error:
            canonical(self._edges.log, "evidence_lost", level="error", reason=str(error))
            return "", 0

    def _answer(self, event: Judged) -> None:
        """A candidate has been judged: the host gets the verdict."""
        offered = self._candidates.pop(event.candidate, None)
        if offered is not None:
            self.put(outgoing.verdict(event, offered.base_version, self.robot_s))

    def put(self, message: Stored) -> None:
        """Into the outbox, where it waits for the host's acknowledgement."""
        self.post.put(message)
        self.store()

    def store(self) -> None:
        """Move into the outbox what it did not take before."""
        try:
            for stored, message in self.post.store():
                kind = type(message).__name__.lower()
                if isinstance(stored, MessageTooLargeError):
                    self.problems.note("message", Level.ERROR, f"{stored}; {TOO_LARGE}")
                    canonical(self._edges.log, "not_sent", level="error", kind=kind, reason=stored, remedy=TOO_LARGE)
                    continue
                canonical(self._edges.log, "queued", kind=kind, sequence=stored, base_version=message.base_version)
                self.problems.clear("message")
                self.problems.clear("outbox")
        except OutboxError as error:
            self._outbox_failed(error)

    def _outbox_failed(self, error: OutboxError) -> None:
        self.problems.note("outbox", Level.ERROR, str(error))
        canonical(self._edges.log, "outbox", level="error", key=str(error), every_s=60.0, reason=str(error))

    def talk(self, now_s: float) -> None:
        """Hear the host out, and send what is due; now_s is monotonic."""
        if self._edges.link is None:
            return
        try:
            for event in self._edges.link.step(now_s):
                journal.link(self._edges.log, event)
                self._heard(event)
        except OutboxError as error:
            self._outbox_failed(error)
        else:
            if not self.post.unstored:
                self.problems.clear("outbox")

    def _heard(self, event: Event) -> None:
        match event:
            case Connected():
                self.problems.clear("link")
                if self.post.pending == 0:
                    self.adopt(event.welcome.version, event.welcome.z)
            case Disconnected():
                self.problems.note("link", Level.WARN, f"{event.reason}; {event.remedy}")
            case Refused():
                self.problems.note("link", Level.WARN, f"the host refuses this robot ({event.code}); {event.remedy}")
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
        self.problems.clear("host")
        if self.post.pending == 0 and event.version != self.post.version and self._edges.link is not None:
            self._edges.link.close()  # the host has other values than expected: its next Welcome tells them

    def _rejected(self, event: Rejected) -> None:
        self.problems.note("host", Level.WARN, f"the host refused a message ({event.code}); {event.remedy}")
        if isinstance(event.message, Correction | Verdict):
            self.adopt(event.version, event.z)  # the simulator does not have the refused values
        elif self.post.pending == 0:
            self.post.version = event.version

    def adopt(self, version: int, z: tuple[float, ...]) -> None:
        """The host's values are what the simulator has; whether they are right the monitor will tell.

        Before its first correction it has nominal values, also where it has lost others.
        """
        self.post.version = version
        self.post.forget_corrections()
        z = z or tuple(self._robot.parameters.z_nominal.tolist())
        if z != self._pipeline.keeper.memory.z:
            self.problems.clear("decision")  # it was about values that are gone
            canonical(self._edges.log, "adopted", version=version)
            self._record("adopted", z=z)
            self._pipeline.keeper.adopt(np.array(z))

    def _offered(self, candidate: Candidate) -> None:
        if candidate.candidate in self._known or candidate.base_version != self.post.version:
            return
        self._known.add(candidate.candidate)
        self._candidates[candidate.candidate] = candidate
        self._record("offered", candidate=candidate.candidate, z=candidate.z)
        self._pipeline.keeper.offer(candidate.candidate, np.array(candidate.z))

    def _send_evidence(self, event: EvidenceWanted) -> None:
        data, total = self._edges.state.evidence(event.evidence, event.offset, CHUNK_BYTES)
        if self._edges.link is not None:
            self._edges.link.send_chunk(Chunk(event.evidence, event.offset, total, event.evidence, data))

    def _sd(self) -> Array:
        """Scaled standard deviations (P,) of the last fit; without one, a fourth of the range, as the host has it."""
        space = self._robot.parameters
        known = self._pipeline.keeper.memory.z_sd
        return np.array(known) if known else np.asarray((space.z_max - space.z_min) / 4)

    def link_state(self) -> LinkState | None:
        """The link for the status, None where there is none."""
        if self._edges.link is None:
            return None
        try:
            told = self._edges.link.status(self.robot_s)
        except OutboxError as error:
            return LinkState(error=str(error))
        return LinkState(told.endpoint, told.up, told.pending, told.oldest_s, told.version, told.error, told.dropped)
