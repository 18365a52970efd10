"""Recalibrations from the escalation to the robot's verdict: jobs, and the candidates they make."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from gapd.messages.link import Candidate, Escalation, Term, Verdict
from gaptrain.host.rows import RESTORE, Count, DamagedError, Rising, Sha256, decode_row, of_robot
from gaptrain.host.values import known_gap

Array = NDArray[np.float64]
Ended = Literal["offered", "nothing", "failed", "superseded"]

# A recalibration that was cut off this often will be cut off again.
MOST_ATTEMPTS = 3
# Corrections may overtake a candidate this often before it is given up.
MOST_REBASES = 5


class Job(msgspec.Struct, frozen=True):
    """One recalibration. Wall times in s: where it began and ended, last."""

    number: int
    robot: str
    evidence: Sha256
    state: str
    attempts: Rising
    started: float | None
    ended: float | None
    reason: str
    remedy: str
    candidate: str


_JOB = "SELECT job, robot, evidence, state, attempts, started, ended, reason, remedy, candidate FROM jobs"
_AGAIN = "run `gaptrain recalibrate {robot}` again, or " + RESTORE
TERMS = msgspec.json.Decoder(tuple[Term, ...])


def add_job(database: sqlite3.Connection, robot: str, message: Escalation, received: float) -> None:
    """Make the job of an escalation; it takes the place of the robot's older ones that have not begun."""
    database.execute(
        "UPDATE jobs SET state = 'superseded', reason = 'a newer escalation', ended = ? "
        "WHERE robot = ? AND state IN ('waiting', 'ready')",
        (received, robot),
    )
    database.execute(
        "INSERT INTO jobs (robot, epoch, sequence, evidence, state, made) VALUES (?, ?, ?, ?, 'waiting', ?)",
        (robot, message.epoch, message.sequence, message.evidence, received),
    )


def evidence_came(database: sqlite3.Connection, evidence: str) -> None:
    """Jobs that waited for this recording can run."""
    database.execute("UPDATE jobs SET state = 'ready' WHERE evidence = ? AND state = 'waiting'", (evidence,))


def evidence_lost(database: sqlite3.Connection, robot: str, evidence: str, reason: str, wall_s: float) -> None:
    """Jobs that waited for this recording cannot run."""
    waiting = database.execute(
        "SELECT job FROM jobs WHERE robot = ? AND evidence = ? AND state = 'waiting'", (robot, evidence)
    )
    for (job,) in waiting.fetchall():
        end_job(database, job, "failed", reason, "wait for the robot's next escalation", wall_s)


def fail_damaged(database: sqlite3.Connection, wall_s: float) -> list[tuple[int, DamagedError]]:
    """End the jobs that are due and cannot be read, so that those of other robots are not behind them for ever."""
    found: list[tuple[int, DamagedError]] = []
    for row in database.execute(f"{_JOB} WHERE state IN ('ready', 'running') ORDER BY job").fetchall():
        try:
            _job(row)
        except DamagedError as error:
            end_job(database, row[0], "failed", str(error), RESTORE, wall_s)
            found.append((row[0], error))
    return found


def next_job(database: sqlite3.Connection) -> Job | None:
    """The oldest job that can run."""
    return _one(database.execute(f"{_JOB} WHERE state = 'ready' ORDER BY job LIMIT 1"))


def interrupted(database: sqlite3.Connection) -> list[Job]:
    """Jobs that are marked as running; without a process they were cut off."""
    return [_job(row) for row in database.execute(f"{_JOB} WHERE state = 'running'")]


def with_evidence(database: sqlite3.Connection, robot: str) -> Job | None:
    """The robot's newest job whose recording is complete, whatever became of it."""
    sql = (
        f"{_JOB} WHERE robot = ? AND evidence IN "  # noqa: S608  constant
        "(SELECT evidence FROM escalations WHERE evidence_state = 'complete') ORDER BY job DESC LIMIT 1"
    )
    return _one(database.execute(sql, (robot,)))


def numbered(database: sqlite3.Connection, number: int) -> Job | None:
    """The job of that number."""
    return _one(database.execute(f"{_JOB} WHERE job = ?", (number,)))


