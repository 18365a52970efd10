"""One CURVE connection to the host on one socket, which never reconnects by itself, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator

import zmq
from zmq.utils.monitor import parse_monitor_message

from gapd.keys import KeyPair
from gapd.messages import link as wire

# Times in seconds. Either end speaks at least every HEARTBEAT_S; after SILENCE_S the other end counts as dead.
HEARTBEAT_S, SILENCE_S = 2.0, 10.0
# A handshake, and anything else that is asked, is answered within this time or not at all.
ANSWER_S = 5.0
# Messages handled in one step, so that it stays short.
BATCH = 64

UNREACHABLE = "start gaptrain host there, or correct link.endpoint"
OTHER_KEY = "if this goes on, its key is not the one in {file}, or it is no gaptrain host: copy its public key again"
FAILURES = {
    zmq.EVENT_CLOSED: ("nothing listens there", UNREACHABLE),
    zmq.EVENT_DISCONNECTED: ("the connection broke", "none needed, it is made again"),
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: ("the host broke off the handshake", OTHER_KEY),
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: ("what answers does not speak CURVE", "correct link.endpoint"),
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: ("the host does not know this robot's key", "enrol public key {key} on the host"),
}


class Connection:
    """One CURVE connection to the host, from its Hello to its end. ZMQError if it cannot even begin."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: KeyPair, server: bytes) -> None:
        self.socket = context.socket(zmq.DEALER)
        self._monitor: zmq.Socket[bytes] | None = None
        try:
            self._begin(endpoint, keys, server)
        except zmq.ZMQError:
            self.close()
            raise

    def _begin(self, endpoint: str, keys: KeyPair, server: bytes) -> None:
        socket = self.socket
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.SNDHWM, 2 * BATCH),
            (zmq.RCVHWM, 2 * BATCH),
            (zmq.MAXMSGSIZE, wire.MAX_BYTES),
            (zmq.HEARTBEAT_IVL, int(HEARTBEAT_S * 1000)),
            (zmq.HEARTBEAT_TIMEOUT, int(SILENCE_S * 1000)),
            (zmq.HANDSHAKE_IVL, int(ANSWER_S * 1000)),
            (zmq.CONNECT_TIMEOUT, int(ANSWER_S * 1000)),
            (zmq.RECONNECT_IVL, -1),  # never: see the head of hostlink.py
        ):
            socket.setsockopt(option, value)
        socket.curve_publickey, socket.curve_secretkey, socket.curve_serverkey = keys.public, keys.secret, server
        self._monitor = socket.get_monitor_socket(sum(FAILURES))
        self._monitor.linger = 0
        socket.connect(endpoint)

    def send(self, message: wire.FromRobot) -> bool:
        """Whether there was room to send it."""
        try:
            self.socket.send(wire.ENCODER.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> Iterator[list[bytes]]:
        """The frames of each message that has come, BATCH at most."""
        for _ in range(BATCH):
            try:
                yield self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return

    def failure(self) -> tuple[str, str] | None:
        """Reason and remedy once the connection has ended or never came about."""
        if self._monitor is None:
            return None
        try:
            event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            return None
        return FAILURES[zmq.Event(event["event"])]

    def close(self) -> None:
        if self._monitor is not None:
            self.socket.disable_monitor()
            self._monitor.close()
        self.socket.close()
