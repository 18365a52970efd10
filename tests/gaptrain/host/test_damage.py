"""What is stored of one robot and cannot be read refuses that robot; the others are served as if nothing were."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
from click.testing import CliRunner
from link_peer import FakeRobot, correction, escalation, until, verdict

from gapd.live.telemetry import open_log
from gapd.messages import link
from gapd.model.robot import open_robot
from gaptrain.cli import main
from gaptrain.host import database, jobs
from gaptrain.host.enrolment import enrol
from gaptrain.host.evidence_files import Wanted
from gaptrain.host.program import host_keys
from gaptrain.host.registry import the_robot
from gaptrain.host.service import Service
from gaptrain.host.store import Store
from gaptrain.host.worker import Worker

# Of the type that STRICT tables enforce, and yet nothing that was ever stored.
WRONG = {
    "TEXT": "CAST(X'ff80' AS TEXT)",
    "BLOB": "CAST('[{' AS BLOB)",
    "INTEGER": "9223372036854775807",
    "REAL": "1e300",
}
OTHERS = {
    ("definitions", "parameters", "CAST('[]' AS BLOB)"),
    ("candidates", "z", "zeroblob(0)"),
    ("candidates", "z", "X'0011'"),
    ("candidates", "candidate", "'no number'"),
    ("candidates", "state", "'weird'"),
    ("jobs", "evidence", "'../../host.key'"),
    ("jobs", "candidate", "'gone.0'"),
    ("jobs", "state", "'weird'"),
    ("escalations", "evidence", "'../host.key'"),
    ("escalations", "evidence_bytes", "-1"),
    ("epochs", "high_water", "0"),
    ("versions", "version", "7"),
    ("robots", "config", "'a' || char(0)"),
}
EVIDENCE = "ab" * 32, "cd" * 32


def _columns() -> Iterator[tuple[str, str, str]]:
    with closing(sqlite3.connect(":memory:")) as memory:
        memory.executescript(database._TABLES)
        for table in sorted(database._NAMES):
            for _, column, kind, *_ in memory.execute(f"PRAGMA table_info({table})"):
                yield table, column, WRONG[kind]


@dataclass
class State:
    """Two robots with something in every table: r1, whose rows are to be damaged, and r2."""

    folder: Path
    r1: FakeRobot
    r2: FakeRobot

    def damage(self, *statements: str) -> None:
        """Change what history and keys forbid to change."""
        with closing(sqlite3.connect(self.folder / database.FILE)) as opened:
            opened.executescript("DROP TRIGGER versions_stay; DROP TRIGGER versions_remain;" + ";".join(statements))
            opened.commit()

    def damage_column(self, table: str, column: str, value: str) -> None:
        own = {"robots": "name = 'r1'", "definitions": f"fingerprint = '{self.r1.space.fingerprint}'"}
        where = own.get(table, "robot = 'r1'")
        self.damage(f"UPDATE OR IGNORE {table} SET {column} = {value} WHERE {where}")  # noqa: S608  of this file


@pytest.fixture
def state(enrolled: Callable[..., FakeRobot], tiny_folder: Path, tmp_path: Path) -> State:
    r1, r2 = enrolled("r1"), enrolled("r2")
    folder = tmp_path / "state"
    other = shutil.copytree(tiny_folder, tmp_path / "other")
    text = (other / "parameters.toml").read_text()
    (other / "parameters.toml").write_text(re.sub(r"max = 16\b", "max = 17", text))
    enrol(folder, "r2", other / "robot.toml", tmp_path / "r2.pub")
    r2.space = open_robot(other / "robot.toml").parameters
    assert r1.space.fingerprint != r2.space.fingerprint
    for robot, evidence in zip((r1, r2), EVIDENCE, strict=True):
        _live(folder, robot, evidence)
    return State(folder, r1, r2)


def _live(folder: Path, robot: FakeRobot, evidence: str) -> None:
    """A version, a refusal, an escalation with a recording, one without, and a candidate that waits."""
    with closing(Store(folder, lambda: 1.0)) as store:
        record, z = the_robot(store.database, robot.name), robot.space.z_nominal
        store.greet(record, robot.hello())
        store.apply(record, correction(robot.space, 1, 0))
        assert isinstance(store.apply(record, correction(robot.space, 2, 0)), link.Nack)
        store.apply(record, escalation(3, evidence, 4))
        store.evidence_complete(Wanted(robot.name, evidence, 4))
        store.apply(record, escalation(4, evidence[::-1], 9))
        name = jobs.add_candidate(
            store.database, robot.name, 1, record.fingerprint, z, np.full(len(z), 0.1), "test", 1.0
        )
        jobs.end_job(store.database, store.database.execute("SELECT max(job) FROM jobs").fetchone()[0],
                     "offered", "better", "none", 2.0, name)  # fmt: skip
        store.database.execute(
            "UPDATE jobs SET state = 'ready' WHERE robot = ? AND evidence = ?", (robot.name, evidence)
        )
    (folder / "evidence").mkdir(exist_ok=True)
    (folder / "evidence" / evidence).write_bytes(b"junk")


@contextmanager
def _served(state: State) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """A host in this process; gives what it has refused. It must still run at the end, and has lost its state never."""
    stream = io.StringIO()
    service = Service(state.folder, state.r1.bind, host_keys(state.folder), open_log(stream, environ={}))
    thread = threading.Thread(target=service.run)

    def lines() -> list[dict[str, Any]]:
        return [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]

    thread.start()
    try:
        yield lambda: [line for line in lines() if line["event"] == "refused"]
        assert thread.is_alive()
        assert "store_failed" not in stream.getvalue()
    finally:
        service.stop()
        thread.join()
        service.close()


def _bother(robot: FakeRobot) -> None:
    """Whatever a robot may say, without waiting for answers; it may not be let in."""
    socket = robot.connect().socket
    assert socket is not None
    socket.set(zmq.SNDTIMEO, 100)
    with contextlib.suppress(zmq.Again, TimeoutError):
        robot.send(robot.hello())
        offered = robot.receive(link.Candidate, 0.1)
        robot.send(verdict(5, offered.candidate, 1))
    with contextlib.suppress(zmq.Again):
        for message in (correction(robot.space, 1, 0), correction(robot.space, 2, 0), correction(robot.space, 6, 1)):
            robot.send(message)
        robot.send(escalation(7, "ef" * 32, 10))
        robot.send(link.Chunk(EVIDENCE[0][::-1], 0, 9, "", b"123456789"))


def _require_served(robot: FakeRobot) -> None:
    assert robot.connect().say_hello().high_water == 4
    offered = robot.receive(link.Candidate)
    assert robot.ask(verdict(5, offered.candidate, 1)) == link.Ack(1, 5, 2)
    assert robot.ask(correction(robot.space, 6, 2)) == link.Ack(1, 6, 3)


def _gaptrain(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(main, [*map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.mark.fault
@pytest.mark.parametrize(("table", "column", "value"), sorted({*_columns(), *OTHERS}))
def test_a_damaged_row_is_of_its_robot_only(state: State, table: str, column: str, value: str) -> None:
    state.damage_column(table, column, value)
    with _served(state):
        _bother(state.r1)
        _require_served(state.r2)
        _bother(state.r1)
        state.r2.ask(correction(state.r2.space, 7, 3))
    found = [
        _gaptrain("jobs", "--state", state.folder),
        _gaptrain("jobs", "--state", state.folder, "--json"),
        _gaptrain("enrol", "--state", state.folder, "--list"),
    ]
    assert all(code == 0 and "r2" in output for code, output in found), found
    for command in ("versions", "recalibrate", "jobs"):
        code, output = _gaptrain(command, "--state", state.folder, "r1")
        assert code == 0 or (code, output.count("\n")) == (1, 1), output
    assert _gaptrain("versions", "--state", state.folder, "r2")[0] == 0
    assert (state.folder / "host.key").exists()


@pytest.mark.fault
@pytest.mark.parametrize(("table", "column", "value"), sorted(d for d in {*_columns(), *OTHERS} if d[0] == "jobs"))
def test_no_damaged_job_stands_before_the_others(
    state: State, table: str, column: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """r1 is first in the queue; r2's job is begun all the same."""
    state.damage_column(table, column, value)
    monkeypatch.setattr(Worker, "_process", _no_process)
    worker = Worker(state.folder, open_log(io.StringIO(), environ={}))
    with closing(Store(state.folder, lambda: 1.0)) as store:
        for step in range(10):
            worker.step(store, 100.0 * step)
        reasons = store.database.execute("SELECT reason FROM jobs WHERE robot = 'r2' AND state = 'failed'").fetchall()
    assert reasons == [("not begun in 3 attempts: no process",)]


