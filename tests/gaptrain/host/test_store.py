"""The store without a network: each message once, in order, and only what is valid."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from link_peer import FakeRobot, correction, escalation, verdict

from gapd.errors import ConfigError
from gapd.keys import write_keys
from gapd.messages import link
from gaptrain.host import jobs
from gaptrain.host.database import FILE, HostError, open_state, read_state, transaction
from gaptrain.host.enrolment import enrol, listing, revoke, versions_text
from gaptrain.host.registry import the_robot
from gaptrain.host.store import Store
from gaptrain.host.versions import history, newest

Make = Callable[..., FakeRobot]


class At:
    """A store with one robot that has said hello."""

    def __init__(self, robot: FakeRobot, state: Path) -> None:
        ticks = itertools.count(1000.0)
        self.store = Store(state, lambda: next(ticks))
        self.peer, self.space, self.state = robot, robot.space, state
        self.robot = the_robot(self.store.database, robot.name)
        self.welcome = self.store.greet(self.robot, robot.hello())

    def correct(self, sequence: int, base: int, **other: Any) -> link.Ack | link.Nack:
        return self.store.apply(self.robot, correction(self.space, sequence, base, **other))

    def high_water(self) -> int:
        return int(self.store.database.execute("SELECT high_water FROM epochs ORDER BY epoch DESC").fetchone()[0])


@pytest.fixture
def at(enrolled: Make, tmp_path: Path) -> Iterator[At]:
    made = At(enrolled(), tmp_path / "state")
    yield made
    made.store.close()


def test_a_correction_is_applied_once_and_acknowledged_each_time(at: At) -> None:
    answers = [at.correct(1, 0), at.correct(1, 0), at.correct(1, 0)]
    assert answers == [link.Ack(1, 1, 1)] * 3
    assert [v.number for v in history(at.store.database, "r1")] == [1]


def test_welcome_tells_where_the_robot_is(at: At) -> None:
    assert at.welcome == link.Welcome(1, 0, 0, ())
    at.correct(3, 0)
    welcome = at.store.greet(at.robot, at.peer.hello())
    assert welcome == link.Welcome(1, 3, 1, correction(at.space, 3, 0).z)


def test_a_new_outbox_begins_a_new_epoch_and_an_old_one_keeps_its_own(at: At) -> None:
    at.correct(5, 0)
    second = at.store.greet(at.robot, at.peer.hello(outbox="outbox-2"))
    assert isinstance(second, link.Welcome)
    assert (second.epoch, second.high_water, second.version) == (2, 0, 1)
    assert at.store.apply(at.robot, correction(at.space, 1, 1, epoch=2)) == link.Ack(2, 1, 2)
    first = at.store.greet(at.robot, at.peer.hello())
    assert isinstance(first, link.Welcome)
    assert (first.epoch, first.high_water) == (1, 5)


def test_what_is_stale_is_refused_with_the_current_values_again_too(at: At) -> None:
    at.correct(1, 0)
    nack = at.correct(2, 0)
    assert isinstance(nack, link.Nack)
    assert (nack.code, nack.version, nack.z) == ("stale_base", 1, correction(at.space, 1, 0).z)
    assert at.high_water() == 2
    assert at.correct(2, 1) == nack  # the same sequence: its fate is known
    assert at.correct(3, 1) == link.Ack(1, 3, 2)


def test_an_unknown_epoch_moves_nothing(at: At) -> None:
    nack = at.correct(1, 0, epoch=7)
    assert isinstance(nack, link.Nack)
    assert nack.code == "wrong_epoch"
    assert at.high_water() == 0


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"z": (0.0,)}, "z has 1 values, not 4"),
        ({"z": (float("nan"), 0.0, 0.0, 0.0)}, "z of actuator/servo/kp is nan"),
        ({"z": (99.0, -3.0, -3.5, -4.6)}, "outside 1 .. 16 N·m/rad"),
        ({"z": (1e300, -3.0, -3.5, -4.6)}, "= inf is outside"),
        ({"z_sd": (0.1, float("inf"), 0.1, 0.1)}, "z_sd of joint/j/damping is inf"),
        ({"z_sd": (0.1, -1.0, 0.1, 0.1)}, "below 0"),
        ({"active": (2, 1)}, "must rise"),
        ({"active": (0, 2**60)}, "must rise"),
        ({"active": (0,)}, "covariance has 12 bytes, not 4"),
        ({"covariance": np.array([1, 5, 1], "<f4").tobytes()}, "eigenvalue -4"),
        ({"covariance": np.array([1, np.nan, 1], "<f4").tobytes()}, "not finite"),
        ({"changed": ("joint/x/damping",)}, "no parameter of this robot"),
        ({"timestamp": float("inf")}, "timestamp is inf"),
        ({"reason": "x" * 5000}, "5000 characters"),
        ({"base_version": -1}, "-1 is no count"),
        ({"windows": 2**64 - 1}, "no count"),
    ],
)
def test_invalid_values_are_refused_for_good_with_a_remedy(at: At, fields: dict[str, Any], says: str) -> None:
    nack = at.correct(1, fields.pop("base_version", 0), **fields)
    assert isinstance(nack, link.Nack)
    assert nack.code == "invalid"
    assert says in nack.remedy
    assert newest(at.store.database, "r1") is None
    assert at.high_water() == 1
    assert isinstance(at.correct(2, 0), link.Ack)


@pytest.mark.parametrize("sequence", [0, -1, 2**63, 2**64 - 1])
def test_no_sequence_is_too_strange(at: At, sequence: int) -> None:
    assert isinstance(at.correct(sequence, 0), link.Nack)
    assert at.high_water() == 0


@pytest.mark.parametrize("unknown", [float("nan"), float("inf"), -1.0])  # -1: robots of older versions
def test_gaps_that_are_not_known_are_stored_as_null(at: At, unknown: float) -> None:
    candidate = _offer(at, 0)
    assert at.correct(1, 0, gap_before=unknown) == link.Ack(1, 1, 1)
    rows = at.store.database.execute("SELECT gap_before, gap_after FROM versions").fetchall()
    assert rows == [(None, 1.0)]
    judged = verdict(2, candidate.replace(".0", ".1"), 1)
    assert at.store.apply(at.robot, msgspec.structs.replace(judged, gap_after=unknown)) == link.Ack(1, 2, 2)
    sql = "SELECT gap_before, gap_after FROM candidates WHERE state = 'accepted'"
    assert at.store.database.execute(sql).fetchall() == [(3.0, None)]
    assert at.store.database.execute("SELECT gap_before, gap_after FROM versions").fetchall()[1] == (3.0, None)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"robot": "r2"}, "unknown_robot"),
        ({"protocol": 2**63}, "protocol"),
        ({"parameters": "0"}, "wrong_parameters"),
        ({"outbox": ""}, "protocol"),
    ],
)
def test_a_hello_that_cannot_be_served_is_refused(at: At, fields: dict[str, Any], code: str) -> None:
    answer = at.store.greet(at.robot, link.Hello(**{**_plain(at.peer.hello()), **fields}))
    assert isinstance(answer, link.Refused)
    assert answer.code == code
    assert at.store.database.execute("SELECT count(*) FROM epochs").fetchone() == (1,)


def _plain(hello: link.Hello) -> dict[str, Any]:
    return {name: getattr(hello, name) for name in hello.__struct_fields__}


def test_an_escalation_makes_a_job_that_waits_for_its_evidence(at: At) -> None:
    sha = "a" * 64
    assert at.store.apply(at.robot, escalation(1, sha, 10)) == link.Ack(1, 1, 0)
    assert at.store.apply(at.robot, escalation(1, sha, 10)) == link.Ack(1, 1, 0)
    wanted = at.store.wanted("r1")
    assert wanted is not None
    assert jobs.next_job(at.store.database) is None
    at.store.evidence_complete(wanted)
    job = jobs.next_job(at.store.database)
    assert job is not None
    assert (job.robot, job.evidence, job.state) == ("r1", sha, "ready")
    assert at.store.wanted("r1") is None


@pytest.mark.parametrize(
    ("evidence", "size"), [("../../etc/passwd", 5), ("A" * 64, 5), ("a" * 64, 0), ("", 5), ("a" * 64, 2**62)]
)
def test_evidence_that_cannot_be_is_refused(at: At, evidence: str, size: int) -> None:
    nack = at.store.apply(at.robot, escalation(1, evidence, size))
    assert isinstance(nack, link.Nack)
    assert nack.code == "invalid"


def test_a_verdict_makes_the_candidate_the_next_version(at: At) -> None:
    at.correct(1, 0)
    name = _offer(at, 1)
    offered = jobs.pending(at.store.database, "r1")
    assert offered is not None
    assert (offered.candidate, offered.base_version, offered.z) == (name, 1, tuple(at.space.z_nominal))
    assert at.store.apply(at.robot, verdict(2, name, 1)) == link.Ack(1, 2, 2)
    current = newest(at.store.database, "r1")
    assert current is not None
    assert (current.number, current.source, current.z) == (2, f"candidate {name}", tuple(at.space.z_nominal))
    assert jobs.pending(at.store.database, "r1") is None
    again = at.store.apply(at.robot, verdict(3, name, 2))
    assert isinstance(again, link.Nack)


def test_a_rejected_candidate_changes_nothing(at: At) -> None:
    name = _offer(at, 0)
    assert at.store.apply(at.robot, verdict(1, name, 0, "rejected")) == link.Ack(1, 1, 0)
    nack = at.store.apply(at.robot, verdict(2, name, 0))
    assert isinstance(nack, link.Nack)
    assert "rejected already" in nack.remedy


def test_a_correction_overtakes_a_candidate_which_is_offered_again_on_it(at: At) -> None:
    name = _offer(at, 0)
    at.correct(1, 0)
    again = jobs.pending(at.store.database, "r1")
    assert again is not None
    assert again.candidate != name
    assert again.base_version == 1
    nack = at.store.apply(at.robot, verdict(2, name, 0))
    assert isinstance(nack, link.Nack)
    assert nack.code == "stale_base"
    for sequence in range(3, 10):
        at.correct(sequence, sequence - 2)
    assert jobs.pending(at.store.database, "r1") is None  # not for ever


def _offer(at: At, base: int) -> str:
    z, fingerprint = at.space.z_nominal, at.robot.fingerprint
    return jobs.add_candidate(at.store.database, "r1", base, fingerprint, z, np.full(len(z), 0.1), "test", 1.0)


def test_a_group_is_committed_together_or_not_at_all(at: At) -> None:
    def fail() -> None:
        with transaction(at.store.database):
            at.correct(1, 0)
            at.correct(2, 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert newest(at.store.database, "r1") is None
    assert at.high_water() == 0


def test_history_cannot_be_changed(at: At) -> None:
    at.correct(1, 0)
    for change in ("UPDATE versions SET reason = ''", "DELETE FROM versions"):
        with pytest.raises(sqlite3.IntegrityError, match="history"):
            at.store.database.execute(change)


def test_a_damaged_row_is_not_handed_out(at: At) -> None:
    at.correct(1, 0)
    at.store.database.execute("DROP TRIGGER versions_stay")
    at.store.database.execute("UPDATE versions SET z = zeroblob(32)")
    with pytest.raises(HostError, match="version 1: stored values do not match"):
        newest(at.store.database, "r1")


def test_a_state_of_a_newer_version_is_left_alone(at: At, tmp_path: Path) -> None:
    at.store.database.execute("PRAGMA user_version = 99")
    for opener in (open_state, read_state):
        with pytest.raises(HostError, match="newer version"):
            opener(tmp_path / "state")


def test_a_file_that_is_no_database_says_so(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database at all, but long enough for its header" * 99)
    for opener in (open_state, read_state):
        with pytest.raises(HostError, match="not a database; check disk"):
            opener(tmp_path)
    with pytest.raises(HostError, match="no such file; start"):
        read_state(tmp_path / "nowhere")


def test_changed_parameters_carry_values_over_by_name(at: At, tiny_folder: Path, tmp_path: Path) -> None:
    at.correct(1, 0)
    before = newest(at.store.database, "r1")
    assert before is not None
    folder = tmp_path / "changed"
    folder.mkdir()
    for name in ("model.xml", "robot.toml", "parameters.toml"):
        text = (tiny_folder / name).read_text().replace("max = 16", "max = 32")
        (folder / name).write_text(text.replace("joint/j/armature", "joint/j/rotor"))
    enrol(tmp_path / "state", "r1", folder / "robot.toml", tmp_path / "r1.pub")
    robot = the_robot(at.store.database, "r1")
    after = newest(at.store.database, "r1")
    assert after is not None
    assert (after.number, after.source, after.fingerprint) == (2, "enrolment", robot.fingerprint)
    np.testing.assert_allclose(after.values.z[:3], before.values.z[:3])
    np.testing.assert_allclose(after.values.z_sd[:3], before.values.z_sd[:3])
    assert after.values.z[3] == at.space.z_nominal[3]
    nack = at.store.apply(robot, correction(at.space, 2, 2))
    assert isinstance(nack, link.Nack)
    assert nack.code == "wrong_parameters"
    assert isinstance(at.store.greet(robot, at.peer.hello()), link.Refused)


def test_enrolment_says_what_is_wrong(enrolled: Make, tiny_folder: Path, tmp_path: Path) -> None:
    enrolled()
    state, config = tmp_path / "state", tiny_folder / "robot.toml"
    write_keys(tmp_path, "r2")
    with pytest.raises(ConfigError, match="use 1 to 63 letters"):
        enrol(state, "../r2", config, tmp_path / "r2.pub")
    with pytest.raises(ConfigError, match="this key is of robot 'r1'"):
        enrol(state, "r2", config, tmp_path / "r1.pub")
    with pytest.raises(ConfigError, match="holds a secret key"):
        enrol(state, "r2", config, tmp_path / "r2.key")
    with pytest.raises(HostError, match="'r3' is not enrolled; did you mean 'r1'"):
        revoke(state, "r3")
    revoke(state, "r1")
    assert "revoked" in listing(state)
    enrol(state, "r1", config, tmp_path / "r1.pub")
    assert "revoked" not in listing(state)


def test_versions_are_listed_oldest_first(at: At) -> None:
    assert "nothing has been corrected yet" in versions_text(at.state, "r1")
    at.correct(1, 0)
    at.correct(2, 1)
    lines = versions_text(at.state, "r1").splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2"]
    assert all("correction" in line for line in lines)
    with pytest.raises(HostError, match="not enrolled"):
        versions_text(at.state, "r9")
