"""Applies robots' messages, each once: the answer may be sent as soon as the transaction is committed."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from gapd.messages.link import (
    Ack,
    Correction,
    Durable,
    Escalation,
    Hello,
    Nack,
    Refused,
    Verdict,
    Welcome,
)
from gaptrain.host import jobs
from gaptrain.host.database import FILE, open_existing, open_state, transaction
from gaptrain.host.evidence_files import Wanted
from gaptrain.host.hello import enrol_again, unfit
from gaptrain.host.message_faults import LARGEST_INTEGER, correction_values, escalation_fault, verdict_fault
from gaptrain.host.registry import Definitions, Enrolled
from gaptrain.host.rows import Count, DamagedError, decode_row
from gaptrain.host.values import Values
from gaptrain.host.versions import NOMINAL, Origin, Version, add_version, newest, newest_number

Answer = Ack | Nack
Code = Literal["stale_base", "wrong_epoch", "wrong_parameters", "invalid"]

_STALE = "fit and check again on the values that come with this message"


@dataclass(frozen=True)
class _Refusal:
    code: Code
    remedy: str


class _Epoch(msgspec.Struct):
    epoch: Count
    high_water: Count
    fingerprint: str


class _Refused(msgspec.Struct):
    code: Code
    remedy: str


@contextmanager
def _consistent(robot: str) -> Iterator[None]:
    """DamagedError where what a robot's message adds contradicts what is stored of it: only damage does that."""
    try:
        yield
    except (sqlite3.IntegrityError, OverflowError) as error:
        raise DamagedError(robot, "epochs or versions", error) from None