def _one(rows: sqlite3.Cursor) -> Job | None:
    row = rows.fetchone()
    return None if row is None else _job(row)


def _job(row: Sequence[object]) -> Job:
    return decode_row(Job, row, row[1], f"jobs, job {row[0]}")


class _Asked(msgspec.Struct):
    terms: bytes
    remedy: str


def asked(database: sqlite3.Connection, job: Job) -> tuple[tuple[Term, ...], str]:
    """Structural terms that the escalation of a job names, none or more, and the remedy that came with them."""
    row = database.execute(
        "SELECT e.terms, e.remedy FROM jobs AS j JOIN escalations AS e USING (robot, epoch, sequence) WHERE j.job = ?",
        (job.number,),
    ).fetchone()
    table = f"escalations, job {job.number}"
    if row is None:
        raise DamagedError(job.robot, table, "the escalation is not there")
    said = decode_row(_Asked, row, job.robot, table)
    with of_robot(job.robot, table):
        return TERMS.decode(said.terms), said.remedy


def named(terms: Iterable[Term]) -> str:
    """Terms as one reads them: where, what, and the share of the squared gap that each explains."""
    return ", ".join(f"{t.joint} {t.regressor} (share {100 * t.share:.0f} %)" for t in terms)


def begin_job(database: sqlite3.Connection, job: int, wall_s: float) -> None:
    """Mark a job as running."""
    database.execute(
        "UPDATE jobs SET state = 'running', attempts = attempts + 1, started = ?, ended = NULL WHERE job = ?",
        (wall_s, job),
    )


def put_back(database: sqlite3.Connection, job: Job) -> None:
    """Undo the begin of a job that was read before it: what became of it earlier is not touched by a begin.

    One that seemed to run then had been cut off, and can run.
    """
    state = "ready" if job.state == "running" else job.state
    database.execute(
        "UPDATE jobs SET state = ?, attempts = ?, started = ?, ended = ? WHERE job = ?",
        (state, job.attempts, job.started, job.ended, job.number),
    )


def result(database: sqlite3.Connection, job: int) -> dict[str, str]:
    """State, reason, remedy and candidate of a job, for the journal."""
    found = _job(database.execute(f"{_JOB} WHERE job = ?", (job,)).fetchone())
    return {name: getattr(found, name) for name in ("state", "reason", "remedy", "candidate")}


def resume_job(database: sqlite3.Connection, job: Job, wall_s: float) -> None:
    """Put a job that was cut off back, or give it up."""
    if job.attempts < MOST_ATTEMPTS:
        database.execute("UPDATE jobs SET state = 'ready' WHERE job = ?", (job.number,))
        return
    reason = f"cut off {job.attempts} times"
    end_job(database, job.number, "failed", reason, by_hand(job), wall_s)


def count_attempt(database: sqlite3.Connection, job: Job, reason: str, wall_s: float) -> None:
    """Count an attempt that ended before the job began, for this reason; the last one ends the job."""
    attempts = job.attempts + 1
    database.execute("UPDATE jobs SET attempts = ? WHERE job = ?", (attempts, job.number))
    if attempts >= MOST_ATTEMPTS:
        end_job(database, job.number, "failed", f"not begun in {attempts} attempts: {reason}", by_hand(job), wall_s)


def by_hand(job: Job) -> str:
    """What to do about a job whose process fails."""
    return f"run `gaptrain recalibrate {job.robot}` and read its output"


def end_job(
    database: sqlite3.Connection, job: int, state: Ended, reason: str, remedy: str, wall_s: float, candidate: str = ""
) -> None:
    """Record how a job ended, with the reason and what to do."""
    database.execute(
        "UPDATE jobs SET state = ?, reason = ?, remedy = ?, candidate = ?, ended = ? WHERE job = ?",
        (state, reason, remedy, candidate, wall_s, job),
    )


