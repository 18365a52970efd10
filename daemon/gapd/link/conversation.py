"""What holds between the Hello and the end of one connection: made anew with each, so that none of it outlives it."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from gapd.link.connection import ANSWER_S, SILENCE_S, UNREACHABLE, Connection
from gapd.link.outbox_rows import Stored
from gapd.messages import link as wire

# Without an answer for ANSWER_S everything in flight is sent again, RETRIES times, then over a new connection.
RETRIES = 3
IN_FLIGHT = 8


@dataclass
class Conversation:
    """One connection, what was sent on it and waits for an answer, and when either end spoke, in monotonic seconds.

    `outbox` is the id that Hello gave. `sent`, the highest sequence sent, and `epoch` mean something once it is `up`.
    """

    connection: Connection
    outbox: str
    heard_s: float
    spoke_s: float
    progress_s: float = 0.0
    up: bool = False
    epoch: int = 0
    sent: int = 0
    retries: int = 0
    in_flight: dict[int, Stored] = field(default_factory=dict)

    @property
    def room(self) -> int:
        """Messages that may be sent before one of those in flight is answered."""
        return IN_FLIGHT - len(self.in_flight)

    def welcome(self, message: wire.Welcome) -> None:
        """The host has answered Hello."""
        self.up, self.epoch, self.sent = True, message.epoch, message.high_water

    def send(self, sequence: int, message: Stored, now_s: float) -> bool:
        """Whether there was room to send it."""
        if not self.in_flight:
            self.progress_s = now_s
        if not self.connection.send(msgspec.structs.replace(message, epoch=self.epoch)):
            return False
        self.in_flight[sequence], self.sent, self.spoke_s = message, sequence, now_s
        return True

    def has_sent(self, answer: wire.Ack | wire.Nack) -> bool:
        """Whether the host answers something that it was sent here."""
        return answer.epoch == self.epoch and answer.sequence <= self.sent

    def waits_for(self, sequence: int) -> bool:
        """Whether a message up to this sequence is in flight."""
        return any(s <= sequence for s in self.in_flight)

    def finish(self, sequence: int, now_s: float) -> None:
        """What was sent up to this sequence is final on the host."""
        self.retries, self.progress_s = 0, now_s
        self.in_flight = {s: message for s, message in self.in_flight.items() if s > sequence}

    def silence(self, now_s: float) -> tuple[str, str] | None:
        """Reason and remedy if the host has been silent for too long; what it may have missed is due again."""
        if now_s - self.heard_s >= (SILENCE_S if self.up else ANSWER_S):
            return "the host is silent", UNREACHABLE
        if not self.in_flight or now_s - self.progress_s < ANSWER_S:
            return None
        if self.retries == RETRIES:
            return "the host does not acknowledge", "look at its log"
        self.retries, self.progress_s = self.retries + 1, now_s
        self.sent = min(self.in_flight) - 1
        self.in_flight.clear()
        return None
