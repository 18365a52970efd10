"""Evidence on its way to the host, and what comes of it: files, jobs, candidates."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from link_peer import FakeRobot, Host, escalation, until, verdict

from gapd.errors import InputError
from gapd.measured.evidence import pack, unpack
from gapd.measured.windows import Frames
from gapd.messages import link
from gaptrain.host import jobs
from gaptrain.host.database import open_state, read_state

Make = Callable[..., FakeRobot]
Start = Callable[..., Host]


def test_frames_come_back_as_they_were(rng: np.random.Generator) -> None:
    frames = _frames(rng)
    back = unpack(pack(frames), "evidence")
    for name in ("timestamp", "measured", "command", "context"):
        np.testing.assert_array_equal(getattr(back, name), getattr(frames, name))


def _frames(rng: np.random.Generator) -> Frames:
    measured = rng.normal(size=(50, 3))
    measured[7, 1] = np.nan
    return Frames(np.arange(50) * 0.01, measured, rng.normal(size=(50, 2)), np.zeros((50, 0)), "r1")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(4)


def test_what_is_no_recording_or_not_whole_is_refused(rng: np.random.Generator) -> None:
    raw = pack(_frames(rng))
    newer = raw.replace(b"format\x01", b"format\x02")
    longer = raw.replace(b"frames\x32", b"frames\x33")
    assert newer != raw != longer
    for bad, says in ((b"", "no recording"), (raw[:-9], "no record"), (newer, "format 2"), (longer, "has 400 bytes")):
        with pytest.raises(InputError, match=says):
            unpack(bad, "evidence")


def test_evidence_comes_in_chunks_and_goes_on_after_a_restart(enrolled: Make, host: Start, tmp_path: Path) -> None:
    robot = enrolled()
    service = host(robot)
    recording = bytes(range(256)) * 1000
    sha = hashlib.sha256(recording).hexdigest()
    robot.connect().say_hello()
    robot.send(escalation(1, sha, len(recording)))
    robot.receive(link.Ack)
    asked = [_give(robot, recording, sha) for _ in range(3)]
    assert asked == [0, link.CHUNK_BYTES, 2 * link.CHUNK_BYTES]
    robot.receive(link.EvidenceRequest)
    service.kill()
    service.start()
    robot.connect().say_hello()
    assert _give(robot, recording, sha) == 3 * link.CHUNK_BYTES
    while service.events("evidence") == []:
        _give(robot, recording, sha)
        time.sleep(0.05)
    assert (tmp_path / "state" / "evidence" / sha).read_bytes() == recording
    assert not list((tmp_path / "state" / "evidence" / "parts").iterdir())


def _give(robot: FakeRobot, recording: bytes, sha: str) -> int:
    """Answer one request; the offset that it was for."""
    request = robot.receive(link.EvidenceRequest)
    data = recording[request.offset : request.offset + link.CHUNK_BYTES]
    robot.send(link.Chunk(sha, request.offset, len(recording), sha, data))
    return request.offset


def test_evidence_that_is_damaged_or_gone_ends_the_job(enrolled: Make, host: Start, tmp_path: Path) -> None:
    robot = enrolled()
    service = host(robot)
    robot.connect().say_hello()
    robot.send(escalation(1, "a" * 64, 10))
    for _ in range(3):
        assert robot.receive(link.EvidenceRequest).offset == 0
        robot.send(link.Chunk("a" * 64, 0, 10, "a" * 64, b"0123456789"))
    until(lambda: service.events("evidence_lost"))
    robot.send(escalation(2, "b" * 64, 10))
    robot.receive(link.EvidenceRequest)
    robot.send(link.Chunk("b" * 64, 0, 0, "", b""))
    until(lambda: len(service.events("evidence_lost")) == 2)
    with closing(read_state(tmp_path / "state")) as database:
        rows = database.execute("SELECT state, reason, remedy FROM jobs ORDER BY job").fetchall()
    assert [row[0] for row in rows] == ["failed", "failed"]
    assert "3 times the bytes" in rows[0][1]
    assert "no longer has" in rows[1][1]
    assert all(row[2] for row in rows)


def test_a_candidate_is_offered_and_the_verdict_makes_a_version(enrolled: Make, host: Start, tmp_path: Path) -> None:
    robot = enrolled()
    service = host(robot)
    robot.connect().say_hello()
    z, fingerprint = robot.space.z_nominal + 0.01, robot.space.fingerprint
    with closing(open_state(tmp_path / "state")) as database:  # as `gaptrain recalibrate` does, from another process
        name = jobs.add_candidate(database, "r1", 0, fingerprint, z, z * 0 + 0.1, "test", 1.0)
    offered = robot.receive(link.Candidate)
    assert (offered.candidate, offered.base_version, offered.z) == (name, 0, tuple(z))
    assert robot.ask(verdict(1, name, 0)) == link.Ack(1, 1, 1)
    assert robot.connect().say_hello().z == tuple(z)
    assert robot.silence(link.Candidate, 0.7)
    assert service.events("verdict")[0]["verdict"] == "accepted"