class Store:
    """The host's state as the service uses it. Not for several threads."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        """Open or make the state; `clock` gives wall time in s, which is stored as a label only."""
        self._folder, self._clock = folder, clock
        self._use(open_state(folder))

    def close(self) -> None:
        """Close the file; what is committed stays."""
        self.database.close()

    def reopen(self) -> None:
        """Open the state again after it was closed; HostError if it is not there: another one is never begun."""
        self._use(open_existing(self._folder))

    def require_in_place(self) -> None:
        """OSError if the file is no longer the one in the folder: nobody would find again what is committed to it."""
        if _file_number(self._folder) != self._file:
            raise OSError(errno.ESTALE, "another file is in its place", str(self._folder / FILE))

    def _use(self, database: sqlite3.Connection) -> None:
        self.database = database
        self._definitions = Definitions(database)
        self._file = _file_number(self._folder)

    def greet(self, robot: Enrolled, hello: Hello) -> Welcome | Refused:
        """Answer a Hello: the same outbox has the same epoch, a new one the next.

        HostError, also of `apply`, where what is stored of this robot is damaged; then nothing is changed.
        """
        refused = unfit(robot, hello)
        if refused:
            return refused
        self._definitions.space(robot.name, robot.fingerprint)  # now, not at its first correction
        with _consistent(robot.name), transaction(self.database):
            key = (robot.name, hello.outbox)
            epoch = self._epoch(robot, "outbox = ?", hello.outbox)
            if epoch is None:
                epoch = _Epoch(self._issue(robot, hello), 0, hello.parameters)
            if epoch.fingerprint != hello.parameters:
                sql = "UPDATE epochs SET fingerprint = ? WHERE robot = ? AND outbox = ?"
                self.database.execute(sql, (hello.parameters, *key))
            current = newest(self.database, robot.name)
        number, z = (current.number, current.z) if current else (NOMINAL, ())
        return Welcome(epoch.epoch, epoch.high_water, number, z)

    def _epoch(self, robot: Enrolled, which: Literal["outbox = ?", "epoch = ?"], value: str | int) -> _Epoch | None:
        sql = f"SELECT epoch, high_water, fingerprint FROM epochs WHERE robot = ? AND {which}"  # noqa: S608  constant
        row = self.database.execute(sql, (robot.name, value)).fetchone()
        return None if row is None else decode_row(_Epoch, row, robot.name, "epochs")

    def _issue(self, robot: Enrolled, hello: Hello) -> int:
        sql = "SELECT coalesce(max(epoch), 0) + 1 FROM epochs WHERE robot = ?"
        epoch = int(self.database.execute(sql, (robot.name,)).fetchone()[0])
        self.database.execute(
            "INSERT INTO epochs (robot, epoch, outbox, fingerprint, issued) VALUES (?, ?, ?, ?, ?)",
            (robot.name, epoch, hello.outbox, hello.parameters, self._clock()),
        )
        return epoch

    def apply(self, robot: Enrolled, message: Correction | Escalation | Verdict) -> Answer:
        """Apply a durable message, once by (robot, epoch, sequence); again gives the same kind of answer.

        A refusal is final too: it advances the high-water mark. Only a message of an unknown epoch does not.
        """
        with _consistent(robot.name), transaction(self.database):
            current = newest(self.database, robot.name)
            epoch = self._epoch(robot, "epoch = ?", min(max(message.epoch, 0), LARGEST_INTEGER))
            if epoch is None or not 0 < message.sequence <= LARGEST_INTEGER:
                refusal = _Refusal("wrong_epoch", "say hello and use the epoch of the answer; sequences start at 1")
            elif message.sequence <= epoch.high_water:
                return self._again(robot, message, current)
            elif epoch.fingerprint != robot.fingerprint:
                refusal = _Refusal("wrong_parameters", enrol_again(robot))
            else:
                refused = self._take(robot, message, current)
                if refused is None:
                    self._advance(robot, message)
                    return Ack(message.epoch, message.sequence, newest_number(self.database, robot.name))
                refusal = refused
            if epoch is not None:
                self._refuse(robot, message, refusal)
        return _nack(message, refusal, current)

    def _take(self, robot: Enrolled, message: Durable, current: Version | None) -> _Refusal | None:
        if isinstance(message, Correction):
            return self._correct(robot, message, current)
        if isinstance(message, Escalation):
            return self._escalate(robot, message)
        assert isinstance(message, Verdict)  # noqa: S101  apply takes nothing else
        return self._judge(robot, message, current)

    def _correct(self, robot: Enrolled, message: Correction, current: Version | None) -> _Refusal | None:
        values = correction_values(message, self._definitions.space(robot.name, robot.fingerprint))
        if isinstance(values, str):
            return _Refusal("invalid", values)
        if message.base_version != (current.number if current else NOMINAL):
            return _Refusal("stale_base", _STALE)
        self._add(robot, values, Origin.of(message), message.base_version + 1)
        return None

    def _escalate(self, robot: Enrolled, message: Escalation) -> _Refusal | None:
        fault = escalation_fault(message)
        if fault:
            return _Refusal("invalid", fault)
        wall_s = self._clock()
        self.database.execute(
            "INSERT INTO escalations (robot, epoch, sequence, base_version, reason, remedy, terms, evidence, "
            "evidence_bytes, evidence_state, timestamp, received) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                robot.name, message.epoch, message.sequence, message.base_version, message.reason, message.remedy,
                msgspec.json.encode(message.terms), message.evidence, message.evidence_bytes,
                "wanted" if message.evidence else "none", message.timestamp, wall_s,
            ),
        )  # fmt: skip
        if message.evidence:
            jobs.add_job(self.database, robot.name, message, wall_s)
        return None

    def _judge(self, robot: Enrolled, message: Verdict, current: Version | None) -> _Refusal | None:
        fault = verdict_fault(message)
        offered = None if fault else jobs.stored(self.database, robot.name, message.candidate)
        if offered is None:
            return _Refusal("invalid", fault or f"candidate {message.candidate[:60]!r} was not offered to this robot")
        number = current.number if current else NOMINAL
        same = (message.base_version, offered.base_version, offered.fingerprint) == (number, number, robot.fingerprint)
        if not same or offered.state == "stale":
            return _Refusal("stale_base", _STALE)
        if offered.state != "pending":
            return _Refusal("invalid", f"candidate {message.candidate} is {offered.state} already; nothing to do")
        jobs.judged(self.database, message, self._clock())
        if message.verdict == "accepted":
            self._add(robot, Values.independent(*offered.vectors(robot.name)), Origin.of(message), number + 1)
        return None

    def _add(self, robot: Enrolled, values: Values, origin: Origin, number: int) -> None:
        wall_s = self._clock()
        add_version(self.database, robot.name, number, robot.fingerprint, values, origin, wall_s)
        jobs.rebase(self.database, robot.name, number, wall_s)

    def _again(self, robot: Enrolled, message: Durable, current: Version | None) -> Answer:
        """The answer to a message that is applied or refused already."""
        sql = "SELECT code, remedy FROM refusals WHERE robot = ? AND epoch = ? AND sequence = ?"
        row = self.database.execute(sql, (robot.name, message.epoch, message.sequence)).fetchone()
        if row is not None:
            refused = decode_row(_Refused, row, robot.name, "refusals")
            return _nack(message, _Refusal(refused.code, refused.remedy), current)
        return Ack(message.epoch, message.sequence, current.number if current else NOMINAL)

    def _refuse(self, robot: Enrolled, message: Durable, refusal: _Refusal) -> None:
        if refusal.code == "wrong_epoch":
            return
        self._advance(robot, message)
        self.database.execute(
            "INSERT INTO refusals VALUES (?, ?, ?, ?, ?, ?)",
            (robot.name, message.epoch, message.sequence, refusal.code, refusal.remedy, self._clock()),
        )

    def _advance(self, robot: Enrolled, message: Durable) -> None:
        self.database.execute(
            "UPDATE epochs SET high_water = ? WHERE robot = ? AND epoch = ?",
            (message.sequence, robot.name, message.epoch),
        )

    def wanted(self, robot: str) -> Wanted | None:
        """The recording to fetch from the robot next: that of the newest escalation first."""
        row = self.database.execute(
            "SELECT evidence, evidence_bytes FROM escalations WHERE robot = ? AND evidence_state = 'wanted' "
            "ORDER BY received DESC LIMIT 1",
            (robot,),
        ).fetchone()
        return None if row is None else decode_row(Wanted, (robot, *row), robot, "escalations")

    def evidence_complete(self, wanted: Wanted) -> None:
        """Note that the recording is on the disk; jobs that waited for it become ready."""
        with transaction(self.database):
            self._evidence(wanted, "complete", "")
            jobs.evidence_came(self.database, wanted.evidence)

    def evidence_lost(self, wanted: Wanted, reason: str) -> None:
        """Note that the recording cannot be had; jobs that waited for it fail."""
        with transaction(self.database):
            self._evidence(wanted, "lost", reason)
            jobs.evidence_lost(self.database, wanted.robot, wanted.evidence, reason, self._clock())

    def evidence_dropped(self, evidence: str, reason: str) -> None:
        """Note that the recording was removed here."""
        self.database.execute(
            "UPDATE escalations SET evidence_state = 'dropped', evidence_reason = ? "
            "WHERE evidence = ? AND evidence_state = 'complete'",
            (reason, evidence),
        )

    def _evidence(self, wanted: Wanted, state: str, reason: str) -> None:
        self.database.execute(
            "UPDATE escalations SET evidence_state = ?, evidence_reason = ? "
            "WHERE robot = ? AND evidence = ? AND evidence_state = 'wanted'",
            (state, reason, wanted.robot, wanted.evidence),
        )


def _file_number(folder: Path) -> tuple[int, int]:
    """What tells the state's file from any other one."""
    found = (folder / FILE).stat()
    return found.st_dev, found.st_ino


def _nack(message: Durable, refusal: _Refusal, current: Version | None) -> Nack:
    number, z = (current.number, current.z) if current else (NOMINAL, ())
    return Nack(message.epoch, message.sequence, refusal.code, refusal.remedy, number, z)
