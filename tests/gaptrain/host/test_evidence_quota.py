"""How much evidence stays on the host: the newest, and what a job needs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from link_peer import FakeRobot, Host, escalation, until

from gapd.messages import link
from gaptrain.host import evidence_quota, jobs
from gaptrain.host.database import read_state
from gaptrain.host.evidence_files import EvidenceFiles, Wanted
from gaptrain.host.evidence_quota import MOST_OF_ROBOT, surplus
from gaptrain.host.registry import the_robot
from gaptrain.host.store import Store

Make = Callable[..., FakeRobot]
Start = Callable[..., Host]


def recording(name: str, number: int) -> tuple[str, bytes]:
    raw = f"{name} {number}".encode().ljust(100)
    return hashlib.sha256(raw).hexdigest(), raw


class Filled:
    """A state with recordings of 100 bytes; each escalation has its own, the later the newer."""

    def __init__(self, state: Path) -> None:
        self.now, self.state = 0.0, state
        self.store, self.files = Store(state, lambda: self.now), EvidenceFiles(state)

    def add(self, robot: FakeRobot, *numbers: int) -> None:
        record = the_robot(self.store.database, robot.name)
        self.store.greet(record, robot.hello())
        for number in numbers:
            sha, raw = recording(robot.name, number)
            self.now += 1.0
            assert isinstance(self.store.apply(record, escalation(number, sha, len(raw))), link.Ack)
            self.files.path(sha).write_bytes(raw)
            self.store.evidence_complete(Wanted(robot.name, sha, len(raw)))

    def too_many(self) -> list[str]:
        return [found.evidence for found in surplus(self.store.database, self.files.size)]


def shas(name: str, *numbers: int) -> list[str]:
    return [recording(name, number)[0] for number in numbers]


@pytest.fixture
def two(enrolled: Make) -> tuple[FakeRobot, FakeRobot]:
    return enrolled("r1"), enrolled("r2")


@pytest.fixture
def filled(two: tuple[FakeRobot, FakeRobot], tmp_path: Path) -> Iterator[Filled]:
    made = Filled(tmp_path / "state")
    yield made
    made.store.close()


def test_the_oldest_of_each_robot_go_first(filled: Filled, two: tuple[FakeRobot, FakeRobot]) -> None:
    filled.add(two[1], 1)
    filled.add(two[0], *range(1, MOST_OF_ROBOT + 1))
    assert filled.too_many() == []
    filled.add(two[0], MOST_OF_ROBOT + 1, MOST_OF_ROBOT + 2)
    assert filled.too_many() == shas("r1", 1, 2)


def test_all_together_have_a_limit(
    filled: Filled, two: tuple[FakeRobot, FakeRobot], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence_quota, "MOST_BYTES", 350)
    filled.add(two[0], 1, 2)
    filled.add(two[1], 1)
    assert filled.too_many() == []
    filled.add(two[0], 3, 4)
    assert filled.too_many() == shas("r1", 1, 2)


def test_what_a_job_needs_stays(
    filled: Filled, two: tuple[FakeRobot, FakeRobot], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence_quota, "MOST_BYTES", 150)
    filled.add(two[0], 1, 2, 3)
    database = filled.store.database
    jobs.begin_job(database, 1, 1.0)  # by hand, of an escalation that is not the newest
    assert filled.too_many() == shas("r1", 2)
    jobs.end_job(database, 1, "nothing", "", "", 2.0)
    assert filled.too_many() == shas("r1", 1, 2)
    jobs.end_job(database, 3, "nothing", "", "", 2.0)
    assert filled.too_many() == shas("r1", 1, 2)  # the newest fits


def test_a_host_drops_what_is_too_many_and_says_so(enrolled: Make, host: Start, tmp_path: Path) -> None:
    robot = enrolled()
    state = Filled(tmp_path / "state")
    with closing(state.store):
        state.add(robot, *range(1, MOST_OF_ROBOT + 3))
    service = host(robot)
    (line,) = until(lambda: service.events("evidence_dropped"))
    assert (line["recordings"], line["bytes"], line["robots"]) == (2, 200, ["r1"])
    assert line["reason"] == f"{MOST_OF_ROBOT} newer ones of this robot are here"

    sha, raw = recording("r1", MOST_OF_ROBOT + 3)
    robot.connect().say_hello()
    robot.send(escalation(MOST_OF_ROBOT + 3, sha, len(raw)))
    robot.receive(link.EvidenceRequest)
    robot.send(link.Chunk(sha, 0, len(raw), sha, raw))
    until(lambda: len(service.events("evidence_dropped")) == 2)
    kept = {path.name for path in (tmp_path / "state" / "evidence").iterdir() if path.is_file()}
    assert kept == set(shas("r1", *range(4, MOST_OF_ROBOT + 4)))
    with closing(read_state(tmp_path / "state")) as database:
        rows = database.execute("SELECT evidence_state, evidence_reason FROM escalations ORDER BY sequence").fetchall()
    assert rows == [("dropped", line["reason"])] * 3 + [("complete", "")] * MOST_OF_ROBOT


def test_a_part_that_will_not_be_completed_goes_too(enrolled: Make, host: Start, tmp_path: Path) -> None:
    robot = enrolled()
    service = host(robot)
    robot.connect().say_hello()
    robot.send(escalation(1, "b" * 64, 20))
    robot.receive(link.EvidenceRequest)
    robot.send(link.Chunk("b" * 64, 0, 20, "b" * 64, b"half of it"))
    assert robot.receive(link.EvidenceRequest).offset == 10
    parts = tmp_path / "state" / "evidence" / "parts"
    assert len(list(parts.iterdir())) == 1
    robot.send(link.Chunk("b" * 64, 0, 0, "", b""))
    until(lambda: service.events("evidence_lost"))
    assert list(parts.iterdir()) == []


def test_a_disk_that_takes_no_evidence_stops_nobody(enrolled: Make, host: Start, tmp_path: Path) -> None:
    robot = enrolled()
    service = host(robot)
    parts = tmp_path / "state" / "evidence" / "parts"
    robot.connect().say_hello()
    robot.send(escalation(1, "b" * 64, 20))
    robot.receive(link.EvidenceRequest)
    parts.rmdir()
    robot.send(link.Chunk("b" * 64, 0, 20, "b" * 64, b"half of it"))
    line = until(lambda: service.events("store_failed"))[0]
    assert "parts" in line["reason"]
    assert "check the disk" in line["remedy"]
    parts.mkdir()
    robot.connect().say_hello()
    assert robot.receive(link.EvidenceRequest).offset == 0
    robot.send(link.Chunk("b" * 64, 0, 20, "b" * 64, b"half of it"))
    assert robot.receive(link.EvidenceRequest).offset == 10
