"""Outbox: what it reported as stored is there after kills and faults; what is damaged is never sent."""

from __future__ import annotations

import errno
import random
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gapd.errors import ConfigError
from gapd.link import outbox as outbox_module
from gapd.link.outbox import (
    LARGEST_BYTES,
    SKIP,
    SMALLEST_BYTES,
    MessageTooLargeError,
    Outbox,
    OutboxError,
    OutboxFullError,
)
from gapd.link.outbox_rows import write_head
from gapd.messages.link import MAX_BYTES, Escalation, Verdict

MEGABYTE = 2**20


def verdict(number: int, padding: int = 0) -> Verdict:
    return Verdict(7, 7, float(number), f"c{number}", 1, "rejected", "x" * padding, 1.0, 2.0, 3)


def names(outbox: Outbox, limit: int = 1000) -> list[str]:
    return [m.candidate for _, m in outbox.pending(limit) if isinstance(m, Verdict)]


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def outbox(tmp_path: Path, lines: list[str]) -> Iterator[Outbox]:
    with Outbox(tmp_path / "outbox.db", MEGABYTE, lines.append) as outbox:
        yield outbox


def reopened(outbox: Outbox, lines: list[str]) -> Outbox:
    outbox.close()
    return Outbox(outbox.path, outbox.max_bytes, lines.append)


def fill(outbox: Outbox, padding: int) -> int:
    """Put until it is full; how many went in."""
    for number in range(1, 10_000):
        try:
            outbox.put(verdict(number, padding))
        except OutboxFullError:
            return number - 1
    pytest.fail("never full")


def test_messages_come_back_in_order_with_their_sequence(outbox: Outbox, lines: list[str]) -> None:
    assert [outbox.put(verdict(n)) for n in range(1, 6)] == [1, 2, 3, 4, 5]
    assert [(s, m.sequence, m.epoch, m.timestamp) for s, m in outbox.pending(2)] == [(1, 1, 0, 1.0), (2, 2, 0, 2.0)]
    assert [s for s, _ in outbox.pending(9, after=3)] == [4, 5]
    assert (outbox.delete_through(2), len(outbox), names(outbox)) == (2, 3, ["c3", "c4", "c5"])
    assert outbox.delete_through(2) == 0
    first = outbox.id
    with reopened(outbox, lines) as again:
        assert (again.id, again.last, len(again), names(again)) == (first, 5, 3, ["c3", "c4", "c5"])
        again.delete_through(5)
        assert (len(again), again.put(verdict(6))) == (1 - 1, 6)
    assert lines == []


def test_all_kinds_fit(outbox: Outbox) -> None:
    escalation = Escalation(1, 1, 2.0, 3, "structural", "look at it", (), "", 0)
    outbox.put(escalation)
    assert outbox.pending(1)[0][1] == Escalation(0, 1, 2.0, 3, "structural", "look at it", (), "", 0)


def test_what_could_never_be_sent_is_refused_at_once(outbox: Outbox) -> None:
    with pytest.raises(
        MessageTooLargeError, match=rf"verdict of \d+ bytes cannot be sent; at most {LARGEST_BYTES} can"
    ):
        outbox.put(verdict(1, MAX_BYTES))
    assert (len(outbox), outbox.put(verdict(2))) == (0, 1)


