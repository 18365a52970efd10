"""Frames from a running robot: a SUB socket that takes `[topic, msgpack map]`, and drops and counts everything else."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

import msgspec
import zmq

from gapd.errors import ConfigError, printable
from gapd.keys import KeyPair, read_public, read_secret
from gapd.live_config import ZmqFrames
from gapd.messages import frames as wire

Context = zmq.Context[zmq.Socket[bytes]]
Malformed = Literal["not_two_parts", "other_topic", "not_messagepack", "not_a_frame"]

MAX_BYTES = 65536
# Frames that wait while the daemon is busy: 10 s at 1 kHz.
HIGH_WATER = 10_000
# A connection that was denied once stays dead, also when the robot takes the key later: make another one.
FIRST_REOPEN_S, LAST_REOPEN_S = 10.0, 60.0
LONGEST_FAULT = 200


def limit(socket: zmq.Socket[bytes], high_water: int) -> None:
    """Bound what a socket keeps, takes and waits for."""
    for option, value in (
        (zmq.LINGER, 0), (zmq.SNDHWM, high_water), (zmq.RCVHWM, high_water), (zmq.MAXMSGSIZE, MAX_BYTES),
        (zmq.HEARTBEAT_IVL, 2000), (zmq.HEARTBEAT_TIMEOUT, 10000), (zmq.HANDSHAKE_IVL, 10000),
        (zmq.RECONNECT_IVL, 100), (zmq.RECONNECT_IVL_MAX, 5000),
    ):  # fmt: skip
        socket.set(option, value)


def attach(socket: zmq.Socket[bytes], key: str, endpoint: str, *, bind: bool) -> None:
    """Bind or connect, or raise ConfigError naming the key of robot.toml."""
    if "[" in endpoint:
        socket.set(zmq.IPV6, 1)
    try:
        (socket.bind if bind else socket.connect)(endpoint)
    except zmq.ZMQError as error:
        socket.close()
        taken = error.errno == zmq.EADDRINUSE
        remedy = "stop what uses it, or choose another port" if taken else "correct the address"
        raise ConfigError(f"{key} = {endpoint!r}: {os.strerror(error.errno or 0)}; {remedy}") from None


class FrameSource:
    """Reads frames of one robot without ever waiting.

    `malformed` counts what was dropped; `last_fault` says why, or why there is no other connection.
    """

    def __init__(self, context: Context, config: ZmqFrames, clock: Callable[[], float] = time.monotonic) -> None:
        """Open the socket. ConfigError for a wrong table, keys that cannot be used, an address that is taken."""
        key, fault = config.fault()
        if fault:
            raise ConfigError(f"live.frames.{key} = {getattr(config, key)!r}: {fault}")
        self.malformed: dict[Malformed, int] = dict.fromkeys(get_args(Malformed), 0)
        self.last_fault = ""
        self._context, self._config, self._clock = context, config, clock
        self._topic = config.topic.encode()
        self._keys: tuple[KeyPair, bytes] | None = None
        if config.encrypted:
            self._keys = read_secret(Path(config.secret_key)), read_public(Path(config.server_public_key))
        self.socket = self._open()
        self._heard_s = self._opened_s = clock()
        self._reopen_s = FIRST_REOPEN_S

    def _open(self) -> zmq.Socket[bytes]:
        try:
            socket = self._context.socket(zmq.SUB)
        except zmq.ZMQError as error:
            raise ConfigError(f"live.frames: no socket ({error.strerror}); raise the limit of open files") from None
        limit(socket, HIGH_WATER)
        socket.subscribe(self._topic)
        if self._keys is not None:
            pair, server = self._keys
            socket.curve_publickey, socket.curve_secretkey, socket.curve_serverkey = pair.public, pair.secret, server
        attach(socket, "live.frames.endpoint", self._config.endpoint, bind=self._config.bind)
        return socket

    def read(self, limit: int) -> list[wire.Frame]:
        """Frames that have come, in order; at most `limit` messages are taken, malformed ones among them."""
        frames: list[wire.Frame] = []
        for _ in range(limit):
            try:
                parts = self._receive()
            except zmq.Again:
                break
            frame = self._decoded(parts)
            if frame is not None:
                frames.append(frame)
        if frames:
            self._heard_s, self._reopen_s = self._clock(), FIRST_REOPEN_S
        return frames

    def silent_s(self, now_s: float) -> float:
        """Seconds since the last frame, or since the start, at monotonic time now_s."""
        return max(0.0, now_s - self._heard_s)

    def reopen_if_denied(self, now_s: float) -> bool:
        """Make another connection if this one, encrypted, has long been silent; True if `socket` is another one.

        Where that fails the present one stays, `last_fault` says why, and it is tried again after a longer while.
        """
        silent = now_s - max(self._heard_s, self._opened_s)
        if self._keys is None or self._config.bind or silent < self._reopen_s:
            return False
        self._opened_s, self._reopen_s = now_s, min(2 * self._reopen_s, LAST_REOPEN_S)
        try:
            another = self._open()
        except ConfigError as error:
            self.last_fault = str(error)
            return False
        self.socket.close()
        self.socket = another
        return True

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def _receive(self) -> list[bytes]:
        """The parts of a message, no more than three however many there are."""
        parts = [self.socket.recv(zmq.NOBLOCK)]
        while self.socket.get(zmq.RCVMORE):
            part = self.socket.recv(zmq.NOBLOCK)
            if len(parts) < 3:
                parts.append(part)
        return parts

    def _decoded(self, parts: list[bytes]) -> wire.Frame | None:
        fault: tuple[Malformed, str]
        try:
            if len(parts) == 2 and parts[0] == self._topic:
                return wire.DECODER.decode(parts[1])
            fault = ("other_topic", repr(parts[0][:40])) if len(parts) == 2 else ("not_two_parts", str(len(parts)))
        except msgspec.ValidationError as error:
            fault = "not_a_frame", str(error)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            fault = "not_messagepack", str(error)
        self.malformed[fault[0]] += 1
        self.last_fault = printable(f"{fault[0]}: {fault[1][:LONGEST_FAULT]}; send [topic, msgpack map of one frame]")
        return None
