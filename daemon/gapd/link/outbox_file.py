"""The file of an outbox: opened with its settings, capped, told whether it is damaged, and then set aside."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gapd.link.outbox_rows import DamagedError

Log = Callable[[str], None]

PAGE_BYTES = 4096
# The write-ahead log comes on top of the file: it may reach WAL_PAGES, and space for it must stay free on the disk.
WAL_PAGES = 256
WAL_BYTES = 4 * WAL_PAGES * PAGE_BYTES
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


def connect(path: Path, max_bytes: int, log: Log) -> sqlite3.Connection:
    """Open or create it, at most max_bytes large. Raises sqlite3.Error, OSError, and DamagedError if it is empty."""
    if path.exists() and path.stat().st_size == 0:
        raise DamagedError("it is empty")
    db = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        db.text_factory = bytes  # damaged text must not raise when it is read
        db.executescript(SETUP)
        _limit(db, path, max_bytes, log)
    except BaseException:
        db.close()
        raise
    return db


def _limit(db: sqlite3.Connection, path: Path, max_bytes: int, log: Log) -> None:
    """Cap the file below what the disk can hold: a full disk could not even delete."""
    present = db.execute("PRAGMA page_count").fetchone()[0] * PAGE_BYTES
    room = present + shutil.disk_usage(path.parent).free - WAL_BYTES
    if room < max_bytes:
        log(f"outbox {path}: the disk has room for {max(room, 0)} of {max_bytes} bytes; free some")
    pages = max(min(max_bytes, room) // PAGE_BYTES, 1)
    db.execute(f"PRAGMA max_page_count = {pages}")


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All or nothing; the error that ends it is the one that is raised."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # after some errors SQLite has rolled back by itself
            db.execute("ROLLBACK")
        raise


def has_unfinished_log(path: Path) -> bool:
    """Whether a process that had the file open has not closed it."""
    wal = beside(path, "-wal")
    return wal.exists() and wal.stat().st_size > 0


def set_aside(path: Path) -> Path:
    """Rename the file, with what belongs to it, to the first free name. Raises OSError."""
    number = 1
    while beside(path, f".damaged-{number}").exists():
        number += 1
    aside = beside(path, f".damaged-{number}")
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            beside(path, suffix).rename(beside(aside, suffix))
    return aside


def beside(path: Path, suffix: str) -> Path:
    """The file of that name with the suffix."""
    return path.with_name(path.name + suffix)


def is_full(error: Exception) -> bool:
    """Whether file or disk have no room."""
    return _code(error) == FULL


def is_damage(error: Exception, path: Path) -> bool:
    """Whether the file is at fault; a format that SQLite does not know makes a file read-only to it."""
    if isinstance(error, DamagedError):
        return True
    return _code(error) in DAMAGE or (_code(error) == READONLY and os.access(path, os.W_OK))


def _code(error: Exception) -> int:
    """SQLite's error code without its extension; 0 if the error is not from there."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