def test_two_processes_cannot_share_it(outbox: Outbox) -> None:
    code = f"""
        from pathlib import Path
        from gapd.link.outbox import Outbox, OutboxError
        try:
            Outbox(Path({str(outbox.path)!r}), {MEGABYTE}, print)
        except OutboxError as error:
            print(error)  # noqa: T201
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=10, check=True
    )
    assert run.stdout == f"outbox {outbox.path} is in use by another process; stop that one first\n"
    with pytest.raises(OutboxError, match="in use"):
        Outbox(outbox.path, MEGABYTE, print)
    assert outbox.put(verdict(1)) == 1


def test_wrong_places_and_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory"):
        Outbox(tmp_path / "none" / "outbox.db", MEGABYTE, print)
    with pytest.raises(ConfigError, match=f"give at least {SMALLEST_BYTES}"):
        Outbox(tmp_path / "outbox.db", 1000, print)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutboxError, match="unable to open database file; check the disk and its permissions"):
        Outbox(tmp_path / "folder", MEGABYTE, print)


def test_when_full_it_says_so_and_keeps_what_waits(outbox: Outbox, lines: list[str]) -> None:
    stored = fill(outbox, 5000)
    assert outbox.path.stat().st_size <= MEGABYTE
    assert stored > 100
    for _ in range(3):
        with pytest.raises(
            OutboxFullError, match=f"is full: {stored} messages wait in {MEGABYTE} bytes; bring the host"
        ):
            outbox.put(verdict(0, 5000))
    assert names(outbox) == [f"c{n}" for n in range(1, stored + 1)]
    assert outbox.delete_through(10) == 10
    assert outbox.put(verdict(9999, 5000)) == stored + 1
    with reopened(outbox, lines) as again:
        assert names(again) == [*(f"c{n}" for n in range(11, stored + 1)), "c9999"]
        assert again.delete_through(stored + 1) == stored - 9
        assert fill(again, 5000) >= stored - 1  # space is used again
    assert lines == []


def test_the_cap_stays_below_what_the_disk_has(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4 * MEGABYTE + 2**19))
    with Outbox(tmp_path / "outbox.db", 100 * MEGABYTE, lines.append) as outbox:
        fill(outbox, 5000)
        assert outbox.path.stat().st_size <= 2**19 + 2 * 4096
        assert outbox.delete_through(5) == 5
    assert len(lines) == 1
    assert "free some" in lines[0]


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


def test_closed_is_closed(outbox: Outbox) -> None:
    outbox.close()
    with pytest.raises(OutboxError, match="is closed"):
        outbox.put(verdict(1))


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


WRITER = """
import sys
from pathlib import Path
from gapd.messages.link import Verdict
from gapd.link.outbox import Outbox
outbox = Outbox(Path(sys.argv[1]), 2**24, lambda line: print("log", line, flush=True))
print("open", outbox.id, flush=True)
for number in range(10**9):
    sequence = outbox.put(Verdict(0, 0, float(number), sys.argv[2], 1, "rejected", "x" * (number % 977), 1.0, 2.0, 3))
    print("stored", sequence, number, flush=True)  # noqa: T201
    if number % 50 == 49:
        print("deleting", sequence - 20, flush=True)  # noqa: T201
        outbox.delete_through(sequence - 20)
"""


@pytest.mark.fault
def test_what_was_stored_survives_kills(tmp_path: Path) -> None:
    seed = 20
    print(f"seed {seed}")  # noqa: T201
    rng = random.Random(seed)  # noqa: S311
    path = tmp_path / "outbox.db"
    stored: dict[int, tuple[str, int]] = {}
    ids: set[str] = set()
    deleted = 0
    for life in range(10):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(life)], stdout=subprocess.PIPE, text=True
        )
        with process:
            assert process.stdout is not None
            output = [process.stdout.readline()]
            time.sleep(rng.uniform(0.0, 0.25))
            process.kill()
            output += process.stdout.readlines()
        for words in (line.split() for line in output if line.endswith("\n")):
            assert words[0] != "log", words
            if words[0] == "open":
                ids.add(words[1])
            elif words[0] == "deleting":
                deleted = int(words[1])
            elif words[0] == "stored":
                assert int(words[1]) not in stored
                stored[int(words[1])] = (str(life), int(words[2]))
    assert len(ids) == 1
    lines: list[str] = []
    with Outbox(path, 2**24, lines.append) as outbox:
        there = {s: (m.candidate, int(m.timestamp)) for s, m in outbox.pending(10**6) if isinstance(m, Verdict)}
        assert {s: v for s, v in stored.items() if s > deleted}.items() <= there.items()
        # One message of each life may be there although the kill came before its report.
        assert len(there.keys() - stored.keys()) <= 10
        assert outbox.id in ids
        assert outbox.put(verdict(1)) > max(stored)
    assert lines == []
    assert len(stored) > 100
    print(f"{len(stored)} stored, {len(there)} there after 10 kills")  # noqa: T201


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


def test_a_renewed_outbox_keeps_what_waits(outbox: Outbox, lines: list[str]) -> None:
    outbox.put(verdict(1))
    first = outbox.id
    outbox.renew()
    assert outbox.id != first
    renewed = outbox.id
    with reopened(outbox, lines) as again:
        assert (again.id, names(again), again.last) == (renewed, ["c1"], 1)
