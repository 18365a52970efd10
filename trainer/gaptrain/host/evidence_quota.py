"""How much evidence stays: the newest recordings of each robot, and of all robots as much as a disk can spare."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from gaptrain.host.rows import DamagedError, Sha256, decode_row

# Of one robot. It escalates a term once an hour at most: the last day of a robot in trouble, months of any other.
MOST_OF_ROBOT = 20
# Of all. An arm's recording has 7 MB and none more than 64 MiB, so that sixty robots at least have their newest here,
# on a disk that must have room for training data as well.
MOST_BYTES = 4 * 2**30


@dataclass(frozen=True)
class Surplus:
    """A recording that has to go, its size in bytes, and why."""

    evidence: str  # sha256
    robot: str
    size: int
    reason: str


def surplus(database: sqlite3.Connection, size: Callable[[str], int]) -> list[Surplus]:
    """Complete recordings that are too many, oldest first; `size` tells the bytes of one that is on the disk.

    One that a job needs which waits, is ready or runs is never among them, but counts. What a damaged row names is no
    recording.
    """
    jobs = _readable(
        database,
        "SELECT DISTINCT evidence, robot, 0 FROM jobs WHERE state IN ('waiting', 'ready', 'running')",
    )
    needed = {row.evidence for row in jobs}
    total, of_robot = sum(map(size, needed)), Counter[str]()
    found: list[Surplus] = []
    for row in _readable(
        database,
        "SELECT evidence, robot, max(received) AS newest FROM escalations WHERE evidence_state = 'complete' "
        "GROUP BY evidence ORDER BY newest DESC, rowid DESC",
    ):
        evidence, robot = row.evidence, row.robot
        of_robot[robot] += 1
        if evidence in needed:
            continue
        if of_robot[robot] > MOST_OF_ROBOT:
            reason = f"{MOST_OF_ROBOT} newer ones of this robot are here"
            found.append(Surplus(evidence, robot, size(evidence), reason))
            continue
        total += size(evidence)
        if total > MOST_BYTES:
            found.append(Surplus(evidence, robot, size(evidence), f"newer ones fill {MOST_BYTES / 2**30:g} GiB"))
    return found[::-1]


class _Recording(msgspec.Struct):
    evidence: Sha256
    robot: str
    newest: float


def _readable(database: sqlite3.Connection, sql: str) -> Iterator[_Recording]:
    for row in database.execute(sql):
        with suppress(DamagedError):
            yield decode_row(_Recording, row, row[1], "escalations")
