"""The robot's end of the host link: sends what waits in the outbox, each message until the host has committed it.

`HostLink` never blocks: the daemon's loop polls its socket and calls `step`. One connection lives on one socket, which
never reconnects by itself: what was sent before a break must not be followed by what comes after it, because the host
takes any sequence above its last one.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import assert_never

import msgspec
import numpy as np
import zmq

from gapd import __version__
from gapd.errors import InputError, printable
from gapd.keys import read_public, read_secret
from gapd.link.connection import HEARTBEAT_S, Connection
from gapd.link.conversation import Conversation
from gapd.link.link_events import (
    Acknowledged,
    CandidateOffered,
    Connected,
    Disconnected,
    Event,
    EvidenceWanted,
    LinkStatus,
    Refused,
    Rejected,
)
from gapd.link.outbox import Outbox
from gapd.live_config import Link
from gapd.messages import link as wire

# Waits between connections double from the first to the second; a refused Hello waits for a person.
FIRST_RETRY_S, LAST_RETRY_S, REFUSED_RETRY_S = 0.5, 30.0, 60.0
LARGEST_INTEGER = 2**63 - 1
LONGEST_TEXT = 500


class HostLink:
    """The link of one robot; `level` is what its heartbeats say of the robot, `dropped` counts nonsense of the host."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        config: Link,
        outbox: Outbox,
        parameters: str,
        count: int,
        rng: np.random.Generator,
    ) -> None:
        """Read the keys; nothing is sent before the first step.

        parameters is the fingerprint of the robot's P = count parameters, rng spreads the attempts of many robots.
        The paths of the keys are absolute. Raises ConfigError for keys missing, malformed or readable by others.
        """
        self._keys, self._server = read_secret(Path(config.secret_key)), read_public(Path(config.server_public_key))
        self._context, self._config, self._outbox, self._rng = context, config, outbox, rng
        self._robot, self._parameters, self._count = config.name, parameters, count
        self._talk: Conversation | None = None
        self._events: list[Event] = []
        self._said: set[Event] = set()
        self._error, self._failures, self._retry_s = "", 0, -math.inf
        self.version = self.level = self.dropped = 0

    @property
    def socket(self) -> zmq.Socket[bytes] | None:
        """What to poll for input, None between connections; another one after each, so ask before each poll."""
        return self._talk.connection.socket if self._talk else None

    @property
    def up(self) -> bool:
        """Whether the host has answered on the present connection."""
        return self._talk is not None and self._talk.up

    def step(self, now_s: float) -> list[Event]:
        """Handle what came, notice what did not, send what is due; now_s is monotonic.

        Call it when the socket has input and at least every 0.1 s. Raises OutboxError where the outbox does.
        """
        if self._talk is not None:
            self._attend(self._talk, now_s)
        elif now_s >= self._retry_s:
            self._connect(now_s)
        if self._talk is not None and self._talk.up and not self._is_new_outbox(self._talk):
            self._send_due(self._talk, now_s)
        events, self._events = self._events, []
        return events

    def send_chunk(self, chunk: wire.Chunk) -> bool:
        """Send evidence; False without a link, the host then asks again. At most CHUNK_BYTES of data."""
        if len(chunk.data) > wire.CHUNK_BYTES:
            raise InputError(f"chunk of {len(chunk.data)} bytes is too large; send at most {wire.CHUNK_BYTES}")
        return self._talk is not None and self._talk.up and self._talk.connection.send(chunk)

    def status(self, timestamp: float) -> LinkStatus:
        """The state at `timestamp`, seconds of the robot's clock. Raises OutboxError where the outbox does."""
        oldest = self._outbox.pending(1)
        age_s = max(0.0, timestamp - oldest[0][1].timestamp) if oldest else 0.0
        return LinkStatus(
            self.up,
            self._config.endpoint,
            len(self._outbox),
            age_s,
            self._error,
            self.version,
            self.dropped,
            self._outbox.corrupt,
        )

    def close(self) -> None:
        """Close the sockets; what is not acknowledged stays in the outbox."""
        if self._talk is not None:
            self._talk.connection.close()
        self._talk = None

    def _is_new_outbox(self, talk: Conversation) -> bool:
        """Whether the outbox began anew since Hello: its sequences then mean nothing in the present epoch."""
        return self._outbox.id != talk.outbox

    def _connect(self, now_s: float) -> None:
        try:
            connection = Connection(self._context, self._config.endpoint, self._keys, self._server)
        except zmq.ZMQError as error:
            self._drop(f"no socket ({error.strerror})", "check link.endpoint and the limit of open files", now_s)
            return
        self._talk = Conversation(connection, self._outbox.id, heard_s=now_s, spoke_s=now_s)
        connection.send(wire.Hello(wire.PROTOCOL, self._robot, self._outbox.id, self._parameters, __version__))

    def _attend(self, talk: Conversation, now_s: float) -> None:
        # What waits in the socket comes before any judgement on silence: the loop may have been busy for long.
        for frames in talk.connection.receive():
            talk.heard_s = now_s
            message = _decoded(frames, self._count)
            if message is None or not self._handle(talk, message, now_s):
                self.dropped += 1
            if self._talk is None or self._is_new_outbox(talk):
                break
        if self._talk is None:
            return
        failure = talk.connection.failure() or self._outdated(talk) or talk.silence(now_s)
        if failure is not None:
            reason, remedy = failure
            key, file = self._keys.public.decode(), self._config.server_public_key
            self._drop(reason, remedy.format(key=key, file=file), now_s)

    def _outdated(self, talk: Conversation) -> tuple[str, str] | None:
        """Reason and remedy if the epoch is not that of the outbox any more."""
        return ("the outbox is a new one", "none needed, the host is told") if self._is_new_outbox(talk) else None

    def _handle(self, talk: Conversation, message: wire.FromHost, now_s: float) -> bool:
        """Whether the message has a meaning now."""
        match message:
            case wire.Welcome() if not talk.up:
                self._welcome(talk, message)
            case wire.Refused():
                self._refused(message, now_s)
            case _ if not talk.up:
                return False
            case wire.Welcome():  # Hello has been answered; what is in flight goes on
                return False
            case wire.Heartbeat():
                self.version = message.version
            case wire.Ack():
                return self._acknowledge(talk, message, now_s)
            case wire.Nack():
                return self._reject(talk, message, now_s)
            case wire.EvidenceRequest():
                self._events.append(EvidenceWanted(message.evidence, message.offset))
            case wire.Candidate():
                self._events.append(CandidateOffered(message))
            case _:
                assert_never(message)
        return True

    def _welcome(self, talk: Conversation, message: wire.Welcome) -> None:
        if message.high_water > self._outbox.last:  # the outbox went back in time: a backup, a copied disk
            self._outbox.renew()
            return
        deleted = self._outbox.delete_through(message.high_water)  # first: where the disk fails, Hello is said again
        talk.welcome(message)
        self._error, self._failures, self.version = "", 0, message.version
        self._said.clear()
        self._events.append(Connected(message))
        if deleted:
            self._events.append(Acknowledged(message.high_water, message.version))

    def _refused(self, message: wire.Refused, now_s: float) -> None:
        refused = Refused(message.code, _text(message.remedy))
        self._drop(f"the host refuses: {refused.code}", refused.remedy, now_s, REFUSED_RETRY_S, refused)

    def _acknowledge(self, talk: Conversation, message: wire.Ack, now_s: float) -> bool:
        if not talk.has_sent(message):
            return False
        self.version = message.version
        self._finish(talk, message.sequence, message.version, now_s)
        return True

    def _reject(self, talk: Conversation, message: wire.Nack, now_s: float) -> bool:
        if message.code == "wrong_epoch":  # not of the message: Hello brings the right one
            self._drop("the host has begun another epoch", "none needed, it is asked for", now_s)
            return True
        if not talk.has_sent(message):
            return False
        self.version = message.version
        # The host takes messages in order, so that those before this one are final too.
        self._finish(talk, message.sequence - 1, message.version, now_s)
        refused = talk.in_flight.get(message.sequence)
        if refused is not None:
            self._outbox.delete_through(message.sequence)
            talk.finish(message.sequence, now_s)
            remedy = _text(message.remedy)
            self._events.append(Rejected(message.sequence, refused, message.code, remedy, message.version, message.z))
        return True

    def _finish(self, talk: Conversation, sequence: int, version: int, now_s: float) -> None:
        """Let go of what is final on the host."""
        if talk.waits_for(sequence):
            self._outbox.delete_through(sequence)  # first: where the disk fails, the host is asked again
            self._events.append(Acknowledged(sequence, version))
        talk.finish(sequence, now_s)

    def _send_due(self, talk: Conversation, now_s: float) -> None:
        room = talk.room
        if room and self._outbox.last > talk.sent:
            waiting = self._outbox.pending(room, talk.sent)
            if self._is_new_outbox(talk):
                return
            for sequence, message in waiting:
                if not talk.send(sequence, message, now_s):
                    return
            if len(waiting) < room:
                talk.sent = self._outbox.last  # numbers that wait no more need no search in each step
        if now_s - talk.spoke_s >= HEARTBEAT_S:
            talk.connection.send(wire.Heartbeat(self.version, len(self._outbox), self.level))
            talk.spoke_s = now_s

    def _drop(self, reason: str, remedy: str, now_s: float, wait_s: float = 0.0, event: Refused | None = None) -> None:
        """End the connection; the next one begins after the back-off, or after wait_s if that is longer."""
        reason = f"{self._config.endpoint}: {reason}"
        self.close()
        backoff_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0**self._failures) * self._rng.uniform(0.5, 1.0)
        self._failures = min(self._failures + 1, 16)
        self._retry_s = now_s + max(backoff_s, wait_s)
        self._error = f"{reason}; {remedy}"
        self._say(event or Disconnected(reason, remedy))

    def _say(self, event: Disconnected | Refused) -> None:
        """Report why there is no link, unless that was said before."""
        if event not in self._said:
            self._events.append(event)
            self._said.add(event)


def _decoded(frames: list[bytes], count: int) -> wire.FromHost | None:
    """The message, None if it is malformed; count is the number of parameters."""
    if len(frames) != 1:
        return None
    try:
        message = wire.FROM_HOST.decode(frames[0])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    return message if _is_sane(message, count) else None


def _is_sane(message: wire.FromHost, count: int) -> bool:
    """Whether the numbers can be true: types alone let nan, negative and huge ones pass, and any length of z."""
    integers = [v for v in msgspec.structs.astuple(message) if isinstance(v, int)]
    z: tuple[float, ...] = getattr(message, "z", ())
    z_sd: tuple[float, ...] = getattr(message, "z_sd", (0.0,) * len(z))
    lengths = (count,) if isinstance(message, wire.Candidate) else (0, count)
    return (
        all(0 <= n <= LARGEST_INTEGER for n in integers)
        and len(z) in lengths
        and len(z_sd) == len(z)
        and all(math.isfinite(v) for v in (*z, *z_sd))
        and all(sd >= 0 for sd in z_sd)
    )


def _text(text: str) -> str:
    """Words of the host, fit for one line."""
    return printable(text[:LONGEST_TEXT])
