"""Who may come in: answers ZeroMQ's authentication requests (ZAP, RFC 27) from the keys of enrolled robots."""

from __future__ import annotations

import os
from collections.abc import Mapping

import zmq
import zmq.utils.z85

from gapd.keys import KeyPair
from gapd.messages.link import MAX_BYTES
from gaptrain.host.database import HostError
from gaptrain.host.refusals import Refusals
from gaptrain.host.registry import Enrolled
from gaptrain.host.rows import DamagedError

DOMAIN = b"gapd"
_ENDPOINT = "inproc://zeromq.zap.01"
# Strangers who keep asking must not keep the loop from the robots.
MOST_AT_ONCE = 32
_OK, _DENIED = b"200", b"400"


class Door:
    """The ZAP handler of one context, served from the service's own loop. Open it before the ROUTER is bound."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], refusals: Refusals) -> None:
        """Listen for requests of this context's sockets."""
        self.socket = context.socket(zmq.REP)
        self.socket.set(zmq.LINGER, 0)
        self.socket.bind(_ENDPOINT)
        self._refusals = refusals
        self._robots: Mapping[str, Enrolled] = {}
        self._damaged: Mapping[str, DamagedError] = {}

    def admit(self, robots: Mapping[str, Enrolled], damaged: Mapping[str, DamagedError]) -> None:
        """Let in these robots, by public key (Z85), unless they are revoked; not those whose row cannot be read."""
        self._robots, self._damaged = robots, damaged

    def answer(self) -> None:
        """Answer what has come, some at most; a robot's user id is its public key."""
        for _ in range(MOST_AT_ONCE):
            if not self.socket.poll(0):
                return
            self._answer(self.socket.recv_multipart())

    def _answer(self, request: list[bytes]) -> None:
        if len(request) != 7:
            return self._reply(request[1] if len(request) > 1 else b"", _DENIED, b"")
        _, number, domain, address, _, mechanism, credential = request
        key = ""
        if mechanism == b"CURVE" and len(credential) == 32 and domain == DOMAIN:
            key = zmq.utils.z85.encode(credential).decode()
        robot = self._robots.get(key)
        if robot is not None and robot.revoked is None:
            return self._reply(number, _OK, key.encode())
        self._deny(robot, key, address.decode(errors="replace"))
        return self._reply(number, _DENIED, b"")

    def _deny(self, robot: Enrolled | None, key: str, address: str) -> None:
        if robot is not None:
            remedy = f"enrol it again if it may come back: gaptrain enrol {robot.name} ..."
            self._refusals.note("key_revoked", robot.name, remedy)
        elif key in self._damaged:
            self._refusals.note("damaged", self._damaged[key].robot, str(self._damaged[key]))
        else:
            remedy = f"from {address}; if it is one of yours: gaptrain enrol NAME --config robot.toml --key robot.pub"
            self._refusals.note("key_unknown", key, remedy)

    def _reply(self, number: bytes, status: bytes, user: bytes) -> None:
        self.socket.send_multipart([b"1.0", number, status, b"", user, b""])


def listen(context: zmq.Context[zmq.Socket[bytes]], bind: str, keys: KeyPair) -> zmq.Socket[bytes]:
    """The robots' ROUTER at an address; HostError if it is taken. Open the door first."""
    router = context.socket(zmq.ROUTER)
    for option, value in (
        (zmq.LINGER, 0), (zmq.SNDHWM, 1000), (zmq.RCVHWM, 1000), (zmq.MAXMSGSIZE, MAX_BYTES), (zmq.BACKLOG, 1024),
        (zmq.HEARTBEAT_IVL, 2000), (zmq.HEARTBEAT_TIMEOUT, 10000), (zmq.HANDSHAKE_IVL, 10000),
        (zmq.RECONNECT_IVL_MAX, 5000), (zmq.ROUTER_MANDATORY, 1), (zmq.CURVE_SERVER, 1),
        (zmq.CURVE_SECRETKEY, keys.secret), (zmq.CURVE_PUBLICKEY, keys.public), (zmq.ZAP_DOMAIN, DOMAIN),
    ):  # fmt: skip
        router.set(option, value)
    try:
        router.bind(bind)
    except zmq.ZMQError as error:
        router.close()
        taken = error.errno == zmq.EADDRINUSE
        why = "stop what uses it, or give another --bind" if taken else "give --bind like tcp://127.0.0.1:5590"
        raise HostError(f"{bind}: {os.strerror(error.errno or 0)}; {why}") from None
    return router
