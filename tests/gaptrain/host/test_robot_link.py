"""The robot's own end of the link against the host: outbox, host killed in between, evidence, candidate, verdict."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
import zmq
from link_peer import FakeRobot, Host, correction, escalation, until, verdict

from gapd.link.hostlink import HostLink
from gapd.link.link_events import Acknowledged, CandidateOffered, Connected, Event, EvidenceWanted, Rejected
from gapd.link.outbox import Outbox
from gapd.live_config import Link
from gapd.messages import link
from gaptrain.host import jobs
from gaptrain.host.database import open_state, read_state
from gaptrain.host.program import host_keys
from gaptrain.host.service import Service
from gaptrain.host.store import Store
from gaptrain.host.versions import history

Make = Callable[..., FakeRobot]
Start = Callable[..., Host]


class Robot:
    """A robot's link, stepped until something happens."""

    def __init__(self, peer: FakeRobot) -> None:
        self.outbox = Outbox(peer.folder / "outbox.sqlite", 2**22, lambda _: None)
        files = (str(peer.folder / name) for name in ("host.pub", f"{peer.name}.key"))
        space, self.context = peer.space, zmq.Context()
        self.link = HostLink(
            self.context, Link(peer.name, peer.bind, *files), self.outbox, space.fingerprint, len(space),
            np.random.default_rng(1),
        )  # fmt: skip
        self.events: list[Event] = []

    def wait(self, kind: type[Event], found: Callable[[Any], bool] = lambda _: True) -> Any:
        def look() -> Any:
            self.events += self.link.step(time.monotonic())
            for event in self.events:
                if isinstance(event, kind) and found(event):
                    self.events.remove(event)
                    return event
            return None

        return until(look, 20.0)

    def close(self) -> None:
        self.link.close()
        self.outbox.close()
        self.context.destroy(linger=0)


@pytest.fixture
def peer(enrolled: Make) -> FakeRobot:
    return enrolled()


@pytest.fixture
def robot(peer: FakeRobot) -> Iterator[Robot]:
    made = Robot(peer)
    yield made
    made.close()


def test_the_whole_conversation(peer: FakeRobot, robot: Robot, host: Start, tmp_path: Path) -> None:
    service = host(peer)
    assert robot.wait(Connected).welcome.version == 0
    for sequence in range(1, 4):
        robot.outbox.put(correction(peer.space, sequence, sequence - 1))
    robot.wait(Acknowledged, lambda e: e.sequence == 3)
    service.kill()
    for sequence in range(4, 13):  # more than are in flight at once, while the host is away
        robot.outbox.put(correction(peer.space, sequence, sequence - 1))
    service.start()
    robot.wait(Acknowledged, lambda e: e.sequence == 12)
    assert len(robot.outbox) == 0

    robot.outbox.put(correction(peer.space, 13, 2))
    rejected = robot.wait(Rejected)
    assert (rejected.code, rejected.version) == ("stale_base", 12)

    recording = b"evidence" * 20000
    sha = hashlib.sha256(recording).hexdigest()
    robot.outbox.put(escalation(14, sha, len(recording)))
    while not service.events("evidence"):
        wanted = robot.wait(EvidenceWanted)
        data = recording[wanted.offset : wanted.offset + link.CHUNK_BYTES]
        robot.link.send_chunk(link.Chunk(sha, wanted.offset, len(recording), sha, data))
        time.sleep(0.05)

    z = peer.space.z_nominal
    with closing(open_state(tmp_path / "state")) as database:
        name = jobs.add_candidate(database, "r1", 12, peer.space.fingerprint, z, z * 0 + 0.1, "test", 1.0)
    assert robot.wait(CandidateOffered).candidate.candidate == name
    robot.outbox.put(verdict(15, name, 12))
    assert robot.wait(Acknowledged, lambda e: e.sequence == 15).version == 13
    with closing(read_state(tmp_path / "state")) as database:
        assert [v.number for v in history(database, "r1")] == list(range(1, 14))


def test_a_failed_commit_is_not_acknowledged_and_comes_again(
    peer: FakeRobot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, logged = tmp_path / "state", structlog.testing.CapturingLogger()
    log = structlog.wrap_logger(logged, processors=[], wrapper_class=structlog.make_filtering_bound_logger(20))
    service = Service(state, peer.bind, host_keys(state), log)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        peer.connect().say_hello()
        with monkeypatch.context() as patch:
            patch.setattr(Store, "apply", _disk_full)
            peer.send(correction(peer.space, 1, 0))
            assert peer.silence((link.Ack, link.Nack), 0.5)
        assert peer.connect().say_hello().high_water == 0  # the host has ended the connection
        assert peer.ask(correction(peer.space, 1, 0)) == link.Ack(1, 1, 1)
    finally:
        service.stop()
        thread.join()
        service.close()
    failed = [call.kwargs for call in logged.calls if call.kwargs.get("event") == "store_failed"]
    assert [f["reason"] for f in failed] == ["database or disk is full"]


def _disk_full(_store: Store, _robot: object, _message: object) -> link.Ack:
    raise sqlite3.OperationalError("database or disk is full")
