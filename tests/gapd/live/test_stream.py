"""The stream out, read as PlotJuggler reads it; and nobody else may listen from elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq

from gapd.errors import ConfigError
from gapd.keys import read_public, read_secret, write_keys
from gapd.live.stream import HIGH_WATER, Publisher, RemoteStream
from gapd.live_config import Stream
from gapd.measured.frame_rows import Row
from gapd.model.robot import Robot

PATIENCE_S = 5.0
ANY = "tcp://127.0.0.1:*"
KEY = "robot.key"

Socket = zmq.Socket[bytes]


def endpoint(publisher: Publisher, outlet: int = 0) -> str:
    name = publisher._outlets[outlet].socket.last_endpoint
    assert isinstance(name, bytes)
    return name.decode()


def row(timestamp: float, position: float = 0.1) -> Row:
    measured = np.array([position, math.nan, math.inf])
    return Row(timestamp, measured, np.array([0.3]), np.empty(0), restarted=False)


def plotjuggler(parts: list[bytes]) -> tuple[str, float, dict[str, Any]]:
    """Topic, time and values; what its subscriber would drop fails here."""
    topic, body = parts
    message = msgpack.unpackb(body, strict_map_key=True)
    timestamp = message.pop("timestamp")
    assert isinstance(timestamp, float)
    for key, value in message.items():
        assert isinstance(key, str)
        assert isinstance(value, bool | int | float)
        assert math.isfinite(value)
    return topic.decode(), timestamp, message


def heard(subscriber: Socket, say: Callable[[], None], patience_s: float = PATIENCE_S) -> list[bytes]:
    """What the subscriber hears while it is said again and again; nothing if it never hears anything."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        say()
        if subscriber.poll(20):
            return subscriber.recv_multipart()
    return []


@pytest.fixture
def context() -> Iterator[zmq.Context[Socket]]:
    made: zmq.Context[Socket] = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def subscribe(context: zmq.Context[Socket]) -> Iterator[Callable[..., Socket]]:
    opened: list[Socket] = []

    def connected(to: str, **options: bytes) -> Socket:
        subscriber = context.socket(zmq.SUB)
        opened.append(subscriber)
        for name, value in options.items():
            setattr(subscriber, name, value)
        subscriber.subscribe(b"")
        subscriber.connect(to)
        return subscriber

    yield connected
    for socket in opened:
        socket.close()


@pytest.fixture
def publisher(tiny: Robot) -> Iterator[Publisher]:
    with closing(Publisher(tiny, Stream(ANY, frames_every=5))) as opened:
        yield opened


def test_every_topic_as_plotjuggler_reads_it(publisher: Publisher, subscribe: Callable[..., Socket]) -> None:
    subscriber = subscribe(endpoint(publisher))
    assert heard(subscriber, lambda: publisher.level(0.0, 0, {}))
    while subscriber.poll(100):
        subscriber.recv_multipart()
    publisher.frame(row(1.5))
    publisher.gaps(2.0, np.array([1.5, math.nan, np.float32(2.0)]), 1.25)
    publisher.estimates(3.0, [4.0, 0.05, 0.03, 0.01], np.array([0.1, math.nan, 0.1, 0.1]))
    publisher.verdict(4.0, "correct", accepted=True, floors_before=9.0, floors_after=math.inf, windows=20)
    publisher.level(5.0, 3, {"frames": 7})
    said = []
    for _ in range(5):
        assert subscriber.poll(PATIENCE_S * 1000)  # type: ignore[arg-type]
        said.append(plotjuggler(subscriber.recv_multipart()))
    actions = {"hold": False, "correct": True, "reject": False, "escalate": False}
    assert said == [
        ("frames", 1.5, {"j/position": 0.1, "command/servo": 0.3}),
        ("gaps", 2.0, {"j/position": 1.5, "j/effort": 2.0, "floors": 1.25}),
        (
            "estimates",
            3.0,
            {
                "actuator/servo/kp": 4.0, "actuator/servo/kp/sd": 0.1, "joint/j/damping": 0.05,
                "joint/j/frictionloss": 0.03, "joint/j/frictionloss/sd": 0.1,
                "joint/j/armature": 0.01, "joint/j/armature/sd": 0.1,
            },
        ),
        ("verdict", 4.0, actions | {"accepted": True, "floors_before": 9.0, "windows": 20}),
        ("level", 5.0, {"level": 3, "frames": 7}),
    ]  # fmt: skip


@pytest.mark.parametrize(("every", "count"), [(1, 100), (5, 20), (7, 15), (0, 0)])
def test_frames_are_thinned_out(tiny: Robot, monkeypatch: pytest.MonkeyPatch, every: int, count: int) -> None:
    with closing(Publisher(tiny, Stream(ANY, frames_every=every))) as publisher:
        sent: list[float] = []
        monkeypatch.setattr(publisher, "_publish", lambda _topic, timestamp, *_: sent.append(timestamp))
        for i in range(100):
            publisher.frame(row(i / 100))
        assert len(sent) == count


