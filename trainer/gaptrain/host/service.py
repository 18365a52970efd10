"""The host's service: one loop that answers robots, fetches evidence and offers candidates."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import zmq

from gapd.keys import KeyPair
from gapd.live.telemetry import Logger, canonical
from gapd.messages.link import (
    ENCODER,
    FROM_ROBOT,
    Ack,
    Chunk,
    Correction,
    Escalation,
    FromHost,
    FromRobot,
    Heartbeat,
    Hello,
    Nack,
    Refused,
    Verdict,
    Welcome,
)
from gaptrain.host.database import HostError
from gaptrain.host.door import Door, listen
from gaptrain.host.evidence_files import EvidenceFiles
from gaptrain.host.fetch import Fetches
from gaptrain.host.journal import Refusals
from gaptrain.host.registry import Enrolled, all_robots
from gaptrain.host.sessions import Session, Sessions
from gaptrain.host.store import Store
from gaptrain.host.worker import Worker

# Messages that share one commit. A commit takes about a millisecond, applying a correction a fifth of one.
MOST_IN_COMMIT = 128
# The loop looks at enrolments, silence, candidates and jobs this often.
TICK_S = 0.5
# After a failed write the state is opened again this much later; the robots send again after 5 s.
REOPEN_S = 1.0

Received = tuple[Session, FromRobot]
Answered = tuple[Session, FromRobot, FromHost]


class Service:
    """Serves the robots of one state folder at one address until it is told to stop."""

    def __init__(self, state: Path, bind: str, keys: KeyPair, log: Logger, auto: bool = False) -> None:
        """Open the state and the sockets; HostError if either is taken. auto: recalibrate on escalations."""
        self._state, self._log, self._stopping = state, log, False
        self._refusals = Refusals(log)
        self._sessions = Sessions()
        self._by_key: dict[str, Enrolled] = {}
        self._files = EvidenceFiles(state)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._open_store()
            self._door = Door(self._context, self._refusals)
            self._router = listen(self._context, bind, keys)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._worker = Worker(state, log) if auto else None
        self._bind = bind
        self._changes = -1
        self._tick(time.monotonic())

    def stop(self) -> None:
        """Let the loop end after what it is doing."""
        self._stopping = True

    def run(self) -> None:
        """Serve until stopped."""
        auto = "off" if self._worker is None else "auto"
        known = len(self._by_key)
        canonical(self._log, "ready", bind=self._bind, state=self._state, robots=known, recalibrate=auto)
        with self._surviving():
            self._fetches.tidy()  # an earlier version kept all of it
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._door.socket, zmq.POLLIN)
        next_tick = time.monotonic() + TICK_S
        while not self._stopping:
            wait_s = max(next_tick - time.monotonic(), 0.0)
            ready = dict(poller.poll(round(1e3 * wait_s)))
            if self._door.socket in ready:
                self._door.answer()
            if self._router in ready:
                self._serve(list(self._received()))
            if time.monotonic() >= next_tick:
                self._tick(time.monotonic())
                next_tick = time.monotonic() + TICK_S

    def close(self) -> None:
        """Close sockets and state."""
        if self._worker is not None:
            self._worker.stop()
        self._context.destroy(linger=0)
        self._store.close()
        canonical(self._log, "stopped", refused=self._refusals.counts)

    def _open_store(self) -> None:
        self._store = Store(self._state, time.time)
        self._fetches = Fetches(self._store, self._files, self._log)

    def _received(self) -> Iterator[Received]:
        """Messages that have come, decoded, each with the session of its robot."""
        for _ in range(MOST_IN_COMMIT):
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            received = self._decoded([bytes(f.buffer) for f in frames], str(frames[-1].get("User-Id")))
            if received is not None:
                yield received

    def _decoded(self, parts: list[bytes], key: str) -> Received | None:
        now, robot = time.monotonic(), self._by_key.get(key)
        if robot is None or robot.revoked is not None:
            self._sessions.forget(parts[0])
            name = robot.name if robot else key
            self._refusals.note("key_revoked", name, "enrol the robot again if it may come back")
            return None
        try:
            message = FROM_ROBOT.decode(b"".join(parts[1:]))
        except (msgspec.DecodeError, RecursionError) as error:
            self._refusals.note("malformed", robot.name, f"{error}; update gapd on the robot")
            return None
        session, new = self._sessions.heard(parts[0], robot.name, now)
        if new:
            canonical(self._log, "connected", robot=robot.name)
        return session, message

    def _serve(self, batch: list[Received]) -> None:
        """Apply a batch in one commit, then answer."""
        answers: list[Answered] = []
        with self._surviving():
            durable = [r for r in batch if isinstance(r[1], Hello | Correction | Escalation | Verdict)]
            if durable:
                with self._store.transaction():
                    answers = [a for session, message in durable if (a := self._answer(session, message))]
            for session, message, answer in answers:  # committed: now they may know
                self._send(session, answer)
                self._tell(session, message, answer)
            for session, message in batch:
                if isinstance(message, Chunk):
                    self._fetches.take(session, message, self._send, time.monotonic())

    def _answer(self, session: Session, message: FromRobot) -> Answered | None:
        robot = self._by_name[session.robot]
        try:
            if isinstance(message, Hello):
                return session, message, self._store.greet(robot, message)
            assert isinstance(message, Correction | Escalation | Verdict)  # noqa: S101  _serve chose them
            return session, message, self._store.apply(robot, message)
        except HostError as error:  # what is stored of this robot is damaged; the others go on
            self._refusals.note("damaged", robot.name, str(error))
            return None

    def _tell(self, session: Session, message: FromRobot, answer: FromHost) -> None:
        """One line about what happened to a message, and what follows from it at once."""
        now, robot = time.monotonic(), session.robot
        if isinstance(answer, Welcome):
            self._sessions.only(session)
            canonical(self._log, "welcome", robot=robot, epoch=answer.epoch, version=answer.version)
            self._offer(session, now)
            self._fetches.ask(session, self._send, now)
        elif isinstance(answer, Refused | Nack):
            self._refusals.note(answer.code, robot, answer.remedy)
        elif isinstance(answer, Ack) and isinstance(message, Correction):
            canonical(
                self._log, "correction", robot=robot, version=answer.version, changed=message.changed,
                reason=message.reason,
            )  # fmt: skip
        elif isinstance(message, Escalation):
            canonical(
                self._log, "escalation", level="warning", robot=robot, reason=message.reason, remedy=message.remedy
            )
            self._fetches.ask(session, self._send, now)
        elif isinstance(message, Verdict) and isinstance(answer, Ack):
            canonical(
                self._log, "verdict", robot=robot, candidate=message.candidate, verdict=message.verdict,
                version=answer.version, reason=message.reason,
            )  # fmt: skip
        if isinstance(message, Correction | Verdict):
            session.offered_s = float("-inf")  # on another base now, or none

    def _tick(self, now: float) -> None:
        with self._surviving():
            self._notice_changes()
            for session in self._sessions.silent(now):
                remedy = "check the robot's power and network"
                canonical(self._log, "silent", level="warning", robot=session.robot, remedy=remedy)
            for session in self._sessions.all():
                if session.idle(now):
                    self._send(session, Heartbeat(self._store.version(session.robot)))
                self._fetches.ask(session, self._send, now)
                if session.offer_due(now):
                    self._offer(session, now)
            if self._worker is not None:
                self._worker.step(self._store, now)

    def _notice_changes(self) -> None:
        """Read the robots again if another process has written."""
        changes = int(self._store.database.execute("PRAGMA data_version").fetchone()[0])
        if changes == self._changes:
            return
        robots = all_robots(self._store.database)
        self._by_key = {robot.public_key: robot for robot in robots}
        self._by_name = {robot.name: robot for robot in robots}
        self._door.admit(self._by_key)
        self._changes = changes
        for session in self._sessions.all():
            session.offered_s = float("-inf")

    def _offer(self, session: Session, now: float) -> None:
        candidate = self._store.candidate(session.robot)
        session.offered_s = now
        if candidate is not None:
            self._send(session, candidate)
            canonical(
                self._log, "offered", robot=session.robot, candidate=candidate.candidate,
                base_version=candidate.base_version,
            )  # fmt: skip

    def _send(self, session: Session, message: FromHost) -> None:
        try:
            self._router.send_multipart([session.route, ENCODER.encode(message)], zmq.NOBLOCK)
            session.sent_s = time.monotonic()
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            # It will ask again; what it does not take must not hold up the others.
            self._sessions.forget(session.route)
            if error.errno == zmq.EHOSTUNREACH:
                canonical(self._log, "disconnected", robot=session.robot)
            else:
                self._refusals.note("not_taken", session.robot, "check the robot's network")

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        """Nothing is acknowledged that failed to be stored; the state is opened again and the robots send again.

        OSError: evidence, on a disk that is full for example; it is asked for again.
        """
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            remedy = "check the disk: space, permissions, health"
            canonical(self._log, "store_failed", level="error", reason=error, remedy=remedy)
            self._store.close()
            time.sleep(REOPEN_S)
            self._open_store()
            self._changes = -1
