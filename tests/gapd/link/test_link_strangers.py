"""The host link over real sockets: nobody else reads or speaks, and nonsense does no harm."""

from __future__ import annotations

import math
import socket
import threading
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest
import zmq
from link_rig import (
    PATIENCE_S,
    Rig,
    Z,
    expected,
    free_port,
    verdict,
)

from gapd.errors import InputError
from gapd.link.link_events import (
    Acknowledged,
    Disconnected,
)
from gapd.messages import link as wire


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
    rig.run(link, lambda: link._talk and link._talk.in_flight, host)
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
