"""Escalations of robots and what became of them, as JSON and as text."""

from __future__ import annotations

import sqlite3
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gapd.errors import printable
from gapd.messages.link import Term
from gaptrain.host import jobs
from gaptrain.host.database import read_state, using
from gaptrain.host.registry import the_robot
from gaptrain.host.rows import RESTORE, DamagedError, WallTime, decode_row, of_robot
from gaptrain.host.versions import when

# Characters in a line of text.
WIDTH = 100
_LABEL = 17


class Evidence(msgspec.Struct, frozen=True):
    """The recording of an escalation; reason: why it is lost or dropped."""

    state: str
    bytes: int
    sha256: str
    reason: str


class Offered(msgspec.Struct, frozen=True):
    """The newest candidate of a job, with the robot's verdict once there is one. Gaps are null where unknown."""

    candidate: str
    state: str
    reason: str
    gap_before: float | None
    gap_after: float | None
    windows: int | None


class Escalated(msgspec.Struct, frozen=True):
    """What the robot said."""

    reason: str
    remedy: str
    terms: tuple[Term, ...]


class Entry(msgspec.Struct, frozen=True):
    """One escalation and its job. Without evidence there is no job: its number is null then, its state 'no job'.

    In state 'damaged' it cannot be read: `reason` says why, and what the robot said is empty.
    """

    job: int | None
    robot: str
    received: str  # UTC
    state: str
    reason: str
    remedy: str
    escalation: Escalated
    evidence: Evidence
    candidate: Offered | None


def entries(state: Path, robot: str | None = None) -> list[Entry]:
    """All escalations, oldest first, of one robot or of all; HostError for a robot that is not enrolled."""
    with using(read_state, state) as database:
        if robot is not None:
            the_robot(database, robot)
        rows = database.execute(
            "SELECT job, robot, received, coalesce(j.state, 'no job'), coalesce(j.reason, ''), "
            "coalesce(j.remedy, ''), e.reason, e.remedy, e.terms, e.evidence_state, e.evidence_bytes, e.evidence, "
            "e.evidence_reason, coalesce(j.candidate, '') "
            "FROM escalations AS e LEFT JOIN jobs AS j USING (robot, epoch, sequence) "
            "WHERE ?1 IS NULL OR robot = ?1 ORDER BY received, e.rowid",
            (robot,),
        ).fetchall()
        return [_entry(database, row) for row in rows]


class _Row(msgspec.Struct):
    job: int | None
    robot: str
    received: WallTime
    state: str
    reason: str
    remedy: str
    said: str
    to_do: str
    terms: bytes
    evidence_state: str
    evidence_bytes: int
    evidence: str
    evidence_reason: str
    candidate: str


def _entry(database: sqlite3.Connection, row: Sequence[Any]) -> Entry:
    try:
        return _readable(database, row)
    except DamagedError as error:  # the others are listed all the same
        nothing = Escalated("", "", ()), Evidence("", 0, "", ""), None
        return Entry(row[0], error.robot, "", "damaged", str(error), RESTORE, *nothing)


def _readable(database: sqlite3.Connection, row: Sequence[Any]) -> Entry:
    r = decode_row(_Row, row, row[1], "escalations or jobs")
    with of_robot(r.robot, "escalations"):
        escalation = Escalated(r.said, r.to_do, jobs.TERMS.decode(r.terms))
    evidence = Evidence(r.evidence_state, r.evidence_bytes, r.evidence, r.evidence_reason)
    offered = _offered(database, r.robot, r.candidate) if r.candidate else None
    return Entry(r.job, r.robot, when(r.received), r.state, r.reason, r.remedy, escalation, evidence, offered)


def _offered(database: sqlite3.Connection, robot: str, candidate: str) -> Offered:
    """Values that were offered again on a newer version have another number behind the dot.

    -1 is how older hosts stored a gap that is not known.
    """
    row = database.execute(
        "SELECT candidate, state, reason, nullif(gap_before, -1), nullif(gap_after, -1), windows FROM candidates "
        "WHERE candidate GLOB ? ORDER BY rowid DESC LIMIT 1",
        (f"{candidate.partition('.')[0]}.*",),
    ).fetchone()
    if row is None:
        raise DamagedError(robot, "candidates", f"candidate {candidate} is not there")
    return decode_row(Offered, row, robot, "candidates")


def text(found: Sequence[Entry]) -> str:
    """A block of lines for each escalation, none longer than WIDTH."""
    return "\n\n".join("\n".join(_block(entry)) for entry in found) or "no escalation has come yet"


def _block(entry: Entry) -> Iterator[str]:
    minute = entry.received[:16]  # names may have 63 characters
    yield "  ".join(filter(None, (f"{entry.job or '-':>4}", printable(entry.robot), minute, entry.state)))
    if entry.state == "damaged":
        yield from _lines("result", entry.reason)
        return
    yield from _lines("robot", f"{entry.escalation.reason}; {entry.escalation.remedy}")
    yield from _lines("terms", jobs.named(entry.escalation.terms))
    yield from _lines("evidence", _evidence(entry.evidence))
    yield from _lines("result", "; ".join(filter(None, (entry.reason, entry.remedy))))
    if entry.candidate is not None:
        verdict = ": ".join(filter(None, (entry.candidate.state, entry.candidate.reason)))
        yield from _lines("candidate", f"{entry.candidate.candidate} {verdict}")


def _evidence(evidence: Evidence) -> str:
    size = f", {evidence.bytes / 1e6:.1f} MB" if evidence.bytes else ""
    return ": ".join(filter(None, (evidence.state + size, evidence.reason)))


def _lines(label: str, said: str) -> list[str]:
    """What was said about something, in lines behind its label; none if nothing was."""
    first = f"{'':6}{label:<{_LABEL - 6}}"
    return textwrap.wrap(printable(said), WIDTH, initial_indent=first, subsequent_indent=" " * _LABEL)
