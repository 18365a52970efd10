"""A robot's end of the link against hosts made of plain sockets, for the tests of the host link."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import zmq
from zmq.auth.thread import ThreadAuthenticator

from gapd.keys import read_public, read_secret
from gapd.link.hostlink import HostLink
from gapd.link.link_events import (
    Disconnected,
    Event,
)
from gapd.link.outbox import Outbox
from gapd.live_config import Link
from gapd.messages import link as wire

# The link's clock runs this much faster than the tests', so that its seconds take none of theirs.
RATE = 6.0
PATIENCE_S = 6.0
PARAMETERS = 3
Z = (0.1, 0.2, 0.3)

Context = zmq.Context[zmq.Socket[bytes]]


def now_s() -> float:
    return time.monotonic() * RATE


def verdict(number: int, reason: str = "checked") -> wire.Verdict:
    return wire.Verdict(0, 0, float(number), f"c{number}", 1, "rejected", reason, 1.0, 2.0, 3)


@dataclass
class Ledger:
    """What a host keeps on its disk."""

    epochs: dict[str, int] = field(default_factory=dict)
    high_water: dict[int, int] = field(default_factory=dict)
    applied: list[str] = field(default_factory=list)
    version: int = 1


class Host:
    """A host on a port of its own, which it keeps: `step` answers what came. `quirk` may do something else instead."""

    def __init__(self, keys: Path, ledger: Ledger, port: int = 0, *, curve: bool = True) -> None:
        self.allowed, self.ledger = {read_public(keys / "robot.pub")}, ledger
        self.quirk: Callable[[wire.FromRobot], bool] | None = None
        self.received: list[wire.FromRobot] = []
        self.peer = b""
        self.context: Context = zmq.Context()
        self.zap = ThreadAuthenticator(self.context)
        self.zap.start()
        self.zap.configure_curve_callback("gapd", credentials_provider=self)
        self.router = self.context.socket(zmq.ROUTER)
        self.router.linger = 0
        if curve:
            self.router.curve_server, self.router.zap_domain = True, b"gapd"
            self.router.curve_secretkey = read_secret(keys / "host.key").secret
        if port:
            self.router.bind(f"tcp://127.0.0.1:{port}")
        self.port = port or self.router.bind_to_random_port("tcp://127.0.0.1")

    def callback(self, domain: str, key: bytes) -> bool:
        return key in self.allowed

    def step(self) -> None:
        while self.router.poll(0):
            self.peer, body = self.router.recv_multipart()
            message = wire.FROM_ROBOT.decode(body)
            self.received.append(message)
            if self.quirk is None or not self.quirk(message):
                self.answer(message)

    def answer(self, message: wire.FromRobot) -> None:
        match message:
            case wire.Hello():
                epoch = self.ledger.epochs.setdefault(message.outbox, len(self.ledger.epochs) + 1)
                self.send(wire.Welcome(epoch, self.ledger.high_water.get(epoch, 0), self.ledger.version, Z))
            case wire.Heartbeat():
                self.send(wire.Heartbeat(self.ledger.version))
            case wire.Verdict():
                self.apply(message)
                self.send(wire.Ack(message.epoch, message.sequence, self.ledger.version))

    def apply(self, message: wire.Verdict) -> None:
        if message.sequence > self.ledger.high_water.get(message.epoch, 0):
            self.ledger.high_water[message.epoch] = message.sequence
            self.ledger.applied.append(message.candidate)

    def send(self, *messages: wire.FromHost | bytes) -> None:
        for message in messages:
            body = message if isinstance(message, bytes) else wire.ENCODER.encode(message)
            self.router.send_multipart([self.peer, body])

    def close(self) -> None:
        self.zap.stop()
        self.context.destroy(linger=0)


@dataclass
class Rig:
    """A robot with its keys and outbox, and hosts it may talk to."""

    folder: Path
    context: Context
    outbox: Outbox
    ledger: Ledger = field(default_factory=Ledger)
    lines: list[str] = field(default_factory=list)
    hosts: list[Host] = field(default_factory=list)
    links: list[HostLink] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def host(self, port: int = 0, *, curve: bool = True) -> Host:
        self.hosts.append(Host(self.folder, self.ledger, port, curve=curve))
        return self.hosts[-1]

    def link(self, port: int, server: str = "host.pub", secret: str = "robot.key") -> HostLink:  # noqa: S107
        config = Link("arm7", f"tcp://127.0.0.1:{port}", str(self.folder / server), str(self.folder / secret))
        rng = np.random.default_rng(1)
        self.links.append(HostLink(self.context, config, self.outbox, "fp", PARAMETERS, rng))
        return self.links[-1]

    def put(self, count: int, reason: str = "checked") -> None:
        for _ in range(count):
            self.outbox.put(verdict(self.outbox.last + 1, reason))

    def run(self, link: HostLink, done: Callable[[], object], *hosts: Host) -> None:
        """Let both ends work until something has come about."""
        end = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < end, (self.events, link.status(0.0))
            self.step(link, *hosts)

    def idle(self, link: HostLink, *hosts: Host, seconds: float = 0.15) -> None:
        """Let both ends work for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.step(link, *hosts)

    def step(self, link: HostLink, *hosts: Host) -> None:
        if link.socket is None:
            time.sleep(0.005)
        else:
            link.socket.poll(5)
        self.events += link.step(now_s())
        for host in hosts:
            host.step()

    def got(self, kind: type[Event]) -> list[Event]:
        return [e for e in self.events if isinstance(e, kind)]

    def reasons(self) -> list[str]:
        return [e.reason.split(": ")[1] for e in self.events if isinstance(e, Disconnected)]


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def expected(count: int, start: int = 1) -> list[str]:
    return [f"c{n}" for n in range(start, start + count)]
