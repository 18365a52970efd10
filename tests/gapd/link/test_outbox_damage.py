"""An outbox whose file or disk fails: what is damaged is never sent, what is whole is not lost."""

from __future__ import annotations

import errno
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from outbox_rig import MEGABYTE, names, verdict

from gapd.link import outbox as outbox_module
from gapd.link.outbox import (
    SKIP,
    Outbox,
    OutboxError,
    OutboxFullError,
)
from gapd.link.outbox_rows import write_head
from gapd.messages.link import Verdict


class Failing:
    """A connection whose disk fails at one statement."""

    def __init__(self, db: sqlite3.Connection, statement: str) -> None:
        self.db, self.statement = db, statement

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        if sql.startswith(self.statement):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = 10
            raise error
        return self.db.execute(sql, *arguments)

    def close(self) -> None:
        self.db.close()


@pytest.mark.parametrize("statement", ["BEGIN", "INSERT", "COMMIT"])
def test_after_a_failed_write_it_opens_again_and_raises(outbox: Outbox, statement: str) -> None:
    outbox.put(verdict(1))
    outbox._db = Failing(outbox._open(), statement)  # type: ignore[assignment]
    with pytest.raises(OutboxError, match=r"disk I/O error; check the disk, then do it again"):
        outbox.put(verdict(2))
    assert isinstance(outbox._db, sqlite3.Connection)
    outbox.put(verdict(3))
    assert names(outbox) == ["c1", "c3"]


def damaged(outbox: Outbox, sql: str) -> None:
    outbox.close()
    db = sqlite3.connect(outbox.path)
    with db:
        db.execute(sql)
    db.close()


@pytest.mark.parametrize(
    "change",
    ["body = zeroblob(length(body))", "body = substr(body, 1, 20)", "checksum = zeroblob(16)", "sequence = 77"],
)
def test_a_damaged_message_is_moved_aside_and_told(outbox: Outbox, lines: list[str], change: str) -> None:
    for number in range(1, 4):
        outbox.put(verdict(number))
    damaged(outbox, f"UPDATE message SET {change} WHERE sequence = 2")  # noqa: S608  # text of this file
    with Outbox(outbox.path, MEGABYTE, lines.append) as again:
        assert (names(again), len(again), again.corrupt) == (["c1", "c3"], 2, 1)
        assert names(again) == ["c1", "c3"]
        assert len(lines) == 1
        assert f"outbox {outbox.path}: message " in lines[0]
        assert again.put(verdict(4)) == 4
    with Outbox(outbox.path, MEGABYTE, lines.append) as third:
        assert (len(third), third.corrupt, len(lines)) == (3, 1, 1)


