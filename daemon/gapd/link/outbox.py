"""What the host has not acknowledged yet, on disk: stored before `put` returns, deleted only on acknowledgement.

What its rows are is in `outbox_rows`. A row whose checksum fails moves to its negative number: kept for whoever looks,
never sent.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from gapd.errors import ConfigError, GapdError
from gapd.link.outbox_rows import (
    TABLE,
    WAITING,
    DamagedError,
    Head,
    Stored,
    insert,
    read_head,
    verified,
    whole,
    write_head,
)
from gapd.messages import link as wire

T = TypeVar("T")
Log = Callable[[str], None]

SMALLEST_BYTES = 2**18
PAGE_BYTES = 4096
# The write-ahead log comes on top of the file: it may reach WAL_PAGES, and space for it must stay free on the disk.
WAL_PAGES = 256
WAL_BYTES = 4 * WAL_PAGES * PAGE_BYTES
# A log that ends in damage loses its last rows without a word. Numbers given out after a crash leave these behind, so
# that the host never takes a new message for one it has had. The log cannot hold that many rows.
SKIP = 10_000
# Epoch and sequence are filled in when a message is sent: at most 9 bytes each.
ENVELOPE_BYTES = 32
# Codes of SQLite: no such table, malformed, constraint, wrong type, no database. The file is not what was written here.
DAMAGE = frozenset({1, 11, 19, 20, 26})
READONLY, FULL = 8, 13

SETUP = f"""
PRAGMA page_size = {PAGE_BYTES};
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA wal_autocheckpoint = {WAL_PAGES};
PRAGMA journal_size_limit = {WAL_PAGES * PAGE_BYTES};
"""


class OutboxError(GapdError):
    """The outbox could not do what was asked; nothing that it had stored is lost."""


class OutboxFullError(OutboxError):
    """No room for another message; those that wait are untouched."""


class Outbox:
    """Messages in order, of one robot, for one process.

    `id` is random and new with each database, `last` the highest sequence given, `corrupt` the rows moved aside.
    `log` gets one line for everything that was found damaged.
    """

    def __init__(self, path: Path, max_bytes: int, log: Log) -> None:
        """Open or create; raise OutboxError if another process has it, ConfigError if it cannot be there."""
        if max_bytes < SMALLEST_BYTES:
            raise ConfigError(f"outbox max_bytes = {max_bytes} is too small; give at least {SMALLEST_BYTES}")
        self.path, self.max_bytes, self._log = path, max_bytes, log
        self.id, self.last, self.corrupt, self._waiting = "", 0, 0, 0
        self._db: sqlite3.Connection | None = None
        self._lock = _lock(path)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def __len__(self) -> int:
        """Return how many messages wait."""
        return self._waiting

    def close(self) -> None:
        """Close file and lock; what waits is sent after the next opening."""
        self._disconnect()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def put(self, message: Stored) -> int:
        """Store a message and return its sequence; epoch and sequence in the message do not matter.

        On the disk when it returns. Raises OutboxFullError, or OutboxError if the message may not be stored.
        """

        def store(db: sqlite3.Connection) -> int:
            sequence = self.last + 1
            body = wire.ENCODER.encode(msgspec.structs.replace(message, epoch=0, sequence=sequence))
            if len(body) > wire.MAX_BYTES - ENVELOPE_BYTES:
                raise OutboxError(f"a message of {len(body)} bytes cannot be sent; it must stay below {wire.MAX_BYTES}")
            with _transaction(db):
                insert(db, sequence, body)
                write_head(db, Head(self.id, sequence))
            self.last, self._waiting = sequence, self._waiting + 1
            return sequence

        return self._run(store)

    def pending(self, limit: int, after: int = 0) -> list[tuple[int, Stored]]:
        """At most `limit` waiting messages with sequences above `after`, oldest first."""
        return self._run(lambda db: self._read(db, limit, after))

    def delete_through(self, sequence: int) -> int:
        """Delete what waits up to this sequence, included; return how many that were."""
        owner = self.id

        def delete(db: sqlite3.Connection) -> int:
            if self.id != owner:  # begun anew just now: its sequences are others
                return 0
            deleted = db.execute("DELETE FROM message WHERE sequence > 0 AND sequence <= ?", (sequence,)).rowcount
            self._waiting -= deleted
            return deleted

        return self._run(delete)

    def renew(self) -> None:
        """Take a new id: the host has acknowledged more than was ever put here, as after a restored backup."""
        head = Head(secrets.token_hex(16), self.last)
        self._run(lambda db: write_head(db, head))
        self.id = head.id

    def _read(self, db: sqlite3.Connection, limit: int, after: int) -> list[tuple[int, Stored]]:
        found: list[tuple[int, Stored]] = []
        while len(found) < limit:
            rows = db.execute(WAITING, (after, limit - len(found))).fetchall()
            for row in rows:
                message = verified(*row)
                if message is None:
                    self._move_aside(db, row[0])
                else:
                    found.append((row[0], message))
            if not rows:
                break
            after = rows[-1][0]
        return found

    def _move_aside(self, db: sqlite3.Connection, sequence: int) -> None:
        db.execute("UPDATE message SET sequence = -sequence WHERE sequence = ?", (sequence,))
        self._waiting, self.corrupt = self._waiting - 1, self.corrupt + 1
        self._log(
            f"outbox {self.path}: message {sequence} is damaged and moved aside, {self.corrupt} so far; check the disk"
        )

    def _run(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Do it; after an error open again, because what SQLite holds in memory may no longer be what is on disk."""
        try:
            return action(self._open())
        except sqlite3.Error as error:
            if _code(error) == FULL:
                raise self._full() from None
            self._disconnect()
            if self._is_damage(error):
                return action(self._start_over(str(error)))
            with suppress(OutboxError):  # the next call tries again
                self._open()
            raise OutboxError(f"outbox {self.path}: {error}; check the disk, then do it again") from None

    def _full(self) -> OutboxFullError:
        return OutboxFullError(
            f"outbox {self.path} is full: {self._waiting} messages wait in {self.max_bytes} bytes; "
            "bring the host back, raise outbox max_bytes, or free its disk"
        )

    def _open(self) -> sqlite3.Connection:
        """The connection, opened if it is not; a damaged file is renamed and a new outbox begins."""
        if self._db is not None:
            return self._db
        if self._lock < 0:
            raise OutboxError(f"outbox {self.path} is closed; open it again")
        try:
            return self._connect()
        except (sqlite3.Error, DamagedError) as error:
            self._disconnect()
            if isinstance(error, sqlite3.Error) and not self._is_damage(error):
                raise OutboxError(f"outbox {self.path}: {error}; check the disk and its permissions") from None
            return self._start_over(str(error))

    def _is_damage(self, error: sqlite3.Error) -> bool:
        """Whether the file is at fault; a format that SQLite does not know makes a file read-only to it."""
        return _code(error) in DAMAGE or (_code(error) == READONLY and os.access(self.path, os.W_OK))

    def _connect(self) -> sqlite3.Connection:
        exists = self.path.exists()
        if exists and self.path.stat().st_size == 0:
            raise DamagedError("it is empty")
        wal = _beside(self.path, "-wal")
        crashed = wal.exists() and wal.stat().st_size > 0
        self._db = db = sqlite3.connect(self.path, timeout=0, isolation_level=None)
        db.text_factory = bytes  # damaged text must not raise when it is read
        db.executescript(SETUP)
        self._limit(db)
        if exists:
            self._resume(db, crashed=crashed)
        else:
            self._create(db)
        return db

    def _create(self, db: sqlite3.Connection) -> None:
        head = Head(secrets.token_hex(16), 0)
        with _transaction(db):
            db.execute(TABLE)
            insert(db, 0, msgspec.msgpack.encode(head))
        self.id, self.last, self.corrupt, self._waiting = head.id, 0, 0, 0

    def _resume(self, db: sqlite3.Connection, *, crashed: bool) -> None:
        fault = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if fault != b"ok":
            raise DamagedError(fault.decode(errors="replace").splitlines()[-1])
        head = read_head(db)
        if crashed:
            head = Head(head.id, head.last + SKIP)
            with suppress(sqlite3.OperationalError):  # a full disk: put will say so
                write_head(db, head)
        self.id, self.last = head.id, head.last
        count = "SELECT count(*) FROM message WHERE sequence"
        self._waiting = db.execute(f"{count} > 0").fetchone()[0]
        self.corrupt = db.execute(f"{count} < 0").fetchone()[0]

    def _limit(self, db: sqlite3.Connection) -> None:
        """Cap the file below what the disk can hold: a full disk could not even delete."""
        present = db.execute("PRAGMA page_count").fetchone()[0] * PAGE_BYTES
        room = present + shutil.disk_usage(self.path.parent).free - WAL_BYTES
        if room < self.max_bytes:
            self._log(f"outbox {self.path}: the disk has room for {max(room, 0)} of {self.max_bytes} bytes; free some")
        pages = max(min(self.max_bytes, room) // PAGE_BYTES, 1)
        db.execute(f"PRAGMA max_page_count = {pages}")

    def _start_over(self, fault: str) -> sqlite3.Connection:
        """Rename the damaged file, begin a new outbox, and put what is still whole of the old one into it."""
        kept = whole(self.path)
        number = 1
        while _beside(self.path, f".damaged-{number}").exists():
            number += 1
        aside = _beside(self.path, f".damaged-{number}")
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                _beside(self.path, suffix).rename(_beside(aside, suffix))
        try:
            db = self._connect()
        except (sqlite3.Error, DamagedError) as error:
            self._disconnect()
            raise OutboxError(f"outbox {self.path}: is damaged ({fault}) and cannot begin anew: {error}") from None
        for message in kept:
            with suppress(OutboxFullError):
                self.put(message)
        self._log(
            f"outbox {self.path}: is damaged ({fault}) and now {aside.name}; a new outbox begins, "
            f"with {len(self)} messages of the old one; check the disk"
        )
        return db

    def _disconnect(self) -> None:
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()
            self._db = None


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All or nothing; the error that ends it is the one that is raised."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # after some errors SQLite has rolled back by itself
            db.execute("ROLLBACK")
        raise


def _lock(path: Path) -> int:
    """Descriptor that holds the lock: also while the file is renamed and made anew."""
    try:
        descriptor = os.open(_beside(path, ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(
            f"outbox {path}: cannot be there ({error.strerror}); make the folder, or correct the path"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise OutboxError(f"outbox {path} is in use by another process; stop that one first") from None
    return descriptor


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _code(error: sqlite3.Error) -> int:
    """SQLite's error code without its extension; 0 if the error is not from there."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
