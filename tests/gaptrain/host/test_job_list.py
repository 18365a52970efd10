"""What `gaptrain jobs` says about escalations, jobs and candidates."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from link_peer import TERM, FakeRobot, correction, escalation, verdict

from gapd.messages import link
from gaptrain.cli import main
from gaptrain.host import job_list, jobs
from gaptrain.host.evidence_files import Wanted
from gaptrain.host.registry import the_robot
from gaptrain.host.store import Store

LONG = "r" * 63
EVIDENCE = "a" * 64


class Life:
    """A state in which a robot escalates, and what becomes of it."""

    def __init__(self, state: Path, robot: FakeRobot) -> None:
        ticks = itertools.count(1.0, 60.0)
        self.state, self.store = state, Store(state, lambda: next(ticks))
        self.record = the_robot(self.store.database, robot.name)
        self.space = robot.space
        self.store.greet(self.record, robot.hello())

    def hear(self, *messages: link.Correction | link.Escalation | link.Verdict) -> None:
        for message in messages:
            assert isinstance(self.store.apply(self.record, message), link.Ack)

    def offer(self, job: int, base: int) -> str:
        z = self.space.z_nominal
        name = jobs.add_candidate(
            self.store.database, self.record.name, base, self.record.fingerprint, z, np.full(len(z), 0.1), "test", 1.0
        )
        jobs.end_job(self.store.database, job, "offered", "better", "none", 2.0, name)
        return name


@pytest.fixture
def live(enrolled: Callable[..., FakeRobot], tmp_path: Path) -> Iterator[Callable[[str], Life]]:
    made: list[Life] = []

    def begin(name: str) -> Life:
        made.append(Life(tmp_path / "state", enrolled(name)))
        return made[-1]

    yield begin
    for life in made:
        life.store.close()


def gaptrain(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["jobs", *map(str, arguments)])


def test_each_escalation_with_its_job_evidence_and_candidate(live: Callable[[str], Life]) -> None:
    life = live("r1")
    life.hear(escalation(1), escalation(2, "b" * 64, 7_000_000), escalation(3, EVIDENCE, 2_000_000))
    life.store.evidence_complete(Wanted("r1", EVIDENCE, 2_000_000))
    first = life.offer(2, 0)
    life.hear(correction(life.space, 4, 0))  # overtakes it
    again = first.replace(".0", ".1")
    assert gaptrain("--state", life.state).output.splitlines() == [
        "   -  r1  1970-01-01 00:01  no job",
        "      robot      load friction in j; look for backlash",
        "      terms      j load friction (share 50 %)",
        "      evidence   none",
        "",
        "   1  r1  1970-01-01 00:02  superseded",
        "      robot      load friction in j; look for backlash",
        "      terms      j load friction (share 50 %)",
        "      evidence   wanted, 7.0 MB",
        "      result     a newer escalation",
        "",
        "   2  r1  1970-01-01 00:03  offered",
        "      robot      load friction in j; look for backlash",
        "      terms      j load friction (share 50 %)",
        "      evidence   complete, 2.0 MB",
        "      result     better; none",
        f"      candidate  {again} pending",
    ]
    life.hear(verdict(5, again, 1, "rejected"))
    assert gaptrain("--state", life.state).output.splitlines()[-1] == f"      candidate  {again} rejected: better"


def test_as_json_it_is_all_there(live: Callable[[str], Life]) -> None:
    life = live("r1")
    life.hear(escalation(1, EVIDENCE, 10))
    life.store.evidence_complete(Wanted("r1", EVIDENCE, 10))
    name = life.offer(1, 0)
    life.hear(verdict(2, name, 0))
    (entry,) = json.loads(gaptrain("--state", life.state, "r1", "--json").output)
    assert entry == {
        "job": 1, "robot": "r1", "received": "1970-01-01 00:01:01", "state": "offered", "reason": "better",
        "remedy": "none",
        "escalation": {
            "reason": "load friction in j", "remedy": "look for backlash",
            "terms": [{name: getattr(TERM, name) for name in TERM.__struct_fields__}],
        },
        "evidence": {"state": "complete", "bytes": 10, "sha256": EVIDENCE, "reason": ""},
        "candidate": {
            "candidate": name, "state": "accepted", "reason": "better", "gap_before": 3.0, "gap_after": 1.0,
            "windows": 9,
        },
    }  # fmt: skip


def test_a_gap_that_an_older_host_stored_as_minus_one_is_unknown(live: Callable[[str], Life]) -> None:
    life = live("r1")
    life.hear(escalation(1, EVIDENCE, 10))
    life.offer(1, 0)
    life.store.database.execute("UPDATE candidates SET gap_before = -1, gap_after = 2")
    (entry,) = job_list.entries(life.state)
    assert entry.candidate is not None
    assert (entry.candidate.gap_before, entry.candidate.gap_after) == (None, 2.0)


def test_of_one_robot_or_of_all(live: Callable[[str], Life]) -> None:
    lives = [live(name) for name in ("r1", "r2")]
    state = lives[0].state
    assert gaptrain("--state", state).output == "no escalation has come yet\n"
    assert json.loads(gaptrain("--state", state, "--json").output) == []
    for life in lives:
        life.hear(escalation(1))
    assert [entry.robot for entry in job_list.entries(state)] == ["r1", "r2"]
    assert [entry.robot for entry in job_list.entries(state, "r2")] == ["r2"]
    wrong = gaptrain("--state", state, "r3")
    assert (wrong.exit_code, wrong.output.count("\n")) == (1, 1)
    assert "robot 'r3' is not enrolled" in wrong.output


def test_no_line_is_longer_than_a_terminal(live: Callable[[str], Life]) -> None:
    life = live(LONG)
    term = link.Term("joint" * 30, "load friction", 0.1, 0.01, "N·m", 0.5)
    life.hear(escalation(1, EVIDENCE, 64 * 2**20, reason="word " * 100, remedy="x" * 300 + "\n", terms=(term,) * 5))
    life.hear(escalation(2, EVIDENCE, 64 * 2**20))  # the first is superseded
    text = job_list.text(job_list.entries(life.state))
    assert max(map(len, text.splitlines())) <= job_list.WIDTH
    assert "\\n" in text
    assert text.splitlines()[0].endswith("superseded")