def _no_process(*_: object) -> None:
    raise OSError("no process")


@pytest.mark.parametrize(
    ("table", "column", "value", "says"),
    [
        ("robots", "context", "CAST('{' AS BLOB)", "table robots: Input data was truncated; run `gaptrain enrol r1`"),
        ("robots", "fingerprint", WRONG["TEXT"], "table robots: Expected `str`, got `bytes` - at `$.fingerprint`"),
        ("definitions", "parameters", "CAST('[]' AS BLOB)", "table definitions: no free parameter"),
        ("versions", "z", "zeroblob(32)", "table versions, version 1: stored values do not match their checksum"),
        ("candidates", "z", "X'0011'", "table candidates"),
        ("candidates", "z_sd", "zeroblob(8)", "the values are not complete; run `gaptrain recalibrate r1` again"),
        ("escalations", "evidence", "'../host.key'", "table escalations: Expected `str` matching regex"),
        ("epochs", "high_water", "-1", "table epochs: Expected `int` >= 0 - at `$.high_water`"),
    ],
)
def test_the_damage_is_told_with_robot_table_and_remedy(
    state: State, table: str, column: str, value: str, says: str
) -> None:
    state.damage_column(table, column, value)
    with _served(state) as refused:
        state.r1.connect().send(state.r1.hello())
        line = until(refused)[0]
    assert (line["reason"], line["robot"]) == ("damaged", "r1")
    assert line["remedy"].startswith("robot r1, ")
    assert says in line["remedy"]
    assert "restore the state from a backup" in line["remedy"]