@pytest.mark.parametrize("damage", ["text", "empty", "head", "table", "half"])
def test_a_damaged_file_is_renamed_and_a_new_outbox_begins(outbox: Outbox, lines: list[str], damage: str) -> None:
    for number in range(1, 100):
        outbox.put(verdict(number, 200))
    first, path = outbox.id, outbox.path
    if damage in ("head", "table"):
        sql = {"head": "UPDATE message SET body = x'00' WHERE sequence = 0", "table": "DROP TABLE message"}[damage]
        damaged(outbox, sql)
    else:
        outbox.close()
        content = path.read_bytes()
        path.write_bytes({"text": b"no database " * 999, "empty": b"", "half": content[: len(content) // 2]}[damage])
    with Outbox(path, MEGABYTE, lines.append) as again:
        assert again.id != first
        assert len(lines) == 1
        assert "and now outbox.db.damaged-1; a new outbox begins" in lines[0]
        kept = names(again)
        assert kept == [f"c{n}" for n in range(1, len(again) + 1)]
        least, most = {"head": (99, 99), "half": (30, 60)}.get(damage, (0, 0))
        assert least <= len(kept) <= most
        again.put(verdict(100))
        assert names(again) == [*kept, "c100"]
    path.write_bytes(b"no database either " * 999)
    with Outbox(path, MEGABYTE, lines.append) as third:
        assert len(third) == 0
    assert sorted(p.name for p in path.parent.glob("*.damaged-?")) == ["outbox.db.damaged-1", "outbox.db.damaged-2"]


class Fault:
    """Stands in for a function that fails the first times with these errors, then does its work."""

    def __init__(self, function: Callable[..., Any], *errors: Exception) -> None:
        self.function, self.errors = function, list(errors)

    def __call__(self, *arguments: Any) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return self.function(*arguments)


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError(f"code {code}")
    error.sqlite_errorcode = code
    return error


DAMAGED, IO_ERROR, FULL = 11, 10, 13
DENIED = PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.parametrize(
    ("where", "errors"),
    [
        ("insert", [sqlite_error(DAMAGED), sqlite_error(IO_ERROR)]),  # in the new file
        ("insert", [sqlite_error(DAMAGED), sqlite_error(DAMAGED), sqlite_error(DAMAGED)]),
        ("set_aside", [DENIED]),
        ("connect", [sqlite_error(FULL)]),
        ("connect", [sqlite_error(IO_ERROR), sqlite_error(IO_ERROR)]),
        ("connect", [OSError(errno.EIO, "Input/output error")]),
        ("connect", [sqlite_error(DAMAGED)]),
    ],
)
def test_a_new_beginning_that_fails_is_told_and_loses_nothing(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch, where: str, errors: list[Exception]
) -> None:
    for number in (1, 2, 3):
        outbox.put(verdict(number))
    first = outbox.id
    if where != "insert":
        monkeypatch.setattr(outbox_module, "insert", Fault(outbox_module.insert, sqlite_error(DAMAGED)))
    fault = Fault(getattr(outbox_module, where), *errors)
    monkeypatch.setattr(outbox_module, where, fault)
    with pytest.raises(OutboxError, match=str(errors[0].args[-1])):
        outbox.put(verdict(4))
    while fault.errors:
        with pytest.raises(OutboxError, match="check the disk"):
            outbox.put(verdict(4))
    outbox.put(verdict(4))
    assert names(outbox) == ["c1", "c2", "c3", "c4"]
    assert [s for s, _ in outbox.pending(9)] == [1, 2, 3, 4]
    assert (outbox.id == first) == (where == "set_aside")


@pytest.mark.parametrize(("code", "kind"), [(IO_ERROR, OutboxError), (FULL, OutboxFullError), (DAMAGED, OutboxError)])
def test_an_action_that_fails_in_the_new_file_too(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[OutboxError]
) -> None:
    monkeypatch.setattr(outbox_module, "write_head", Fault(write_head, sqlite_error(DAMAGED), sqlite_error(code)))
    with pytest.raises(OutboxError) as caught:
        outbox.put(verdict(1))
    assert type(caught.value) is kind
    assert outbox.put(verdict(1)) == 1
    assert names(outbox) == ["c1"]


def test_what_has_no_room_in_the_new_file_is_told(
    outbox: Outbox, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        outbox.put(verdict(number))
    fault = Fault(outbox_module.write_head, sqlite_error(DAMAGED), sqlite_error(FULL))
    monkeypatch.setattr(outbox_module, "write_head", fault)
    outbox.put(verdict(3))
    assert names(outbox) == ["c2", "c3"]
    assert "with 2 messages of the old one" in lines[0]
    assert lines[1:] == [f"outbox {outbox.path}: 1 messages of the damaged one do not fit in here; free the disk"]


def test_a_file_that_cannot_be_renamed(outbox: Outbox, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    damaged(outbox, "UPDATE message SET body = x'00' WHERE sequence = 0")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", Fault(Path.rename, DENIED))
        with pytest.raises(OutboxError, match=r"head is not whole.* cannot begin anew: .*Permission denied; check"):
            Outbox(outbox.path, MEGABYTE, lines.append)
    with Outbox(outbox.path, MEGABYTE, lines.append) as again:
        assert len(again) == 0


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), sqlite_error(IO_ERROR)])
def test_a_file_that_cannot_be_opened_again(outbox: Outbox, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """After a failed read it is opened again, which fails too, and then goes."""
    outbox.put(verdict(1))
    monkeypatch.setattr(outbox_module, "verified", Fault(outbox_module.verified, error))
    monkeypatch.setattr(outbox_module, "connect", Fault(outbox_module.connect, error, error))
    for _ in range(2):
        with pytest.raises(OutboxError, match=str(error.args[-1])):
            outbox.pending(9)
    assert names(outbox) == ["c1"]


def test_a_file_that_is_damaged_while_it_is_open(outbox: Outbox, lines: list[str]) -> None:
    outbox.put(verdict(1))
    first = outbox.id
    outbox._open().execute("DROP TABLE message")
    assert outbox.put(verdict(2)) == 1
    assert (outbox.id != first, names(outbox), len(lines)) == (True, ["c2"], 1)
    outbox._open().execute("DROP TABLE message")
    assert (outbox.delete_through(1), len(outbox), len(lines)) == (0, 0, 2)


@pytest.mark.fault
@pytest.mark.parametrize("seed", [1, 2])
def test_flipped_bits_are_never_sent(tmp_path: Path, seed: int) -> None:
    """Whatever bit flips: only whole messages come out, and no sequence is given twice under one id."""
    print(f"seed {seed}")  # noqa: T201
    rng = random.Random(seed)  # noqa: S311
    path = tmp_path / "outbox.db"
    with Outbox(path, MEGABYTE, print) as outbox:
        for number in range(1, 31):
            outbox.put(verdict(number, rng.choice([0, 300, 6000])))
        first, originals = outbox.id, {m.timestamp: m for _, m in outbox.pending(100)}
    content = path.read_bytes()
    counted = {"whole": 0, "moved aside": 0, "begun anew": 0}
    for _ in range(60):
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        flipped = bytearray(content)
        # Half of them where SQLite keeps its own structures.
        where = rng.randrange(len(content)) if rng.random() < 0.5 else rng.randrange(len(content) // 4096) * 4096
        flipped[min(where + rng.randrange(100), len(content) - 1)] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        lines: list[str] = []
        with Outbox(path, MEGABYTE, lines.append) as outbox:
            got = outbox.pending(100)
            for sequence, message in got:
                same_id = outbox.id == first
                assert message.sequence == sequence
                original = originals[message.timestamp]
                assert isinstance(message, Verdict)
                assert message.reason == original.reason
                assert not same_id or sequence == original.sequence
            assert outbox.put(verdict(31)) == outbox.last
            assert outbox.id != first or outbox.last == 31
            assert len(got) + outbox.corrupt == len(originals) or lines
            kind = "begun anew" if outbox.id != first else "moved aside" if outbox.corrupt else "whole"
            counted[kind] += 1
    print(counted)  # noqa: T201
    assert min(counted.values()) > 0


@pytest.mark.fault
def test_a_log_that_ends_in_damage_never_makes_a_sequence_come_twice(tmp_path: Path) -> None:
    """SQLite drops the end of a damaged write-ahead log silently; the next sequences are beyond all it had given."""
    path, copy = tmp_path / "outbox.db", tmp_path / "copy.db"
    with Outbox(path, MEGABYTE, print) as outbox:
        for number in range(1, 11):
            outbox.put(verdict(number))
        shutil.copy(path, copy)
        log = bytearray(path.with_name("outbox.db-wal").read_bytes())
        first = outbox.id
    log[len(log) // 2] ^= 4
    copy.with_name("copy.db-wal").write_bytes(log)
    with Outbox(copy, MEGABYTE, print) as again:
        assert again.id == first
        assert 0 < len(again) < 10  # the end is lost
        assert again.put(verdict(11)) > SKIP
