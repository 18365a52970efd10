"""The host's state: one SQLite file in a folder. What is acknowledged is on the disk; history is never overwritten."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Literal

from gapd.errors import GapdError

FILE = "host.sqlite"
# Rises with every change that older software cannot read.
SCHEMA = 1
# Another process may hold the write lock this long: enrolments and results of recalibrations are short.
BUSY_S = 5.0

_TABLES = """
CREATE TABLE definitions (
    fingerprint TEXT PRIMARY KEY,
    parameters BLOB NOT NULL          -- JSON of the [[parameter]] tables
) STRICT;
CREATE TABLE robots (
    name TEXT PRIMARY KEY,
    public_key TEXT NOT NULL UNIQUE,
    robot_type TEXT NOT NULL,
    config TEXT NOT NULL,             -- path of robot.toml
    fingerprint TEXT NOT NULL REFERENCES definitions,
    context BLOB NOT NULL,            -- JSON {name: nominal}, in order
    enrolled REAL NOT NULL,
    revoked REAL
) STRICT;
CREATE TABLE epochs (
    robot TEXT NOT NULL REFERENCES robots,
    epoch INTEGER NOT NULL,
    outbox TEXT NOT NULL,
    high_water INTEGER NOT NULL DEFAULT 0,
    fingerprint TEXT NOT NULL,        -- of the parameters that the robot said hello with
    issued REAL NOT NULL,
    PRIMARY KEY (robot, epoch),
    UNIQUE (robot, outbox)
) STRICT;
CREATE TABLE versions (
    robot TEXT NOT NULL REFERENCES robots,
    version INTEGER NOT NULL,
    fingerprint TEXT NOT NULL REFERENCES definitions,
    z BLOB NOT NULL,                  -- (P,) float64
    z_sd BLOB NOT NULL,               -- (P,) float64
    active BLOB NOT NULL,             -- (A,) uint32
    covariance BLOB NOT NULL,         -- lower triangle (A, A), float32
    checksum INTEGER NOT NULL,        -- CRC-32 of the four above
    source TEXT NOT NULL,             -- correction, previous, candidate ID, enrolment
    reason TEXT NOT NULL,
    changed BLOB NOT NULL,            -- JSON names
    effective BLOB NOT NULL,          -- JSON names
    gap_before REAL,
    gap_after REAL,
    windows INTEGER NOT NULL,
    epoch INTEGER,
    sequence INTEGER,
    timestamp REAL,                   -- the robot's clock
    received REAL NOT NULL,           -- wall time here
    PRIMARY KEY (robot, version),
    UNIQUE (robot, epoch, sequence)
) STRICT;
CREATE TRIGGER versions_stay BEFORE UPDATE ON versions BEGIN SELECT RAISE(ABORT, 'history stays as it is'); END;
CREATE TRIGGER versions_remain BEFORE DELETE ON versions BEGIN SELECT RAISE(ABORT, 'history stays as it is'); END;
CREATE TABLE refusals (
    robot TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    code TEXT NOT NULL,
    remedy TEXT NOT NULL,
    received REAL NOT NULL,
    PRIMARY KEY (robot, epoch, sequence)
) STRICT;
CREATE TABLE escalations (
    robot TEXT NOT NULL REFERENCES robots,
    epoch INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    base_version INTEGER NOT NULL,
    reason TEXT NOT NULL,
    remedy TEXT NOT NULL,
    terms BLOB NOT NULL,              -- JSON
    evidence TEXT NOT NULL,           -- sha256, or empty
    evidence_bytes INTEGER NOT NULL,
    evidence_state TEXT NOT NULL,     -- none, wanted, complete, lost, dropped
    evidence_reason TEXT NOT NULL DEFAULT '',
    timestamp REAL NOT NULL,
    received REAL NOT NULL,
    PRIMARY KEY (robot, epoch, sequence)
) STRICT;
CREATE INDEX evidence_wanted ON escalations (robot) WHERE evidence_state = 'wanted';
CREATE TABLE candidates (
    candidate TEXT PRIMARY KEY,
    robot TEXT NOT NULL REFERENCES robots,
    base_version INTEGER NOT NULL,
    fingerprint TEXT NOT NULL REFERENCES definitions,
    z BLOB NOT NULL,
    z_sd BLOB NOT NULL,
    source TEXT NOT NULL,
    made REAL NOT NULL,
    state TEXT NOT NULL DEFAULT 'pending',   -- pending, accepted, rejected, stale
    reason TEXT NOT NULL DEFAULT '',
    gap_before REAL,
    gap_after REAL,
    windows INTEGER,
    decided REAL
) STRICT;
CREATE INDEX candidates_pending ON candidates (robot) WHERE state = 'pending';
CREATE TABLE jobs (
    job INTEGER PRIMARY KEY,
    robot TEXT NOT NULL REFERENCES robots,
    epoch INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    evidence TEXT NOT NULL,
    state TEXT NOT NULL,              -- waiting, ready, running, offered, nothing, failed, superseded
    attempts INTEGER NOT NULL DEFAULT 0,
    reason TEXT NOT NULL DEFAULT '',
    remedy TEXT NOT NULL DEFAULT '',
    candidate TEXT NOT NULL DEFAULT '',
    made REAL NOT NULL,
    started REAL,
    ended REAL,
    UNIQUE (robot, epoch, sequence)
) STRICT;
CREATE INDEX jobs_open ON jobs (robot) WHERE state IN ('waiting', 'ready', 'running');
"""
_NAMES = frozenset(re.findall(r"CREATE TABLE (\w+)", _TABLES))


class HostError(GapdError):
    """State of the host that cannot be used as it is."""


def open_state(folder: Path) -> sqlite3.Connection:
    """Open the state for reading and writing, and make it where there is none."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _opened(folder / FILE, "rwc")


