"""Messages on their way into the outbox, and the version of the values that they make."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec

from gapd.link.outbox import MessageTooLargeError, Outbox
from gapd.link.outbox_rows import Stored
from gapd.messages.link import Correction, Escalation, Verdict

# Of those that a full disk keeps out. Corrections hold all values, so that the newest ones are what counts.
MOST_WAITING = 100


class Postbox:
    """What the outbox cannot take waits here, and is based on the version that holds when it goes in."""

    def __init__(self, outbox: Outbox | None, version: int) -> None:
        """`version` is that of the values on the host; without an outbox nothing is kept."""
        self.version = version
        self._outbox = outbox
        self._waiting: deque[Stored] = deque(maxlen=MOST_WAITING)

    @property
    def unstored(self) -> int:
        """Messages that the outbox has not taken yet."""
        return len(self._waiting)

    @property
    def pending(self) -> int:
        """Messages that the host does not have yet, as far as is known."""
        return len(self._waiting) + (len(self._outbox) if self._outbox is not None else 0)

    def put(self, message: Stored) -> None:
        """Take a message for `store`."""
        if self._outbox is not None:
            self._waiting.append(message)

    def forget_corrections(self) -> None:
        """The values have been replaced: corrections that are not in the outbox yet were made from others."""
        kept = [m for m in self._waiting if not isinstance(m, Correction)]
        self._waiting = deque(kept, maxlen=MOST_WAITING)

    def store(self) -> Iterator[tuple[int | MessageTooLargeError, Stored]]:
        """Move what waits into the outbox while the caller iterates, each message with its sequence.

        In its place stands the error of a message that can never be sent: it is dropped, so that nothing waits behind
        it. Raises any other OutboxError; the rest then waits on.
        """
        while self._waiting and self._outbox is not None:
            message = self._waiting[0]
            if isinstance(message, Correction | Escalation):
                message = msgspec.structs.replace(message, base_version=self.version)
            stored = _put(self._outbox, message)
            self._waiting.popleft()
            if isinstance(stored, int):
                self.version += _makes_version(message)
            yield stored, message

    def left_behind(self) -> Correction | None:
        """The newest correction that an earlier process put into the outbox; the version goes on from there."""
        waiting = self._outbox.pending(len(self._outbox)) if self._outbox is not None and len(self._outbox) else []
        corrections = [m for _, m in waiting if isinstance(m, Correction) and m.base_version >= self.version]
        if not corrections:
            return None
        self.version = corrections[-1].base_version + 1
        return corrections[-1]


def _put(outbox: Outbox, message: Stored) -> int | MessageTooLargeError:
    try:
        return outbox.put(message)
    except MessageTooLargeError as error:
        return error


def _makes_version(message: Stored) -> bool:
    """Whether the host has other values once it has the message."""
    return isinstance(message, Correction) or (isinstance(message, Verdict) and message.verdict == "accepted")
