"""Outbox: what it reported as stored is there after kills, and what could never be sent is refused."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from outbox_rig import MEGABYTE, fill, names, reopened, verdict

from gapd.errors import ConfigError
from gapd.link.outbox import (
    LARGEST_BYTES,
    SMALLEST_BYTES,
    MessageTooLargeError,
    Outbox,
    OutboxError,
    OutboxFullError,
)
from gapd.messages.link import MAX_BYTES, Escalation, Verdict


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


def test_closed_is_closed(outbox: Outbox) -> None:
    outbox.close()
    with pytest.raises(OutboxError, match="is closed"):
        outbox.put(verdict(1))


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


def test_a_renewed_outbox_keeps_what_waits(outbox: Outbox, lines: list[str]) -> None:
    outbox.put(verdict(1))
    first = outbox.id
    outbox.renew()
    assert outbox.id != first
    renewed = outbox.id
    with reopened(outbox, lines) as again:
        assert (again.id, names(again), again.last) == (renewed, ["c1"], 1)
