"""Robots that never stop sending, and what of it must be on the host's disk."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from link_peer import PATIENCE_S, FakeRobot, correction, escalation

from gapd.keys import read_public, read_secret
from gapd.link.connection import Connection
from gapd.messages import link
from gaptrain.host.database import read_state
from gaptrain.host.versions import history

IN_FLIGHT = 8
# Every so many messages one is an escalation, which has other tables.
ESCALATES = 10
# From one attempt to connect to the next.
RETRY_S = 0.02


class Sender:
    """A robot with an endless outbox, on the robots' own connection: the next message builds on the one before."""

    def __init__(self, peer: FakeRobot) -> None:
        self.peer = peer
        self.acknowledged = self.sent = 0
        self.up = False
        self._connection: Connection | None = None
        self._retry_s = 0.0

    def connect(self) -> None:
        self.close()
        keys, server = (self.peer.folder / name for name in (f"{self.peer.name}.key", "host.pub"))
        self._connection = Connection(self.peer.context, self.peer.bind, read_secret(keys), read_public(server))
        self._connection.send(self.peer.hello())
        self._retry_s = time.monotonic() + RETRY_S

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection, self.up = None, False

    def message(self, sequence: int) -> link.Correction | link.Escalation:
        """Message of that number; corrections before it are as many as versions."""
        if sequence % ESCALATES == 0:
            return escalation(sequence, f"{sequence:064x}", sequence)
        return correction(self.peer.space, sequence, sequence - 1 - (sequence - 1) // ESCALATES)

    def step(self, more: bool) -> None:
        if self._connection is None or self._connection.failure() is not None:
            self.close()
            if time.monotonic() >= self._retry_s:
                self.connect()
            return
        for (raw,) in self._connection.receive():
            self._hear(link.FROM_HOST.decode(raw))
        while self.up and self.sent - self.acknowledged < IN_FLIGHT and more:
            self.sent += 1
            self._connection.send(self.message(self.sent))

    def _hear(self, message: link.FromHost) -> None:
        if isinstance(message, link.Welcome):
            assert message.high_water >= self.acknowledged, "what was acknowledged is lost"
            self.acknowledged = self.sent = message.high_water
            self.up = True
        elif isinstance(message, link.Ack):
            assert message.sequence <= self.sent
            self.acknowledged = max(self.acknowledged, message.sequence)
        assert not isinstance(message, link.Nack | link.Refused), message


def load(senders: list[Sender], seconds: float, more: bool) -> None:
    """Robots send for that long; each connects again whenever its connection has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for sender in senders:
            sender.step(more)
        time.sleep(0.0005)


def settle(senders: list[Sender]) -> None:
    """Let everything that is under way be acknowledged."""
    end = time.monotonic() + PATIENCE_S
    while any(s.acknowledged < s.sent or not s.up for s in senders):
        for sender in senders:
            sender.step(more=False)
        assert time.monotonic() < end, "some messages are never acknowledged"
        time.sleep(0.001)


def require_exact(sender: Sender, state: Path) -> int:
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