def open_existing(folder: Path) -> sqlite3.Connection:
    """Open the state for reading and writing; HostError where there is none, as where its disk is not mounted."""
    return _opened(_existing(folder), "rw")


def read_state(folder: Path) -> sqlite3.Connection:
    """Open the state for reading only; it may be used from several threads, one at a time."""
    return _opened(_existing(folder), "ro")


@contextmanager
def using(opened: Callable[[Path], sqlite3.Connection], folder: Path) -> Iterator[sqlite3.Connection]:
    """Open the state for one command, and close it; HostError for whatever SQLite finds wrong with the file."""
    with reading(folder), closing(opened(folder)) as database:
        yield database


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """HostError, which names the file and the remedy, for whatever SQLite finds wrong with it in the block."""
    try:
        yield
    except sqlite3.Error as error:
        if isinstance(error, sqlite3.ProgrammingError):  # such as the use of what is closed: not the file's fault
            raise
        raise _unusable(folder / FILE, error) from None


@contextmanager
def transaction(database: sqlite3.Connection, kind: Literal["IMMEDIATE", "DEFERRED"] = "IMMEDIATE") -> Iterator[None]:
    """Commit everything in the block together, or nothing.

    Blocks may be nested: the outermost commits, and where an inner one fails only its own changes are undone.
    DEFERRED is for reading: all that the block reads belongs together, also where the state is open for reading only.
    """
    inner = database.in_transaction
    database.execute("SAVEPOINT inner_block" if inner else f"BEGIN {kind}")
    try:
        yield
        database.execute("RELEASE inner_block" if inner else "COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # SQLite has rolled back itself, as on a full disk
            if inner:
                database.execute("ROLLBACK TO inner_block")
            database.execute("RELEASE inner_block" if inner else "ROLLBACK")
        raise


def _existing(folder: Path) -> Path:
    path = folder / FILE
    if not path.is_file():
        raise HostError(f"{path}: no such file; start `gaptrain host` or `gaptrain enrol` with this --state first")
    return path


def _opened(path: Path, mode: Literal["rwc", "rw", "ro"]) -> sqlite3.Connection:
    database = _connect(path, mode)
    try:
        if mode != "ro":
            _prepare(database)
        if mode == "rwc" and _version(database) == 0:
            _make_tables(database)
        _require_schema(path, _version(database))
        _require_tables(path, database)
    except sqlite3.Error as error:
        database.close()
        raise _unusable(path, error) from None
    except HostError:
        database.close()
        raise
    return database


def _prepare(database: sqlite3.Connection) -> None:
    # The default page size of 4 KiB holds a correction of 29 parameters.
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("PRAGMA foreign_keys = ON")


def _make_tables(database: sqlite3.Connection) -> None:
    try:
        database.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")
    except sqlite3.OperationalError:
        if database.in_transaction:
            database.execute("ROLLBACK")
        if _version(database) == 0:  # else another process has just made them
            raise


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    try:
        database = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise _unusable(path, error) from None
    database.text_factory = _text
    return database


def _text(raw: bytes) -> str | bytes:
    """Text as it is stored; bytes where it is not UTF-8, for which SQLite would refuse all rows of the query."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def _require_schema(path: Path, version: int) -> None:
    if version > SCHEMA:
        raise HostError(
            f"{path}: written by a newer version (schema {version}, this is {SCHEMA}); update gapd, or use another "
            "--state"
        )
    if version != SCHEMA:
        raise HostError(f"{path}: is no state of a host (schema {version}); use another --state")


def _require_tables(path: Path, database: sqlite3.Connection) -> None:
    there = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not there >= _NAMES:
        raise HostError(f"{path}: table {min(_NAMES - there)} is missing; restore the folder from a backup")


def _unusable(path: Path, error: sqlite3.Error) -> HostError:
    return HostError(f"{path}: {error}; check disk and permissions, or restore the folder from a backup")