def test_a_definition_that_is_gone_comes_back_with_enrolment(state: State, tiny_folder: Path, tmp_path: Path) -> None:
    state.damage(f"DELETE FROM definitions WHERE fingerprint = '{state.r1.space.fingerprint}'")  # noqa: S608  hex
    with _served(state) as refused:
        state.r1.connect().send(state.r1.hello())
        assert "nothing is there for" in until(refused)[0]["remedy"]
        enrol(state.folder, "r1", tiny_folder / "robot.toml", tmp_path / "r1.pub")
        assert state.r1.say_hello().version == 1
        assert state.r1.ask(correction(state.r1.space, 5, 1)) == link.Ack(1, 5, 2)


def test_after_a_message_that_could_not_be_applied_no_later_one_is(state: State) -> None:
    """An acknowledgement holds for all before it: the robot would delete what the host has not."""
    r1 = state.r1
    with _served(state) as refused:
        r1.connect().say_hello()
        state.damage("UPDATE candidates SET candidate = 'no number' WHERE robot = 'r1'")
        r1.send(correction(r1.space, 5, 1))  # rebases the candidate
        r1.send(escalation(6))
        until(refused)
        assert r1.silence((link.Ack, link.Nack), 0.5)
        state_of = closing(sqlite3.connect(state.folder / database.FILE))
        with state_of as opened:
            assert opened.execute("SELECT high_water FROM epochs WHERE robot = 'r1'").fetchone() == (4,)
            assert opened.execute("SELECT max(version) FROM versions WHERE robot = 'r1'").fetchone() == (1,)
            opened.execute("UPDATE candidates SET candidate = 'mended.0' WHERE robot = 'r1'")
            opened.commit()
        assert r1.ask(correction(r1.space, 5, 1)) == link.Ack(1, 5, 2)
        assert r1.ask(escalation(6)) == link.Ack(1, 6, 2)


def test_the_list_names_what_is_damaged(state: State) -> None:
    state.damage("UPDATE escalations SET terms = CAST('[{' AS BLOB) WHERE robot = 'r1' AND sequence = 3")
    entries = json.loads(_gaptrain("jobs", "--state", state.folder, "--json")[1])
    damaged = [entry for entry in entries if entry["state"] == "damaged"]
    assert [(entry["robot"], entry["job"]) for entry in damaged] == [("r1", 1)]
    assert len(entries) == 4
    assert damaged[0]["reason"].startswith("robot r1, table escalations: Input data was truncated; restore the state")
    assert "   1  r1  damaged\n      result     robot r1, table esc" in _gaptrain("jobs", "--state", state.folder)[1]


@pytest.mark.parametrize("table", sorted(database._NAMES))
def test_without_a_table_every_command_says_so_in_a_line(state: State, table: str) -> None:
    state.damage(f"DROP TABLE {table}")
    for command in (["jobs"], ["enrol", "--list"], ["versions", "r2"], ["recalibrate", "r2"], ["host"]):
        code, output = _gaptrain(command[0], "--state", state.folder, *command[1:])
        assert (code, output.count("\n")) == (1, 1)
        assert f"table {table} is missing; restore" in output


def test_a_file_that_is_damaged_within_is_one_line(state: State) -> None:
    with closing(sqlite3.connect(state.folder / database.FILE)) as opened:
        opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    path = state.folder / database.FILE
    raw = bytearray(path.read_bytes())
    for page in range(4096 * 2, len(raw), 4096):  # the first two hold the schema
        raw[page : page + 64] = b"\xff" * 64
    path.write_bytes(raw)
    code, output = _gaptrain("jobs", "--state", state.folder)
    assert (code, output.count("\n")) == (1, 1)
    assert "restore the folder from a backup" in output
