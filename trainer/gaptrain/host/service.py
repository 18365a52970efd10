"""The host's service: one loop that answers robots, fetches evidence and offers candidates."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
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
    Durable,
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
from gaptrain.host import jobs
from gaptrain.host.database import HostError, transaction
from gaptrain.host.door import Door, listen
from gaptrain.host.evidence_files import EvidenceFiles
from gaptrain.host.fetch import Fetches
from gaptrain.host.refusals import Refusals
from gaptrain.host.registry import Enrolled, all_robots
from gaptrain.host.rows import DamagedError
from gaptrain.host.sessions import Session, Sessions
from gaptrain.host.store import Store
from gaptrain.host.versions import newest_number
from gaptrain.host.worker import Worker

# Messages that share one commit. A commit takes about a millisecond, applying a correction a fifth of one.
MOST_IN_COMMIT = 128
# The loop looks at enrolments, silence, candidates and jobs this often.
TICK_S = 0.5
# After a failure of the state it is opened again this often; a robot tries to connect every 0.5 to 30 s.
REOPEN_S = 1.0
FAILURE_REPEAT_S = 60.0
_REMEDY = "check the disk: is it mounted, has it space, permissions, health; then the host goes on by itself"

Received = tuple[Session, FromRobot]
Answered = tuple[Session, FromRobot, FromHost]


class Service:
    """Serves the robots of one state folder at one address until it is told to stop."""

    def __init__(self, state: Path, bind: str, keys: KeyPair, log: Logger, auto: bool = False) -> None:
        """Open the state and the sockets; HostError if either is taken. auto: recalibrate on escalations."""
        self._state, self._bind, self._keys, self._log, self._stopping = state, bind, keys, log, False
        self._refusals = Refusals(log)
        self._sessions = Sessions()
        self._by_key: dict[str, Enrolled] = {}
        self._damaged: Mapping[str, DamagedError] = {}
        self._files = EvidenceFiles(state)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._store = Store(state, time.time)
            self._fetches = Fetches(self._store, self._files, log)
            self._door = Door(self._context, self._refusals)
            self._listen()
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._worker = Worker(state, log) if auto else None
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
        next_tick = time.monotonic() + TICK_S
        while not self._stopping:
            wait_s = max(next_tick - time.monotonic(), 0.0)
            ready = dict(self._poller.poll(round(1e3 * wait_s)))
            if self._door.socket in ready:
                self._door.answer()
            if self._router in ready:
                self._serve(list(self._received()))
            if time.monotonic() >= next_tick and not self._stopping:
                self._tick(time.monotonic())
                next_tick = time.monotonic() + TICK_S

    def close(self) -> None:
        """Close sockets and state."""
        if self._worker is not None:
            self._worker.stop()
        self._context.destroy(linger=0)
        self._store.close()
        canonical(self._log, "stopped", refused=self._refusals.counts)

    def _listen(self) -> None:
        self._router = listen(self._context, self._bind, self._keys)
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._door.socket, zmq.POLLIN)

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
        now_s, robot = time.monotonic(), self._by_key.get(key)
        if robot is None or robot.revoked is not None:
            self._sessions.forget(parts[0])
            self._turn_away(robot.name if robot else key, self._damaged.get(key))
            return None
        try:
            message = FROM_ROBOT.decode(b"".join(parts[1:]))
        except (msgspec.DecodeError, RecursionError) as error:
            self._refusals.note("malformed", robot.name, f"{error}; update gapd on the robot")
            return None
        session, new = self._sessions.heard(parts[0], robot.name, now_s)
        if new:
            canonical(self._log, "connected", robot=robot.name)
        return session, message

    def _turn_away(self, who: str, damage: DamagedError | None) -> None:
        """Note why a robot with a connection is not served any more."""
        if damage is None:
            self._refusals.note("key_revoked", who, "enrol the robot again if it may come back")
        else:
            self._refuse_damaged(damage)

    def _serve(self, batch: list[Received]) -> None:
        """Apply a batch in one commit, then answer."""
        answers: list[Answered] = []
        with self._surviving():
            durable = [r for r in batch if isinstance(r[1], Hello | Correction | Escalation | Verdict)]
            if durable:
                with transaction(self._store.database):
                    answers = [a for session, message in durable if (a := self._answer(session, message))]
                self._store.require_in_place()
            for session, message, answer in answers:  # committed: now they may know
                self._send(session, answer)
                self._tell(session, message, answer)
            for session, message in batch:
                if isinstance(message, Chunk):
                    with self._one_robot():
                        self._fetches.take(session, message, self._send, time.monotonic())

    def _answer(self, session: Session, message: FromRobot) -> Answered | None:
        """The answer to a durable message, None while the robot cannot be served: it sends everything again."""
        robot = self._by_name[session.robot]
        if isinstance(message, Hello):
            session.stopped_at = None
        elif isinstance(message, Durable) and session.skips(message.sequence):
            return None
        try:
            if isinstance(message, Hello):
                return session, message, self._store.greet(robot, message)
            assert isinstance(message, Correction | Escalation | Verdict)  # noqa: S101  _serve chose them
            answer = self._store.apply(robot, message)
        except DamagedError as error:
            self._refuse_damaged(error)
            session.stopped_at = message.sequence if isinstance(message, Durable) else None
            return None
        session.stopped_at = None
        return session, message, answer

    def _tell(self, session: Session, message: FromRobot, answer: FromHost) -> None:
        """One line about what happened to a message, and what follows from it at once."""
        now_s, robot = time.monotonic(), session.robot
        if isinstance(answer, Welcome):
            self._sessions.only(session)
            canonical(self._log, "welcome", robot=robot, epoch=answer.epoch, version=answer.version)
            self._offer(session, now_s)
            self._ask(session, now_s)
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
            self._ask(session, now_s)
        elif isinstance(message, Verdict) and isinstance(answer, Ack):
            canonical(
                self._log, "verdict", robot=robot, candidate=message.candidate, verdict=message.verdict,
                version=answer.version, reason=message.reason,
            )  # fmt: skip
        if isinstance(message, Correction | Verdict):
            session.offered_s = float("-inf")  # on another base now, or none

    def _tick(self, now_s: float) -> None:
        with self._surviving():
            self._store.require_in_place()
            self._notice_changes()
            for session in self._sessions.silent(now_s):
                remedy = "check the robot's power and network"
                canonical(self._log, "silent", level="warning", robot=session.robot, remedy=remedy)
            for session in self._sessions.all():
                if session.idle(now_s):
                    self._send(session, Heartbeat(newest_number(self._store.database, session.robot)))
                self._ask(session, now_s)
                if session.offer_due(now_s):
                    self._offer(session, now_s)
            if self._worker is not None:
                with self._one_robot():
                    self._worker.step(self._store, now_s)

    def _notice_changes(self) -> None:
        """Read the robots again if another process has written."""
        changes = int(self._store.database.execute("PRAGMA data_version").fetchone()[0])
        if changes == self._changes:
            return
        robots = all_robots(self._store.database)
        self._by_key = {robot.public_key: robot for robot in robots.readable}
        self._by_name = {robot.name: robot for robot in robots.readable}
        self._damaged = robots.damaged
        self._door.admit(self._by_key, self._damaged)
        for error in self._damaged.values():
            self._refuse_damaged(error)
        self._changes = changes
        for session in self._sessions.all():
            session.offered_s = float("-inf")

    def _ask(self, session: Session, now_s: float) -> None:
        with self._one_robot():
            self._fetches.ask(session, self._send, now_s)

    def _offer(self, session: Session, now_s: float) -> None:
        session.offered_s, candidate = now_s, None
        with self._one_robot():
            candidate = jobs.pending(self._store.database, session.robot)
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
    def _one_robot(self) -> Iterator[None]:
        """What is stored of one robot and cannot be read refuses that robot; the others go on."""
        try:
            yield
        except DamagedError as error:
            self._refuse_damaged(error)

    def _refuse_damaged(self, error: DamagedError) -> None:
        self._refusals.note("damaged", error.robot, str(error))

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        """Nothing is acknowledged that failed to be stored: the robots send it again once the state is back.

        OSError: evidence, on a disk that is full for example, or the whole folder is gone.
        """
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            self._break_off()
            self._come_back(error)

    def _break_off(self) -> None:
        """End all connections: a robot sends several messages in a row, and the store takes any above its last one.

        After one that was not stored none may follow on the same connection; the next one begins with Hello.
        """
        self._router.close()
        self._store.close()
        self._sessions = Sessions()

    def _come_back(self, error: Exception) -> None:
        """Open state and socket again as soon as both can be, however long that takes, unless told to stop."""
        failure: Exception | None = error
        while failure is not None and not self._stopping:
            canonical(
                self._log, "store_failed", level="error", every_s=FAILURE_REPEAT_S, reason=failure, remedy=_REMEDY
            )
            time.sleep(REOPEN_S)
            failure = self._try_again()

    def _try_again(self) -> Exception | None:
        """Open state and socket; what fails, if anything does."""
        try:
            self._store.reopen()
            self._listen()
        except (HostError, sqlite3.Error, OSError) as error:
            self._store.close()
            return error
        self._changes = -1
        return None
