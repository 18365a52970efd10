"""What the host has not acknowledged yet, on disk: stored before `put` returns, deleted only on acknowledgement.

What its rows are is in `outbox_rows`, how its file is opened in `outbox_file`. A row whose checksum fails moves to its
negative number: kept for whoever looks, never sent.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from gapd.errors import ConfigError, GapdError
from gapd.link.outbox_file import (
    Log,
    beside,
    connect,
    has_unfinished_log,
    is_damage,
    is_full,
    set_aside,
    transaction,
)
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

SMALLEST_BYTES = 2**18
# A log that ends in damage loses its last rows without a word. Numbers given out after a crash leave these behind, so
# that the host never takes a new message for one it has had. The log cannot hold that many rows.
SKIP = 10_000
# Epoch and sequence are filled in when a message is sent: at most 9 bytes each.
ENVELOPE_BYTES = 32
LARGEST_BYTES = wire.MAX_BYTES - ENVELOPE_BYTES
# What SQLite, the file system and a file of something else raise; to the caller all of it is an OutboxError.
FAULTS = (sqlite3.Error, DamagedError, OSError)


class OutboxError(GapdError):
    """The outbox could not do what was asked; nothing that it had stored is lost."""


class OutboxFullError(OutboxError):
    """No room for another message; those that wait are untouched."""


class MessageTooLargeError(OutboxError):
    """The message can never be sent, however often it is put; it is not stored."""


class Outbox:
    """Messages in order, of one robot, for one process.

    `id` is random and new with each database, `last` the highest sequence given, `corrupt` the rows moved aside.
    `log` gets one line for everything that was found damaged. Whatever the disk does comes out as OutboxError.
    """

    def __init__(self, path: Path, max_bytes: int, log: Log) -> None:
        """Open or create; raise OutboxError if another process has it, ConfigError if it cannot be there."""
        if max_bytes < SMALLEST_BYTES:
            raise ConfigError(f"outbox max_bytes = {max_bytes} is too small; give at least {SMALLEST_BYTES}")
        self.path, self.max_bytes, self._log = path, max_bytes, log
        self.id, self.last, self.corrupt, self._waiting = "", 0, 0, 0
        # Read from a damaged file and not yet in the new one.
        self._rescued: deque[Stored] = deque()
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

        On the disk when it returns. Raises OutboxFullError, MessageTooLargeError, or OutboxError if the disk fails.
        """
        return self._run(lambda db: self._store(db, message))

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

    def _store(self, db: sqlite3.Connection, message: Stored) -> int:
        sequence = self.last + 1
        body = wire.ENCODER.encode(msgspec.structs.replace(message, epoch=0, sequence=sequence))
        if len(body) > LARGEST_BYTES:
            kind = type(message).__name__.lower()
            raise MessageTooLargeError(f"{kind} of {len(body)} bytes cannot be sent; at most {LARGEST_BYTES} can")
        with transaction(db):
            insert(db, sequence, body)
            write_head(db, Head(self.id, sequence))
        self.last, self._waiting = sequence, self._waiting + 1
        return sequence

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
        """Do it; where the file turns out to be damaged, in a new one."""
        db = self._open()
        try:
            return action(db)
        except FAULTS as error:
            if not is_damage(error, self.path):
                raise self._failed(error) from None
            self._disconnect()
            fault = str(error)
        db = self._start_over(fault)
        try:
            return action(db)
        except FAULTS as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> OutboxError:
        """What to raise; opens again first, because what SQLite holds in memory may no longer be what is on disk."""
        if is_full(error):
            return self._full()
        self._disconnect()
        with suppress(OutboxError):  # the next call tries again
            self._open()
        return OutboxError(f"outbox {self.path}: {error}; check the disk, then do it again")

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
        except FAULTS as error:
            self._disconnect()
            if not is_damage(error, self.path):
                raise OutboxError(f"outbox {self.path}: {error}; check the disk and its permissions") from None
            fault = str(error)
        return self._start_over(fault)

    def _connect(self) -> sqlite3.Connection:
        exists, crashed = self.path.exists(), has_unfinished_log(self.path)
        self._db = db = connect(self.path, self.max_bytes, self._log)
        if exists:
            self._resume(db, crashed=crashed)
        else:
            self._create(db)
        self._put_back(db)
        return db

    def _create(self, db: sqlite3.Connection) -> None:
        head = Head(secrets.token_hex(16), 0)
        with transaction(db):
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

    def _start_over(self, fault: str) -> sqlite3.Connection:
        """Rename the damaged file and begin a new outbox with what is still whole of the old one."""
        try:
            found = whole(self.path)
            aside = set_aside(self.path)
            self._rescued.extendleft(reversed(found))
            self._log(
                f"outbox {self.path}: is damaged ({fault}) and now {aside.name}; a new outbox begins, "
                f"with {len(self._rescued)} messages of the old one; check the disk"
            )
            return self._connect()
        except FAULTS as error:
            self._disconnect()
            text = f"outbox {self.path}: is damaged ({fault}) and cannot begin anew: {error}"
            raise OutboxError(f"{text}; check the disk and its permissions") from None

    def _put_back(self, db: sqlite3.Connection) -> None:
        """Store what was read from a damaged file. Where the disk fails the rest waits for the next opening."""
        lost = 0
        while self._rescued:
            try:
                self._store(db, self._rescued[0])
            except MessageTooLargeError:
                lost += 1
            except sqlite3.Error as error:
                if not is_full(error):
                    raise
                lost += 1
            self._rescued.popleft()
        if lost:
            self._log(f"outbox {self.path}: {lost} messages of the damaged one do not fit in here; free the disk")

    def _disconnect(self) -> None:
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()
            self._db = None


def _lock(path: Path) -> int:
    """Descriptor that holds the lock: also while the file is renamed and made anew."""
    try:
        descriptor = os.open(beside(path, ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
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
