"""SIGKILL at any moment under load: nothing acknowledged is lost, nothing is applied twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from link_peer import PATIENCE_S, FakeRobot, correction, escalation

from gapd.messages import link
from gaptrain.host.database import read_state
from gaptrain.host.versions import history

Make = Callable[..., FakeRobot]

IN_FLIGHT = 8
# Every so many messages one is an escalation, which has other tables.
ESCALATES = 10
# Imports once and forks for each start, which then takes milliseconds.
SPRING = """
import os, sys
from pathlib import Path
from gaptrain.host.program import serve
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        serve(Path(sys.argv[1]), sys.argv[2], auto=False)
        os._exit(0)
    print("pid", pid, file=sys.stderr, flush=True)
    os.waitpid(pid, 0)
    print("ended", file=sys.stderr, flush=True)
"""


class Sender:
    """A robot with an endless outbox: the next message builds on the one before."""

    def __init__(self, peer: FakeRobot) -> None:
        self.peer = peer
        self.acknowledged = self.sent = 0
        self.up = False

    def connect(self) -> None:
        self.peer.connect()
        self.peer.send(self.peer.hello())

    def message(self, sequence: int) -> link.Message:
        """Message of that number; corrections before it are as many as versions."""
        if sequence % ESCALATES == 0:
            return escalation(sequence, f"{sequence:064x}", sequence)
        return correction(self.peer.space, sequence, sequence - 1 - (sequence - 1) // ESCALATES)

    def step(self, more: bool) -> None:
        assert self.peer.socket is not None
        while self.peer.socket.poll(0):
            message = link.FROM_HOST.decode(self.peer.socket.recv())
            if isinstance(message, link.Welcome):
                assert message.high_water >= self.acknowledged, "what was acknowledged is lost"
                self.acknowledged = self.sent = message.high_water
                self.up = True
            elif isinstance(message, link.Ack):
                assert message.sequence <= self.sent
                self.acknowledged = max(self.acknowledged, message.sequence)
            assert not isinstance(message, link.Nack | link.Refused), message
        while self.up and self.sent - self.acknowledged < IN_FLIGHT and (more or self.sent < self.acknowledged):
            self.sent += 1
            self.peer.send(self.message(self.sent))


class Hosts:
    """One host after the other on the same state."""

    def __init__(self, state: Path, bind: str) -> None:
        self.log = state.parent / "log"
        with self.log.open("w") as log:
            self.spring = subprocess.Popen(
                [sys.executable, "-c", SPRING, state, bind],
                stdin=subprocess.PIPE, stdout=log, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        self.pid = 0

    def _next(self) -> str:
        assert self.spring.stderr is not None
        return self.spring.stderr.readline()

    def start(self) -> None:
        assert self.spring.stdin is not None
        self.spring.stdin.write("\n")
        self.spring.stdin.flush()
        self.pid = int(self._next().split()[1])

    def end(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)
        assert self._next() == "ended\n"

    def close(self) -> None:
        assert self.spring.stdin is not None
        assert self.spring.stderr is not None
        self.spring.stdin.close()
        self.spring.wait(PATIENCE_S)
        self.spring.stderr.close()


@pytest.fixture
def senders(enrolled: Make) -> list[Sender]:
    return [Sender(enrolled(f"r{n}")) for n in range(3)]


@pytest.fixture
def hosts(senders: list[Sender], tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path / "state", senders[0].peer.bind)
    yield made
    made.close()


@pytest.mark.fault
@pytest.mark.parametrize("kills", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_a_killed_host_loses_and_doubles_nothing(
    senders: list[Sender], hosts: Hosts, tmp_path: Path, kills: int
) -> None:
    seed = int(time.time())
    sys.stdout.write(f"seed {seed}\n")
    rng = np.random.default_rng(seed)
    for _ in range(kills):
        hosts.start()
        _load(senders, rng.uniform(0.0, 0.5), True)
        hosts.end(signal.SIGKILL)
    hosts.start()
    _load(senders, 1.0, True)
    _settle(senders)
    hosts.end(signal.SIGTERM)
    sizes = [_require_exact(sender, tmp_path / "state") for sender in senders]
    sys.stdout.write(f"{kills} kills, {sum(sizes)} messages\n")
    assert min(sizes) > kills


def _load(senders: list[Sender], seconds: float, more: bool) -> None:
    """Robots send for that long; each connects again whenever it hears nothing."""
    end = time.monotonic() + seconds
    for sender in senders:
        sender.connect()
    while time.monotonic() < end:
        for sender in senders:
            sender.step(more)
        time.sleep(0.0005)


def _settle(senders: list[Sender]) -> None:
    """Let everything that is under way be acknowledged."""
    end = time.monotonic() + PATIENCE_S
    while any(s.acknowledged < s.sent or not s.up for s in senders):
        for sender in senders:
            sender.step(more=False)
        assert time.monotonic() < end, "some messages are never acknowledged"
        time.sleep(0.001)


def _require_exact(sender: Sender, state: Path) -> int:
    """Each message of the robot is there once, in order, with its own content; how many there are."""
    peer = sender.peer
    with closing(read_state(state)) as database:
        versions = history(database, peer.name)
        rows = database.execute(
            "SELECT sequence, evidence_bytes FROM escalations WHERE robot = ? ORDER BY sequence", (peer.name,)
        ).fetchall()
        refused = database.execute("SELECT count(*) FROM refusals").fetchone()
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    expected = [n for n in range(1, sender.acknowledged + 1) if n % ESCALATES]
    assert [v.number for v in versions] == list(range(1, len(expected) + 1))
    moved = [round((v.values.z[0] - peer.space.z_nominal[0]) * 1e6) for v in versions]
    assert moved == expected
    assert rows == [(n, n) for n in range(ESCALATES, sender.acknowledged + 1, ESCALATES)]
    assert refused == (0,)
    return sender.acknowledged
