"""Fetches the evidence of escalations from the robots, chunk by chunk; goes on where it stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from gapd.live.telemetry import Logger, canonical
from gapd.messages.link import Chunk, EvidenceRequest
from gaptrain.host.database import transaction
from gaptrain.host.evidence_files import EvidenceFiles, Wanted
from gaptrain.host.evidence_quota import surplus
from gaptrain.host.sessions import Session
from gaptrain.host.store import Store

# Without an answer the request is made again.
ASK_AGAIN_S = 5.0
# A recording whose bytes are wrong this often is given up.
MOST_DAMAGED = 3

Send = Callable[[Session, EvidenceRequest], None]


class Fetches:
    """What is being fetched: one recording of each robot at a time."""

    def __init__(self, store: Store, files: EvidenceFiles, log: Logger) -> None:
        """Take what is wanted from the store."""
        self._store, self._files, self._log = store, files, log
        self._current: dict[str, Wanted] = {}  # by robot: a newer escalation does not break in
        self._damaged: Counter[Wanted] = Counter()

    def ask(self, session: Session, send: Send, now_s: float) -> None:
        """Ask for the next bytes, unless an answer is under way."""
        if now_s - session.asked_s < ASK_AGAIN_S:
            return
        wanted = self._current.get(session.robot) or self._store.wanted(session.robot)
        while wanted is not None and self._files.has(wanted.evidence):  # of another escalation, or another robot
            self._complete(wanted)
            wanted = self._store.wanted(session.robot)
        if wanted is not None:
            self._current[session.robot] = wanted
            session.asked_s = now_s
            send(session, EvidenceRequest(wanted.evidence, self._files.offset(wanted)))

    def take(self, session: Session, chunk: Chunk, send: Send, now_s: float) -> None:
        """Keep a chunk and ask for the next one."""
        wanted = self._current.get(session.robot)
        taken = "ignored" if wanted is None else self._files.take(wanted, chunk)
        if wanted is None or taken == "ignored":
            return
        if taken == "complete":
            self._complete(wanted)
        elif taken == "gone":
            self._lose(wanted, "the robot no longer has the recording")
        elif taken == "damaged":
            self._damaged[wanted] += 1
            if self._damaged[wanted] >= MOST_DAMAGED:
                self._lose(wanted, f"{MOST_DAMAGED} times the bytes were not those of the sha256")
        session.asked_s = float("-inf")
        self.ask(session, send, now_s)

    def tidy(self) -> None:
        """Remove the recordings that are too many."""
        with transaction(self._store.database):
            found = surplus(self._store.database, self._files.size)
            for recording in found:  # before the commit: if that fails, the next call finds them again
                self._files.drop(recording.evidence)
                self._store.evidence_dropped(recording.evidence, recording.reason)
        if found:
            canonical(
                self._log, "evidence_dropped", recordings=len(found), bytes=sum(r.size for r in found),
                robots=sorted({r.robot for r in found}), reason=found[-1].reason,
            )  # fmt: skip

    def _complete(self, wanted: Wanted) -> None:
        self._current.pop(wanted.robot, None)
        self._store.evidence_complete(wanted)
        canonical(self._log, "evidence", robot=wanted.robot, evidence=wanted.evidence, bytes=wanted.size)
        self.tidy()

    def _lose(self, wanted: Wanted, reason: str) -> None:
        self._current.pop(wanted.robot, None)
        self._store.evidence_lost(wanted, reason)
        self._files.forget(wanted)
        remedy = "wait for the robot's next escalation"
        canonical(
            self._log, "evidence_lost", level="warning", robot=wanted.robot, evidence=wanted.evidence, reason=reason,
            remedy=remedy,
        )  # fmt: skip
