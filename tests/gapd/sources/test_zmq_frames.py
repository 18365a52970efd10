"""Frames over real sockets: what is no frame is dropped and counted, and a wire that others reach needs keys."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

import msgpack
import numpy as np
import pytest
import zmq
from zmq.auth.thread import ThreadAuthenticator

from gapd.errors import ConfigError
from gapd.keys import read_public, read_secret, write_keys
from gapd.live_config import ZmqFrames, is_local
from gapd.messages.frames import ENCODER, Frame
from gapd.sources import zmq_frames
from gapd.sources.zmq_frames import FrameSource

PATIENCE_S = 5.0
PATIENCE_MS = 5000
FRAME = Frame(1.25, ("j",), (0.1,), (math.nan,), (), (0.3,), {"j/effort": 0.1}, {"v": 12.0}, 7)
KEY = "robot.key"
GOOD = ENCODER.encode(FRAME)

Socket = zmq.Socket[bytes]


class Publish(Protocol):
    """A PUB socket that sends to the source, which it reaches before it is returned."""

    def __call__(self, source: FrameSource) -> Socket: ...


@pytest.fixture
def context() -> Iterator[zmq.Context[Socket]]:
    made: zmq.Context[Socket] = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def two_sockets() -> Iterator[zmq.Context[Socket]]:
    """A context that gives out no more than two at a time."""
    made: zmq.Context[Socket] = zmq.Context()
    made.set(zmq.MAX_SOCKETS, 2)
    yield made
    made.destroy(linger=0)


@pytest.fixture
def source(context: zmq.Context[Socket]) -> Iterator[FrameSource]:
    with closing(FrameSource(context, ZmqFrames("tcp://127.0.0.1:*", bind=True))) as opened:
        yield opened


@pytest.fixture
def publish(context: zmq.Context[Socket]) -> Iterator[Publish]:
    opened: list[Socket] = []

    def connected(source: FrameSource) -> Socket:
        publisher = context.socket(zmq.XPUB)
        opened.append(publisher)
        publisher.linger = 0
        publisher.connect(last_endpoint(source.socket))
        await_subscription(publisher, source)
        return publisher

    yield connected
    for publisher in opened:
        publisher.close()


def last_endpoint(socket: Socket) -> str:
    endpoint = socket.last_endpoint
    assert isinstance(endpoint, bytes)
    return endpoint.decode()


def await_subscription(publisher: Socket, source: FrameSource) -> None:
    """Wait; after a bind or a reconnect a socket subscribes only when it is next asked for something."""
    end = time.monotonic() + PATIENCE_S
    while not publisher.poll(10):
        assert time.monotonic() < end, "no subscription"
        source.socket.poll(0)
    assert publisher.recv() == b"\x01frames"


def read(source: FrameSource, count: int, patience_s: float = PATIENCE_S) -> list[Frame]:
    """Frames until there are `count`."""
    frames: list[Frame] = []
    end = time.monotonic() + patience_s
    while len(frames) < count and time.monotonic() < end:
        source.socket.poll(20)
        frames += source.read(100)
    return frames


def test_frames_come_as_they_were_sent(source: FrameSource, publish: Publish) -> None:
    publisher = publish(source)
    for i in range(250):
        publisher.send_multipart([b"frames", ENCODER.encode(Frame(float(i), sequence=i))])
    assert [f.sequence for f in read(source, 250)] == list(range(250))
    publisher.send_multipart([b"frames", msgpack.packb({"timestamp": 1, "position": [1, 2.5], "name": ["a", "b"]})])
    (frame,) = read(source, 1)
    assert (frame.timestamp, frame.position, frame.name) == (1.0, (1.0, 2.5), ("a", "b"))
    assert source.read(100) == []
    assert sum(source.malformed.values()) == 0


def test_no_more_than_the_limit_is_taken(source: FrameSource, publish: Publish) -> None:
    publisher = publish(source)
    for body in (b"\xc1",) * 5 + (GOOD,) * 5:
        publisher.send_multipart([b"frames", body])
    time.sleep(0.2)
    assert [len(source.read(4)) for _ in range(4)] == [0, 3, 2, 0]
    assert source.malformed["not_messagepack"] == 5


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([b"frames"], "not_two_parts"),
        ([b"frames", GOOD, b""], "not_two_parts"),
        ([b"frames", GOOD] + [b"x"] * 200, "not_two_parts"),
        ([b"frames2", GOOD], "other_topic"),
        ([b"frames", b""], "not_messagepack"),
        ([b"frames", b"\xc1"], "not_messagepack"),
        ([b"frames", GOOD[:-3]], "not_messagepack"),
        ([b"frames", GOOD + b"\x00"], "not_messagepack"),
        ([b"frames", b"\x91" * 60000], "not_a_frame"),
        ([b"frames", b"\x82\xa9timestamp\xcb" + bytes(8) + b"\xa1x" + b"\x91" * 60000], "not_a_frame"),
        ([b"frames", b"\x82\xa9timestamp\xcb" + bytes(8) + b"\xa4name\x91\xa2\xff\xff"], "not_messagepack"),
        ([b"frames", msgpack.packb([1.0])], "not_a_frame"),
        ([b"frames", msgpack.packb({"position": [1.0]})], "not_a_frame"),
        ([b"frames", msgpack.packb({"timestamp": "1"})], "not_a_frame"),
        ([b"frames", msgpack.packb({"timestamp": 1.0, "posision": [1.0]})], "not_a_frame"),
        ([b"frames", msgpack.packb({"timestamp": 1.0, "name": [1]})], "not_a_frame"),
        ([b"frames", msgpack.packb({"timestamp": 1.0, "position": [None]})], "not_a_frame"),
        ([b"frames", msgpack.packb({1: 1.0})], "not_a_frame"),
    ],
)
def test_what_is_no_frame_is_counted_by_reason(
    source: FrameSource, publish: Publish, parts: list[bytes], reason: zmq_frames.Malformed
) -> None:
    publisher = publish(source)
    publisher.send_multipart(parts)
    publisher.send_multipart([b"frames", GOOD])
    (frame,) = read(source, 1)
    assert frame.sequence == 7
    assert source.malformed[reason] == sum(source.malformed.values()) == 1
    assert reason in source.last_fault
    assert len(source.last_fault) < 400


def test_random_bytes_never_get_through_or_out(source: FrameSource) -> None:
    """10,000 mutated frames: each decodes into a frame or is counted."""
    rng = np.random.default_rng(5)
    good = 0
    for _ in range(10_000):
        body = np.frombuffer(GOOD, np.uint8).copy()
        body[rng.integers(len(body), size=rng.integers(1, 7))] = rng.integers(256)
        good += source._decoded([b"frames", body[: rng.integers(1, len(body) + 1)].tobytes()]) is not None
    assert good + sum(source.malformed.values()) == 10_000


def test_an_oversize_frame_costs_only_its_sender_the_connection(source: FrameSource, publish: Publish) -> None:
    fine, greedy = publish(source), publish(source)
    greedy.send_multipart([b"frames", bytes(100_000)])
    fine.send_multipart([b"frames", GOOD])
    assert len(read(source, 1)) == 1
    assert sum(source.malformed.values()) == 0


def test_silence_is_told_in_seconds(context: zmq.Context[Socket], publish: Publish) -> None:
    now = 100.0
    config = ZmqFrames("tcp://127.0.0.1:*", bind=True)
    with closing(FrameSource(context, config, lambda: now)) as source:
        publisher = publish(source)
        assert source.silent_s(103.0) == 3.0
        now = 104.0
        publisher.send_multipart([b"frames", b"nonsense"])
        assert read(source, 1, 0.2) == []
        assert source.silent_s(105.0) == 5.0, "nonsense is silence"
        publisher.send_multipart([b"frames", GOOD])
        assert len(read(source, 1)) == 1
        assert source.silent_s(104.5) == 0.5


def test_a_source_may_come_later_and_come_back(context: zmq.Context[Socket], tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/frames"
    with closing(FrameSource(context, ZmqFrames(endpoint))) as source:
        for _ in range(2):
            publisher = context.socket(zmq.XPUB)
            publisher.linger = 0
            publisher.bind(endpoint)
            await_subscription(publisher, source)
            publisher.send_multipart([b"frames", GOOD])
            assert len(read(source, 1)) == 1
            publisher.close()
            time.sleep(0.2)  # in the background it removes the file of the endpoint


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            ZmqFrames("tcp://robot:5555"),
            "live.frames.endpoint = 'tcp://robot:5555': is on the network, .* allow_plaintext",
        ),
        (ZmqFrames("tcp://*:5555", bind=True), "live.frames.endpoint .* is on the network"),
        (ZmqFrames("tcp://0.0.0.0:5555", bind=True), "live.frames.endpoint .* is on the network"),
        (ZmqFrames("robot:5555"), "live.frames.endpoint = 'robot:5555': must be like tcp://127.0.0.1:5571"),
        (ZmqFrames("tcp://127.0.0.1:99999"), "live.frames.endpoint .* must be like"),
        (ZmqFrames("tcp://127.0.0.1:1\n"), "live.frames.endpoint .* must be like"),
        (ZmqFrames(topic=""), "live.frames.topic = '': must not be empty"),
        (ZmqFrames(secret_key=KEY), "live.frames.server_public_key = '': is needed with secret_key; name the file"),
        (ZmqFrames(server_public_key="robot.pub"), "live.frames.secret_key = '': is needed"),
        (ZmqFrames("tcp://127.0.0.1:0", secret_key=KEY, server_public_key="b"), "live.frames.endpoint"),
        (ZmqFrames(secret_key=KEY, server_public_key="b"), "robot.key: no such key file"),
        (ZmqFrames("ipc:///nowhere/at/all", bind=True), "live.frames.endpoint = 'ipc:///nowhere/at/all': .*; correct"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(context: zmq.Context[Socket], config: ZmqFrames, line: str) -> None:
    with pytest.raises(ConfigError, match=line) as caught:
        FrameSource(context, config)
    assert "\n" not in str(caught.value)


def test_plain_text_over_the_network_only_where_allowed(context: zmq.Context[Socket]) -> None:
    config = ZmqFrames("tcp://0.0.0.0:*", bind=True, allow_plaintext=True)
    assert config.exposed
    FrameSource(context, config).close()
    assert not ZmqFrames("tcp://127.0.0.1:1").exposed


def test_where_no_socket_is_left_it_does_not_start(two_sockets: zmq.Context[Socket]) -> None:
    taken = [two_sockets.socket(zmq.PAIR) for _ in range(2)]
    with pytest.raises(ConfigError, match=r"live.frames: no socket \(Too many open files\); raise the limit"):
        FrameSource(two_sockets, ZmqFrames("tcp://127.0.0.1:1"))
    for socket in taken:
        socket.close()


def test_a_port_that_is_taken(context: zmq.Context[Socket], source: FrameSource) -> None:
    with pytest.raises(ConfigError, match=r"Address already in use; stop what uses it, or choose another port"):
        FrameSource(context, ZmqFrames(last_endpoint(source.socket), bind=True))


@pytest.mark.parametrize(
    ("endpoint", "local"),
    [
        ("tcp://127.0.0.1:1", True),
        ("tcp://127.8.9.1:1", True),
        ("tcp://localhost:1", True),
        ("tcp://[::1]:1", True),
        ("ipc:///run/x", True),
        ("inproc://x", True),
        ("tcp://*:1", False),
        ("tcp://[::]:1", False),
        ("tcp://10.0.0.1:1", False),
        ("tcp://localhost.example:1", False),
        ("tcp://127.0.0.1.example:1", False),
        ("udp://127.0.0.1:1", False),
        ("tcp://10.0.0.2:1;127.0.0.1:1", False),
    ],
)
def test_what_only_this_machine_reaches(endpoint: str, local: bool) -> None:
    assert is_local(endpoint) == local


class TestKeys:
    """The source as a CURVE server that knows one reader."""

    @pytest.fixture
    def keys(self, tmp_path: Path) -> Path:
        for name in ("source", "robot", "stranger"):
            write_keys(tmp_path, name)
        return tmp_path

    @pytest.fixture
    def server(self, keys: Path) -> Iterator[Socket]:
        context: zmq.Context[Socket] = zmq.Context()
        self.allowed = {read_public(keys / "robot.pub")}
        zap = ThreadAuthenticator(context)
        zap.start()
        zap.configure_curve_callback("robot", credentials_provider=self)
        publisher = context.socket(zmq.XPUB)
        publisher.linger = 0
        publisher.curve_server, publisher.zap_domain = True, b"robot"
        publisher.curve_secretkey = read_secret(keys / "source.key").secret
        publisher.bind("tcp://127.0.0.1:*")
        yield publisher
        zap.stop()
        context.destroy(linger=0)

    def callback(self, domain: str, key: bytes) -> bool:
        return key in self.allowed

    def config(self, keys: Path, server: Socket, reader: str, source: str = "source") -> ZmqFrames:
        endpoint = last_endpoint(server)
        return ZmqFrames(
            endpoint, server_public_key=str(keys / f"{source}.pub"), secret_key=str(keys / f"{reader}.key")
        )

    def test_the_right_keys(self, context: zmq.Context[Socket], keys: Path, server: Socket) -> None:
        with closing(FrameSource(context, self.config(keys, server, "robot"))) as source:
            assert server.poll(PATIENCE_MS)
            server.send_multipart([b"frames", GOOD])
            assert len(read(source, 1)) == 1

    @pytest.mark.parametrize(("reader", "named"), [("stranger", "source"), ("robot", "stranger")])
    def test_the_wrong_ones_hear_nothing(
        self, context: zmq.Context[Socket], keys: Path, server: Socket, reader: str, named: str
    ) -> None:
        with closing(FrameSource(context, self.config(keys, server, reader, named))) as source:
            assert not server.poll(400)
            server.send_multipart([b"frames", GOOD])
            assert read(source, 1, 0.2) == []

    def test_plain_text_hears_nothing(self, context: zmq.Context[Socket], server: Socket) -> None:
        with closing(FrameSource(context, ZmqFrames(last_endpoint(server)))) as source:
            assert not server.poll(400)
            server.send_multipart([b"frames", GOOD])
            assert read(source, 1, 0.2) == []

    def test_a_reader_that_is_let_in_later(self, context: zmq.Context[Socket], keys: Path, server: Socket) -> None:
        now = 0.0
        self.allowed.clear()
        with closing(FrameSource(context, self.config(keys, server, "robot"), lambda: now)) as source:
            assert not server.poll(300)
            self.allowed.add(read_public(keys / "robot.pub"))
            before = source.socket
            assert not source.reopen_if_denied(9.0)
            assert source.reopen_if_denied(10.5)
            assert source.socket is not before
            assert before.closed
            assert not source.reopen_if_denied(25.0), "it waits longer each time"
            assert server.poll(PATIENCE_MS)
            server.send_multipart([b"frames", GOOD])
            assert len(read(source, 1)) == 1

    def test_where_no_socket_is_left_it_stays_and_tries_again(
        self, two_sockets: zmq.Context[Socket], keys: Path, server: Socket
    ) -> None:
        now = 0.0
        self.allowed.clear()
        taken = two_sockets.socket(zmq.PAIR)
        with closing(FrameSource(two_sockets, self.config(keys, server, "robot"), lambda: now)) as source:
            assert not server.poll(300)
            before = source.socket
            assert not source.reopen_if_denied(10.5)
            assert source.last_fault == "live.frames: no socket (Too many open files); raise the limit of open files"
            assert source.socket is before
            assert source.read(9) == []
            self.allowed.add(read_public(keys / "robot.pub"))
            taken.close()
            assert not source.reopen_if_denied(25.0), "it waits longer each time"
            time.sleep(0.2)  # in the background it gives the socket back
            assert source.reopen_if_denied(31.0)
            assert before.closed
            assert server.poll(PATIENCE_MS)
            server.send_multipart([b"frames", GOOD])
            assert len(read(source, 1)) == 1

    def test_a_key_that_others_can_read(self, context: zmq.Context[Socket], keys: Path, server: Socket) -> None:
        (keys / "robot.key").chmod(0o644)
        with pytest.raises(ConfigError, match="mode 0644"):
            FrameSource(context, self.config(keys, server, "robot"))
