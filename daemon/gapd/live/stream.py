"""Stream out: what the daemon sees and decides, for PlotJuggler and whoever else subscribes.

Each message is exactly two parts `[topic, one msgpack map]` with flat string keys, plain numbers and bools, and float
seconds under `timestamp`; PlotJuggler drops everything else without a word. Values that are not finite are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgpack
import zmq
from zmq.auth.thread import ThreadAuthenticator

from gapd.errors import ConfigError
from gapd.keys import read_public, read_secret
from gapd.live_config import RemoteStream, Stream, endpoint_fault, is_local
from gapd.measured.frame_rows import Row
from gapd.model.robot import Robot
from gapd.sources.zmq_frames import attach, limit

Topic = Literal["frames", "gaps", "estimates", "verdict", "level"]
Number = float | int | bool

# Messages that wait for a slow subscriber; those after them are dropped for it alone.
HIGH_WATER = 1000
DOMAIN = "gapd-stream"
EXPOSED = "is on the network, where anybody can listen; bind 127.0.0.1, and give others a [live.remote_stream]"


class Publisher:
    """The sockets of the stream. Nothing here ever waits: without subscribers messages are dropped at once."""

    def __init__(self, robot: Robot, plain: Stream, remote: RemoteStream | None = None) -> None:
        """Bind. ConfigError for a wrong table, keys that cannot be used, an address that is taken."""
        layout = robot.layout
        commands = [f"command/{name}" for name in layout.actuators]
        context = [f"context/{name}" for name in robot.config.context_names]
        self._frame_keys = (*layout.channels, *commands, *context)
        self._gap_keys = layout.channels
        self._names = robot.parameters.names
        self._outlets: list[_Outlet] = []
        try:
            self._outlets.append(_PlainOutlet(plain))
            if remote is not None:
                self._outlets.append(_CurveOutlet(remote))
        except ConfigError:
            self.close()
            raise

    @property
    def dropped(self) -> int:
        """Messages that no socket took; those dropped for one slow subscriber are not known."""
        return sum(outlet.dropped for outlet in self._outlets)

    def frame(self, row: Row) -> None:
        """Publish a validated frame, if one is due: channels by name, `command/...`, `context/...`."""
        due = [outlet for outlet in self._outlets if outlet.due()]
        if due:
            values = (*row.measured.tolist(), *row.command.tolist(), *row.context.tolist())
            self._publish("frames", row.timestamp, dict(zip(self._frame_keys, values, strict=True)), due)

    def gaps(self, timestamp: float, gap: Iterable[float], floors: float) -> None:
        """Publish RMS gaps (C,) of a window in noise, by channel, and over all in commissioned floors."""
        values = dict(zip(self._gap_keys, map(float, gap), strict=True))
        self._publish("gaps", timestamp, values | {"floors": floors})

    def estimates(self, timestamp: float, value: Iterable[float], sd: Iterable[float]) -> None:
        """Publish physical values (P,) by parameter, and their standard deviations under `.../sd`."""
        values = dict(zip(self._names, map(float, value), strict=True))
        spread = dict(zip((f"{name}/sd" for name in self._names), map(float, sd), strict=True))
        self._publish("estimates", timestamp, values | spread)

    def verdict(
        self, timestamp: float, action: str, *, accepted: bool, floors_before: float, floors_after: float, windows: int
    ) -> None:
        """Publish what a fit has led to; `action` is hold, correct, reject or escalate and comes as one bool each."""
        actions = {name: name == action for name in ("hold", "correct", "reject", "escalate")}
        numbers = {
            "accepted": accepted,
            "floors_before": floors_before,
            "floors_after": floors_after,
            "windows": windows,
        }
        self._publish("verdict", timestamp, actions | numbers)

    def level(self, timestamp: float, level: int, counters: Mapping[str, int]) -> None:
        """Publish the level, 0 OK to 3 STALE, and the counters."""
        self._publish("level", timestamp, {"level": int(level), **counters})

    def close(self) -> None:
        """Close the sockets."""
        for outlet in self._outlets:
            outlet.close()

    def _publish(
        self, topic: Topic, timestamp: float, values: Mapping[str, Number], to: list[_Outlet] | None = None
    ) -> None:
        parts = [topic.encode(), pack(timestamp, values)]
        for outlet in self._outlets if to is None else to:
            outlet.send(parts)


def pack(timestamp: float, values: Mapping[str, Number]) -> bytes:
    """One map as PlotJuggler reads it: `timestamp` and the finite values."""
    finite = {key: value for key, value in values.items() if math.isfinite(value)}
    packed: bytes = msgpack.packb({**finite, "timestamp": float(timestamp)})
    return packed


class _Outlet:
    """One PUB socket, which takes one frame in `every`."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], every: int) -> None:
        self._context = context
        self.socket = context.socket(zmq.PUB)
        limit(self.socket, HIGH_WATER)
        self.dropped = 0
        self._every, self._frames = every, -1

    def due(self) -> bool:
        """Count a frame, and tell whether it is one of those to be sent."""
        self._frames += 1
        return self._every > 0 and self._frames % self._every == 0

    def send(self, parts: list[bytes]) -> None:
        try:
            self.socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            self.dropped += 1

    def close(self) -> None:
        self._context.destroy(linger=0)


class _PlainOutlet(_Outlet):
    def __init__(self, config: Stream) -> None:
        fault = endpoint_fault(config.endpoint) or ("" if is_local(config.endpoint) else EXPOSED)
        if fault:
            raise ConfigError(f"live.stream.endpoint = {config.endpoint!r}: {fault}")
        super().__init__(zmq.Context(), config.frames_every)
        _bind(self, "live.stream.endpoint", config.endpoint)


class _CurveOutlet(_Outlet):
    """A context of its own: there is one authenticator per context, and this one knows only who may listen."""

    def __init__(self, config: RemoteStream) -> None:
        key, fault = config.fault()
        if fault:
            raise ConfigError(f"live.remote_stream.{key} = {getattr(config, key)!r}: {fault}")
        pair = read_secret(Path(config.secret_key))
        self._allowed = frozenset(read_public(Path(path)) for path in config.allowed)
        super().__init__(zmq.Context(), config.frames_every)
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(DOMAIN, credentials_provider=self)
        self.socket.curve_server, self.socket.zap_domain = True, DOMAIN.encode()
        self.socket.curve_publickey, self.socket.curve_secretkey = pair.public, pair.secret
        _bind(self, "live.remote_stream.endpoint", config.endpoint)

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether the owner of the key (Z85) may subscribe."""
        return domain == DOMAIN and key in self._allowed

    def close(self) -> None:
        with suppress(zmq.ZMQError):
            self._authenticator.stop()
        super().close()


def _bind(outlet: _Outlet, key: str, endpoint: str) -> None:
    try:
        attach(outlet.socket, key, endpoint, bind=True)
    except ConfigError:
        outlet.close()
        raise