def test_a_subscriber_that_does_not_read_holds_nobody_up(
    publisher: Publisher, subscribe: Callable[..., Socket]
) -> None:
    slow, quick = (subscribe(endpoint(publisher)) for _ in range(2))
    for subscriber in (slow, quick):
        assert heard(subscriber, lambda: publisher.level(0.0, 0, {}))
    counters = {f"counter_{i}": i for i in range(500)}
    began, heard_by_quick = time.monotonic(), 0
    for i in range(3 * HIGH_WATER):
        publisher.level(float(i), 0, counters)
        while quick.poll(0):
            quick.recv_multipart()
            heard_by_quick += 1
    assert time.monotonic() - began < 10.0
    assert heard_by_quick > 100


def test_without_subscribers_nothing_waits(publisher: Publisher) -> None:
    began = time.monotonic()
    for i in range(5000):
        publisher.frame(row(i / 1000))
    assert time.monotonic() - began < 3.0
    assert publisher.dropped == 0


@pytest.mark.parametrize("to", ["tcp://*:9872", "tcp://0.0.0.0:9872", "tcp://192.168.1.5:9872", "tcp://[::]:9872"])
def test_plain_text_never_leaves_this_computer(tiny: Robot, to: str) -> None:
    with pytest.raises(ConfigError, match=r"live\.stream\.endpoint = .* is on the network, .* \[live\.remote_stream\]"):
        Publisher(tiny, Stream(to))


@pytest.mark.parametrize(
    ("remote", "line"),
    [
        (RemoteStream(ANY, KEY, ()), r"live\.remote_stream\.allowed = \(\): lets nobody in; name the \.pub files"),
        (RemoteStream("robot", KEY, ("a.pub",)), r"live\.remote_stream\.endpoint = 'robot': must be like"),
        (RemoteStream(ANY, "", ("a.pub",)), r"live\.remote_stream\.secret_key = '': must not be empty"),
        (RemoteStream(ANY, KEY, ("a.pub",), -1), r"live\.remote_stream\.frames_every = -1: must be"),
        (RemoteStream(ANY, KEY, ("a.pub",)), r"robot\.key: no such key file"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(tiny: Robot, remote: RemoteStream, line: str) -> None:
    with pytest.raises(ConfigError, match=line) as caught:
        Publisher(tiny, Stream(ANY), remote)
    assert "\n" not in str(caught.value)


def test_ports_that_are_taken(tiny: Robot, publisher: Publisher) -> None:
    with pytest.raises(ConfigError, match=r"live\.stream\.endpoint .*: Address already in use; stop what uses it"):
        Publisher(tiny, Stream(endpoint(publisher)))


def test_over_ipc(tiny: Robot, tmp_path: Path, subscribe: Callable[..., Socket]) -> None:
    with closing(Publisher(tiny, Stream(f"ipc://{tmp_path}/stream"))) as publisher:
        assert heard(subscribe(f"ipc://{tmp_path}/stream"), lambda: publisher.level(0.0, 1, {}))


class TestRemote:
    """A second socket, with CURVE, for those whose keys are known."""

    @pytest.fixture
    def keys(self, tmp_path: Path) -> Path:
        for name in ("robot", "viewer", "stranger"):
            write_keys(tmp_path, name)
        return tmp_path

    @pytest.fixture
    def remote(self, keys: Path, tiny: Robot) -> Iterator[Publisher]:
        config = RemoteStream(ANY, str(keys / "robot.key"), (str(keys / "viewer.pub"),))
        with closing(Publisher(tiny, Stream(ANY), config)) as opened:
            yield opened

    def options(self, keys: Path, viewer: str, server: str = "robot") -> dict[str, bytes]:
        pair = read_secret(keys / f"{viewer}.key")
        return {
            "curve_publickey": pair.public,
            "curve_secretkey": pair.secret,
            "curve_serverkey": read_public(keys / f"{server}.pub"),
        }

    def test_who_is_allowed_hears_both_or_one(
        self, keys: Path, remote: Publisher, subscribe: Callable[..., Socket]
    ) -> None:
        viewer = subscribe(endpoint(remote, 1), **self.options(keys, "viewer"))
        assert plotjuggler(heard(viewer, lambda: remote.level(1.0, 2, {}))) == ("level", 1.0, {"level": 2})
        assert heard(subscribe(endpoint(remote)), lambda: remote.level(1.0, 2, {}))

    @pytest.mark.parametrize(("viewer", "server"), [("stranger", "robot"), ("viewer", "stranger")])
    def test_the_wrong_keys_hear_nothing(
        self, keys: Path, remote: Publisher, subscribe: Callable[..., Socket], viewer: str, server: str
    ) -> None:
        stranger = subscribe(endpoint(remote, 1), **self.options(keys, viewer, server))
        assert heard(stranger, lambda: remote.level(1.0, 2, {}), 0.6) == []

    def test_plain_text_hears_nothing(self, remote: Publisher, subscribe: Callable[..., Socket]) -> None:
        assert heard(subscribe(endpoint(remote, 1)), lambda: remote.level(1.0, 2, {}), 0.6) == []

    def test_a_key_that_others_can_read(self, keys: Path, tiny: Robot) -> None:
        (keys / "robot.key").chmod(0o640)
        with pytest.raises(ConfigError, match="mode 0640"):
            Publisher(tiny, Stream(ANY), RemoteStream(ANY, str(keys / "robot.key"), (str(keys / "viewer.pub"),)))
