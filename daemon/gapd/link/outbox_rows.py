"""The rows of an outbox: one SQLite table of numbered messages, each with its checksum.

Row 0 is the head (id of the outbox, last sequence given), rows above 0 wait, those below are damaged.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from hashlib import blake2b
from pathlib import Path

import msgspec

from gapd.messages import link as wire

Stored = wire.Correction | wire.Escalation | wire.Verdict

TABLE = "CREATE TABLE message (sequence INTEGER PRIMARY KEY, body BLOB NOT NULL, checksum BLOB NOT NULL)"
WAITING = "SELECT sequence, body, checksum FROM message WHERE sequence > ? ORDER BY sequence LIMIT ?"


class Head(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    id: str
    last: int


class DamagedError(Exception):
    """The file is readable, but not an outbox."""


def _checksum(sequence: int, body: bytes) -> bytes:
    return blake2b(sequence.to_bytes(8, "big") + body, digest_size=16).digest()


def insert(db: sqlite3.Connection, sequence: int, body: bytes) -> None:
    db.execute("INSERT INTO message VALUES (?, ?, ?)", (sequence, body, _checksum(sequence, body)))


def write_head(db: sqlite3.Connection, head: Head) -> None:
    body = msgspec.msgpack.encode(head)
    db.execute("UPDATE message SET body = ?, checksum = ? WHERE sequence = 0", (body, _checksum(0, body)))


def read_head(db: sqlite3.Connection) -> Head:
    row = db.execute("SELECT body, checksum FROM message WHERE sequence = 0").fetchone()
    if row is None or not _is_whole(0, *row):
        raise DamagedError("its head is not whole")
    return msgspec.msgpack.decode(row[0], type=Head)


def _is_whole(sequence: object, body: object, checksum: object) -> bool:
    return isinstance(sequence, int) and isinstance(body, bytes) and checksum == _checksum(abs(sequence), body)


def verified(sequence: object, body: object, checksum: object) -> Stored | None:
    """The message in a row, None if it is not what was put there."""
    if not _is_whole(sequence, body, checksum):
        return None
    try:
        message = wire.FROM_ROBOT.decode(body)  # type: ignore[arg-type]
    except msgspec.MsgspecError:
        return None
    return message if isinstance(message, Stored) else None


def whole(path: Path) -> list[Stored]:
    """What can still be read of a damaged file, in order."""
    found: dict[int, Stored] = {}
    with suppress(sqlite3.Error), closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as db:
        db.text_factory = bytes
        db.execute("PRAGMA writable_schema = ON")  # else SQLite reads nothing of a file that has been cut off
        for (sequence,) in db.execute("SELECT sequence FROM message WHERE sequence > 0 LIMIT 1000000"):
            with suppress(sqlite3.Error):
                row = db.execute(
                    "SELECT sequence, body, checksum FROM message WHERE sequence = ?", (sequence,)
                ).fetchone()
                message = verified(*row) if row else None
                if message is not None:
                    found[sequence] = message
    return [found[sequence] for sequence in sorted(found)]
