"""The host link over real sockets: each message applied once whatever breaks, and nobody else reads or speaks."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq
from zmq.auth.thread import ThreadAuthenticator

from gapd import hostlink
from gapd.errors import ConfigError, InputError
from gapd.hostlink import HostLink
from gapd.keys import read_public, read_secret, write_keys
from gapd.link_events import (
    Acknowledged,
    CandidateOffered,
    Connected,
    Disconnected,
    Event,
    EvidenceWanted,
    Refused,
    Rejected,
)
from gapd.live_config import Link
from gapd.messages import link as wire
from gapd.outbox import Outbox

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


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    for name in ("robot", "host", "other"):
        write_keys(tmp_path, name)
    lines: list[str] = []
    context: Context = zmq.Context()
    with Outbox(tmp_path / "outbox.db", 2**20, lines.append) as outbox:
        rig = Rig(tmp_path, context, outbox, lines=lines)
        yield rig
        for link in rig.links:
            link.close()
    for host in rig.hosts:
        host.close()
    context.destroy(linger=0)


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def expected(count: int, start: int = 1) -> list[str]:
    return [f"c{n}" for n in range(start, start + count)]


def test_everything_arrives_once_after_the_host_was_away(rig: Rig) -> None:
    port = free_port()
    link = rig.link(port)
    rig.put(20)
    rig.run(link, lambda: link._failures >= 2)
    assert rig.events == [
        Disconnected(f"tcp://127.0.0.1:{port}: nothing listens there", hostlink.UNREACHABLE)
    ]  # once, not for each attempt
    assert len(rig.outbox) == 20
    host = rig.host(port)
    most: list[int] = []

    def hold(message: wire.FromRobot) -> bool:
        most.append(len(link._in_flight))
        return False

    host.quirk = hold
    rig.run(link, lambda: len(rig.outbox) == 0, host)
    assert rig.ledger.applied == expected(20)
    assert max(most) == hostlink.IN_FLIGHT
    assert rig.got(Connected) == [Connected(wire.Welcome(1, 0, 1, Z))]
    assert isinstance(rig.events[-1], Acknowledged)
    assert rig.events[-1].sequence == 20
    assert (link.up, link.status(0.0).error, link.version) == (True, "", 1)


def test_a_host_that_dies_between_commit_and_acknowledgement(rig: Rig) -> None:
    """It comes back with a new socket and the same key and disk: nothing is lost, nothing applied twice."""
    host = rig.host()
    link = rig.link(host.port)
    taken: list[str] = []

    def dies(message: wire.FromRobot) -> bool:
        if not isinstance(message, wire.Verdict):
            return False
        rig.hosts[-1].apply(message)  # and no word of it
        taken.append(message.candidate)
        return True

    for life in range(3):
        rig.put(5)
        taken.clear()
        host.quirk = dies
        rig.run(link, lambda: len(taken) >= 3, host)
        host.close()
        rig.run(link, lambda: not link.up)
        rig.hosts.remove(host)
        host = rig.host(host.port)
        rig.run(link, lambda: len(rig.outbox) == 0, host)
        assert rig.ledger.applied == expected(5 * (life + 1))
    assert rig.reasons().count("the connection broke") == 3
    assert isinstance(rig.events[-1], Acknowledged)
    assert rig.events[-1].sequence == 15


def test_a_restarted_robot_goes_on_where_it_was(rig: Rig) -> None:
    host = rig.host()
    first = rig.link(host.port)
    rig.put(12)
    rig.run(first, lambda: len(rig.ledger.applied) >= 6, host)
    first.close()
    rig.outbox.close()
    with Outbox(rig.outbox.path, 2**20, rig.lines.append) as rig.outbox:
        second = rig.link(host.port)
        rig.run(second, lambda: len(rig.outbox) == 0, host)
        assert rig.ledger.applied == expected(12)
        assert rig.ledger.epochs == {rig.outbox.id: 1}
        second.close()


def test_a_host_with_another_key(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port, server="other.pub")
    rig.put(1)
    rig.run(link, lambda: rig.events, host)
    rig.idle(link, host)
    assert len(rig.events) == 1
    event = rig.events[0]
    assert isinstance(event, Disconnected)
    assert event.reason.endswith("the host broke off the handshake")
    assert f"its key is not the one in {rig.folder / 'other.pub'}" in event.remedy
    assert host.received == []


def test_an_unknown_robot_is_let_in_once_it_is_enrolled(rig: Rig) -> None:
    host = rig.host()
    key = next(iter(host.allowed))
    host.allowed.clear()
    link = rig.link(host.port)
    rig.put(3)
    rig.run(link, lambda: link._failures >= 2, host)
    where = f"tcp://127.0.0.1:{host.port}"
    remedy = f"enrol public key {key.decode()} on the host"
    assert rig.events == [Disconnected(f"{where}: the host does not know this robot's key", remedy)]
    assert link.status(0.0).error == f"{where}: the host does not know this robot's key; {remedy}"
    assert host.received == []
    host.allowed.add(key)
    rig.run(link, lambda: len(rig.outbox) == 0, host)
    assert rig.ledger.applied == expected(3)


def test_a_peer_without_curve_gets_nothing(rig: Rig) -> None:
    host = rig.host(curve=False)
    link = rig.link(host.port)
    rig.run(link, lambda: rig.events, host)
    rig.idle(link, host)
    # Which one depends on who closes first.
    assert set(rig.reasons()) <= {"what answers does not speak CURVE", "the host broke off the handshake"}
    assert host.received == []


def test_a_port_that_accepts_and_says_nothing(rig: Rig) -> None:
    with closing(socket.socket()) as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        link = rig.link(mute.getsockname()[1])
        rig.run(link, lambda: rig.events)
    assert rig.reasons() == ["the host is silent"]


def test_oversize_messages_cost_only_the_connection(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)
    rig.run(link, lambda: link.up, host)
    host.send(bytes(wire.MAX_BYTES + 1))
    rig.run(link, lambda: not link.up, host)
    rig.put(1)
    rig.run(link, lambda: len(rig.outbox) == 0, host)
    assert (rig.ledger.applied, link.dropped) == (["c1"], 0)
    with pytest.raises(InputError, match="too large; send at most 49152"):
        link.send_chunk(wire.Chunk("e", 0, 1, "", bytes(wire.CHUNK_BYTES + 1)))


class Tap:
    """A proxy that keeps every byte in both directions."""

    def __init__(self, port: int) -> None:
        self.seen = bytearray()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(PATIENCE_S)
        self.port: int = self.listener.getsockname()[1]
        self.threads = [threading.Thread(target=self.serve, args=(port,), daemon=True)]
        self.threads[0].start()

    def serve(self, port: int) -> None:
        with suppress(OSError), self.listener.accept()[0] as near, socket.create_connection(("127.0.0.1", port)) as far:
            self.threads.append(threading.Thread(target=self.copy, args=(far, near), daemon=True))
            self.threads[-1].start()
            self.copy(near, far)
            self.threads[-1].join(PATIENCE_S)

    def copy(self, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.seen += data
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.listener.close()
        for thread in self.threads:
            thread.join(PATIENCE_S)


def test_an_eavesdropper_sees_nothing_of_a_message(rig: Rig) -> None:
    words = (b"payload of 2.4 kg", b"arm7", b"verdict", b"hello", b"welcome", b"heartbeat")
    host = rig.host()
    with closing(Tap(host.port)) as tap:
        link = rig.link(tap.port)
        rig.put(3, words[0].decode())
        rig.run(link, lambda: len(rig.outbox) == 0 and isinstance(host.received[-1], wire.Heartbeat), host)
        assert rig.ledger.applied == expected(3)
        link.close()
    assert len(tap.seen) > 1000
    assert [word for word in words if word in tap.seen] == []
    # The tap would have seen it.
    plain = rig.host(curve=False)
    with closing(Tap(plain.port)) as tap, rig.context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(f"tcp://127.0.0.1:{tap.port}")
        dealer.send(wire.ENCODER.encode(verdict(1, words[0].decode())))
        assert plain.router.poll(int(PATIENCE_S * 1000))
        assert words[0] in tap.seen
        dealer.close()


def frames_of(message: wire.FromHost) -> bytes:
    return wire.ENCODER.encode(message)


NONSENSE = {
    "no message": b"",
    "not MessagePack": b"\xc1\xff\x00",
    "too deep": b"\x91" * 50_000,
    "a million lists": b"\xdd\x00\x0f\x42\x40" + b"\x90" * 60_000,
    "unknown kind": msgspec.msgpack.encode({"kind": "reboot"}),
    "of a robot": wire.ENCODER.encode(verdict(1)),
    "unknown field": msgspec.msgpack.encode({"kind": "heartbeat", "version": 1, "x": 1}),
    "bad text": b"\x82\xa4kind\xa7refused\xa4code\xa2\xff\xfe",
    "nan": frames_of(wire.Welcome(1, 0, 1, (math.nan, 0.0, 0.0))),
    "infinite": frames_of(wire.Candidate("c", 1, (0.0, math.inf, 0.0), Z, "s")),
    "too many values": frames_of(wire.Welcome(1, 0, 1, (*Z, 0.4))),
    "no values": frames_of(wire.Candidate("c", 1, (), (), "s")),
    "another length": frames_of(wire.Candidate("c", 1, Z, (0.1,), "s")),
    "negative spread": frames_of(wire.Candidate("c", 1, Z, (0.1, -0.1, 0.1), "s")),
    "negative version": frames_of(wire.Heartbeat(-1)),
    "negative offset": frames_of(wire.EvidenceRequest("e", -1)),
    "huge": frames_of(wire.Ack(1, 2**64 - 1, 1)),
    "of another epoch": frames_of(wire.Ack(2, 1, 1)),
    "of what was never sent": frames_of(wire.Ack(1, 99, 1)),
    "refuses what was never sent": frames_of(wire.Nack(1, 99, "invalid", "", 1)),
}


def test_nonsense_of_the_host_is_counted_and_dropped(rig: Rig) -> None:
    host = rig.host()
    host.quirk = lambda message: isinstance(message, wire.Verdict)
    link = rig.link(host.port)
    rig.put(1)
    rig.run(link, lambda: link._in_flight, host)
    for count, (name, body) in enumerate(NONSENSE.items(), 1):
        host.send(body)
        rig.run(link, lambda count=count: link.dropped == count, host)  # type: ignore[misc]
        assert (link.up, len(rig.outbox), len(rig.events)) == (True, 1, 1), name
    host.router.send_multipart([host.peer, frames_of(wire.Ack(1, 1, 1)), b"and more"])
    rig.run(link, lambda: link.dropped == len(NONSENSE) + 1, host)
    assert len(rig.outbox) == 1
    host.send(wire.Ack(1, 1, 5))
    rig.run(link, lambda: len(rig.outbox) == 0, host)
    assert (rig.events[-1], link.version) == (Acknowledged(1, 5), 5)


def test_nothing_counts_before_the_welcome(rig: Rig) -> None:
    host = rig.host()
    host.quirk = lambda message: isinstance(message, wire.Hello)
    link = rig.link(host.port)
    rig.put(1)
    rig.run(link, lambda: host.received, host)
    host.send(wire.Ack(0, 0, 1), wire.Candidate("c", 1, Z, Z, "s"), wire.Nack(0, 0, "wrong_epoch", "", 1))
    rig.run(link, lambda: link.dropped == 3, host)
    assert (link.up, rig.events, len(rig.outbox)) == (False, [], 1)
    assert not link.send_chunk(wire.Chunk("e", 0, 1, "", b"x"))


def test_a_refused_message_comes_back_with_the_host_s_values(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)

    def stale(message: wire.FromRobot) -> bool:
        if not isinstance(message, wire.Verdict) or message.sequence != 2:
            return False
        rig.ledger.high_water[1] = 2
        host.send(wire.Nack(1, 2, "stale_base", "check\nagain", 7, (1.0, 2.0, 3.0)))
        return True

    host.quirk = stale
    rig.put(3)
    rig.run(link, lambda: len(rig.outbox) == 0, host)
    assert rig.ledger.applied == ["c1", "c3"]
    message = msgspec.structs.replace(verdict(2), sequence=2)
    assert rig.got(Rejected) == [Rejected(2, message, "stale_base", r"check\nagain", 7, (1.0, 2.0, 3.0))]
    assert [e.sequence for e in rig.events if isinstance(e, Acknowledged)] == [1, 3]


def test_lost_acknowledgements_are_asked_for_again(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)
    seen: list[int] = []

    def loses(message: wire.FromRobot) -> bool:
        if isinstance(message, wire.Verdict):
            seen.append(message.sequence)
            host.apply(message)
        return isinstance(message, wire.Verdict) and len(seen) <= 4

    host.quirk = loses
    rig.put(4)
    rig.run(link, lambda: len(rig.outbox) == 0, host)
    assert seen == [1, 2, 3, 4, 1, 2, 3, 4]
    assert rig.ledger.applied == expected(4)
    assert len(rig.got(Connected)) == 1


def test_a_host_that_never_acknowledges_gets_a_new_connection(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)
    host.quirk = lambda message: isinstance(message, wire.Verdict)
    rig.put(2)
    rig.run(link, lambda: rig.got(Disconnected), host)
    sent = [m.sequence for m in host.received if isinstance(m, wire.Verdict)]
    assert sent == [1, 2] * (1 + hostlink.RETRIES)
    assert rig.reasons() == ["the host does not acknowledge"]
    host.quirk = None
    rig.run(link, lambda: len(rig.outbox) == 0, host)
    assert rig.ledger.applied == expected(2)


def test_an_idle_link_beats_and_notices_silence(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)
    link.level = 1
    rig.run(link, lambda: len(host.received) >= 4, host)
    assert host.received[1:4] == [wire.Heartbeat(1, 0, 1)] * 3
    assert len(rig.events) == 1
    start = now_s()
    rig.run(link, lambda: not link.up)  # the host does nothing
    assert hostlink.SILENCE_S - hostlink.HEARTBEAT_S - 1 < now_s() - start < hostlink.SILENCE_S + 3
    assert rig.reasons() == ["the host is silent"]


def test_a_robot_that_was_busy_reads_before_it_judges(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)
    rig.run(link, lambda: link.up, host)
    host.send(wire.Heartbeat(3))
    time.sleep(0.1)
    assert link.step(now_s() + 100 * hostlink.SILENCE_S) == []
    assert (link.up, link.version) == (True, 3)


def test_a_refused_hello_waits_long(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)

    def refuses(message: wire.FromRobot) -> bool:
        host.send(wire.Refused("wrong_parameters", "copy parameters.toml to the host"))
        return True

    host.quirk = refuses
    rig.run(link, lambda: rig.events, host)
    assert rig.events == [Refused("wrong_parameters", "copy parameters.toml to the host")]
    assert link._retry_s >= now_s() + hostlink.REFUSED_RETRY_S - 5
    assert "wrong_parameters; copy parameters.toml" in link.status(0.0).error
    host.quirk = None
    link._retry_s = 0.0
    rig.run(link, lambda: link.up, host)


def test_hello_says_who_it_is(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)
    rig.run(link, lambda: link.up, host)
    hello = host.received[0]
    assert isinstance(hello, wire.Hello)
    assert (hello.protocol, hello.robot, hello.outbox, hello.parameters) == (1, "arm7", rig.outbox.id, "fp")


def test_a_host_of_another_epoch_is_asked_for_its_own(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)
    rig.run(link, lambda: link.up, host)
    rig.ledger.epochs[rig.outbox.id] = 9  # its disk was replaced

    def other(message: wire.FromRobot) -> bool:
        if not isinstance(message, wire.Verdict) or message.epoch == 9:
            return False
        host.send(wire.Nack(message.epoch, message.sequence, "wrong_epoch", "say hello", 1))
        return True

    host.quirk = other
    rig.put(2)
    rig.run(link, lambda: len(rig.outbox) == 0, host)
    assert rig.ledger.applied == expected(2)
    assert (rig.got(Rejected), link.status(0.0).epoch) == ([], 9)


def test_an_outbox_that_begins_anew_gets_a_new_epoch(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)
    rig.put(3)
    rig.run(link, lambda: len(rig.outbox) == 0, host)
    rig.outbox._open().execute("DROP TABLE message")  # damage
    rig.outbox.put(verdict(50))
    rig.outbox.put(verdict(51))
    rig.run(link, lambda: len(rig.outbox) == 0, host)
    assert rig.ledger.applied == [*expected(3), "c50", "c51"]
    assert rig.ledger.high_water == {1: 3, 2: 2}
    assert len(rig.lines) == 1


def test_an_outbox_that_went_back_in_time_is_renewed(rig: Rig) -> None:
    host = rig.host()
    rig.ledger.epochs[rig.outbox.id], rig.ledger.high_water[1] = 1, 40
    rig.put(2)
    link = rig.link(host.port)
    rig.run(link, lambda: len(rig.outbox) == 0, host)
    assert rig.ledger.applied == expected(2)
    assert rig.ledger.high_water == {1: 40, 2: 2}


def test_what_the_host_asks_for_comes_out(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)
    rig.run(link, lambda: link.up, host)
    candidate = wire.Candidate("c9", 1, Z, Z, "gaptrain recalibrate")
    host.send(candidate, wire.EvidenceRequest("e", 49152))
    rig.run(link, lambda: len(rig.events) == 3, host)
    assert rig.events[1:] == [CandidateOffered(candidate), EvidenceWanted("e", 49152)]
    chunk = wire.Chunk("e" * 64, 49152, 10**9, "s" * 64, os.urandom(wire.CHUNK_BYTES))
    assert link.send_chunk(chunk)
    rig.run(link, lambda: chunk in host.received, host)


def test_retries_back_off_with_a_seeded_jitter(rig: Rig) -> None:
    link = rig.link(free_port())
    now, waits = 0.0, []
    for _ in range(12):
        link.step(now)
        end = time.monotonic() + PATIENCE_S
        while link.socket is not None:
            assert time.monotonic() < end
            link.step(now)
        waits.append(link._retry_s - now)
        now = link._retry_s
    limits = [min(0.5 * 2.0**n, 30.0) for n in range(12)]
    assert all(limit / 2 <= wait <= limit for wait, limit in zip(waits, limits, strict=True))
    rng = np.random.default_rng(1)
    np.testing.assert_allclose(waits, [limit * rng.uniform(0.5, 1.0) for limit in limits])


def test_connections_leave_nothing_behind(rig: Rig) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    link = rig.link(free_port())
    rig.run(link, lambda: link._failures == 1)
    before = descriptors()
    for attempt in range(2, 17):
        link._retry_s = 0.0
        rig.run(link, lambda n=attempt: link._failures == n)  # type: ignore[misc]
    rig.run(link, lambda: link.socket is None and descriptors() <= before)  # sockets close in the background


def test_status(rig: Rig) -> None:
    link = rig.link(free_port())
    rig.put(2)
    status = link.status(11.0)
    assert (status.up, status.pending, status.oldest_s, status.epoch, status.corrupt) == (False, 2, 10.0, 0, 0)
    rig.outbox.delete_through(2)
    assert link.status(11.0).oldest_s == 0.0


def test_wrong_configuration_is_refused_at_once(rig: Rig) -> None:
    with pytest.raises(ConfigError, match="holds a secret key"):
        rig.link(5570, server="host.key")
    (rig.folder / "robot.key").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        rig.link(5570)
