"""Versions of a robot's values: the newest one, the history, and the next one."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import numpy as np

from gapd.messages.link import Correction, Verdict
from gaptrain.host.rows import Rising, WallTime, decode_row, of_robot
from gaptrain.host.values import Values, known_gap

# The version before the first correction: nominal values.
NOMINAL = 0


@dataclass(frozen=True)
class Version:
    """Accepted values of one robot, in the scaled coordinates of the parameters with that fingerprint."""

    number: int
    fingerprint: str
    values: Values
    source: str
    reason: str
    received: float  # wall time, s

    @property
    def z(self) -> tuple[float, ...]:
        """Scaled values (P,) as they go into a message."""
        return tuple(self.values.z.tolist())


@dataclass(frozen=True)
class Origin:
    """Where new values come from; of a robot's message, epoch, sequence and its timestamp in s of its own clock."""

    source: str
    reason: str
    changed: Sequence[str] = ()
    effective: Sequence[str] = ()
    gap_before: float = np.nan
    gap_after: float = np.nan
    windows: int = 0
    epoch: int | None = None
    sequence: int | None = None
    timestamp: float | None = None

    @staticmethod
    def of(message: Correction | Verdict) -> Origin:
        """Of a correction or of an accepted candidate."""
        numbers = message.gap_before, message.gap_after, message.windows
        place = message.epoch, message.sequence, message.timestamp
        if isinstance(message, Verdict):
            return Origin(f"candidate {message.candidate}", message.reason, (), (), *numbers, *place)
        source = "previous" if message.previous else "correction"
        return Origin(source, message.reason, message.changed, message.effective, *numbers, *place)


def when(received: float) -> str:
    """A wall time in s as one reads it, in UTC."""
    return datetime.fromtimestamp(received, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")


_COLUMNS = "version, fingerprint, z, z_sd, active, covariance, checksum, source, reason, received"


def newest(database: sqlite3.Connection, robot: str) -> Version | None:
    """The current version, or None before the first correction."""
    sql = f"SELECT {_COLUMNS} FROM versions WHERE robot = ? ORDER BY version DESC LIMIT 1"  # noqa: S608  constant
    row = database.execute(sql, (robot,)).fetchone()
    return None if row is None else _version(robot, row)


def newest_number(database: sqlite3.Connection, robot: str) -> int:
    """Number of the current version, NOMINAL before the first correction."""
    row = database.execute("SELECT max(version) FROM versions WHERE robot = ?", (robot,)).fetchone()
    return NOMINAL if row[0] is None else int(row[0])


def history(database: sqlite3.Connection, robot: str) -> list[Version]:
    """All versions, oldest first."""
    sql = f"SELECT {_COLUMNS} FROM versions WHERE robot = ? ORDER BY version"  # noqa: S608  constant
    return [_version(robot, row) for row in database.execute(sql, (robot,))]


class _Row(msgspec.Struct):
    version: Rising
    fingerprint: str
    z: bytes
    z_sd: bytes
    active: bytes
    covariance: bytes
    checksum: int
    source: str
    reason: str
    received: WallTime


def _version(robot: str, row: Sequence[object]) -> Version:
    table = f"versions, version {row[0]}"
    r = decode_row(_Row, row, robot, table)
    with of_robot(robot, table):
        values = Values.unpack(r.z, r.z_sd, r.active, r.covariance, r.checksum)
    return Version(r.version, r.fingerprint, values, r.source, r.reason, r.received)


def add_version(
    database: sqlite3.Connection,
    robot: str,
    number: int,
    fingerprint: str,
    values: Values,
    origin: Origin,
    received: float,
) -> None:
    """Store a new version; IntegrityError if the number or the message is there already."""
    names = (msgspec.json.encode(list(n)) for n in (origin.changed, origin.effective))
    gaps = map(known_gap, (origin.gap_before, origin.gap_after))
    database.execute(
        f"INSERT INTO versions VALUES ({', '.join('?' * 19)})",  # noqa: S608  constant
        (
            robot, number, fingerprint, *values.pack(), origin.source, origin.reason, *names, *gaps, origin.windows,
            origin.epoch, origin.sequence, origin.timestamp, received,
        ),
    )  # fmt: skip