def add_candidate(
    database: sqlite3.Connection,
    robot: str,
    base_version: int,
    fingerprint: str,
    z: Array,
    z_sd: Array,
    source: str,
    wall_s: float,
) -> str:
    """Store values (P,) to be offered in place of those of base_version; return the candidate's name."""
    name = f"{secrets.token_hex(6)}.0"
    database.execute(
        "UPDATE candidates SET state = 'stale', reason = 'a newer candidate', decided = ? "
        "WHERE robot = ? AND state = 'pending'",
        (wall_s, robot),
    )
    _insert(database, name, (robot, base_version, fingerprint, _bytes(z), _bytes(z_sd), source, wall_s))
    return name


class Stored(msgspec.Struct, frozen=True):
    """A candidate as it is stored."""

    name: str
    base_version: Count
    fingerprint: str
    z: bytes
    z_sd: bytes
    source: str
    state: str

    def vectors(self, robot: str) -> tuple[Array, Array]:
        """Scaled values and standard deviations, (P,) each; HostError if they are damaged."""
        with of_robot(robot, f"candidates, candidate {self.name}", _AGAIN):
            z, z_sd = np.frombuffer(self.z, "<f8"), np.frombuffer(self.z_sd, "<f8")
            if not len(z) or len(z) != len(z_sd) or not np.isfinite([z, z_sd]).all() or (z_sd < 0).any():
                raise ValueError("the values are not complete")
        return z, z_sd


_STORED = "SELECT candidate, base_version, fingerprint, z, z_sd, source, state FROM candidates"


def _stored(robot: str, row: Sequence[object]) -> Stored:
    return decode_row(Stored, row, robot, "candidates", _AGAIN)


def stored(database: sqlite3.Connection, robot: str, candidate: str) -> Stored | None:
    """The candidate of that name, if it is the robot's."""
    row = database.execute(f"{_STORED} WHERE candidate = ? AND robot = ?", (candidate, robot)).fetchone()
    return None if row is None else _stored(robot, row)


def pending(database: sqlite3.Connection, robot: str) -> Candidate | None:
    """The candidate that waits for the robot's verdict."""
    row = database.execute(f"{_STORED} WHERE robot = ? AND state = 'pending'", (robot,)).fetchone()
    if row is None:
        return None
    found = _stored(robot, row)
    z, z_sd = (tuple(vector.tolist()) for vector in found.vectors(robot))
    return Candidate(found.name, found.base_version, z, z_sd, found.source)


def rebase(database: sqlite3.Connection, robot: str, version: int, wall_s: float) -> None:
    """After a new version offer what is pending again, on that version: its values are absolute, the robot checks."""
    rows = database.execute(f"{_STORED} WHERE robot = ? AND state = 'pending'", (robot,)).fetchall()
    for old in (_stored(robot, row) for row in rows):
        with of_robot(robot, "candidates", _AGAIN):
            stem, _, number = old.name.rpartition(".")
            times = int(number)
        database.execute(
            "UPDATE candidates SET state = 'stale', reason = ?, decided = ? WHERE candidate = ?",
            (f"version {version} came before its verdict", wall_s, old.name),
        )
        if times < MOST_REBASES:
            row = (robot, version, old.fingerprint, old.z, old.z_sd, old.source, wall_s)
            _insert(database, f"{stem}.{times + 1}", row)


def withdraw(database: sqlite3.Connection, robot: str, reason: str, wall_s: float) -> None:
    """Offer nothing any more."""
    database.execute(
        "UPDATE candidates SET state = 'stale', reason = ?, decided = ? WHERE robot = ? AND state = 'pending'",
        (reason, wall_s, robot),
    )


def judged(database: sqlite3.Connection, message: Verdict, wall_s: float) -> None:
    """Record the robot's verdict on a pending candidate."""
    gaps = map(known_gap, (message.gap_before, message.gap_after))
    database.execute(
        "UPDATE candidates SET state = ?, reason = ?, gap_before = ?, gap_after = ?, windows = ?, decided = ? "
        "WHERE candidate = ?",
        (message.verdict, message.reason, *gaps, message.windows, wall_s, message.candidate),
    )


def _insert(database: sqlite3.Connection, name: str, row: tuple[object, ...]) -> None:
    database.execute(
        "INSERT INTO candidates (candidate, robot, base_version, fingerprint, z, z_sd, source, made) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (name, *row),
    )


def _bytes(vector: Array) -> bytes:
    return vector.astype("<f8").tobytes()
