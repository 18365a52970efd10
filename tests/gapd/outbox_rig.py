"""Messages for an outbox, and what is in it."""

from __future__ import annotations

import pytest

from gapd.link.outbox import (
    Outbox,
    OutboxFullError,
)
from gapd.messages.link import Verdict

MEGABYTE = 2**20


def verdict(number: int, padding: int = 0) -> Verdict:
    return Verdict(7, 7, float(number), f"c{number}", 1, "rejected", "x" * padding, 1.0, 2.0, 3)


def names(outbox: Outbox, limit: int = 1000) -> list[str]:
    return [m.candidate for _, m in outbox.pending(limit) if isinstance(m, Verdict)]


def reopened(outbox: Outbox, lines: list[str]) -> Outbox:
    outbox.close()
    return Outbox(outbox.path, outbox.max_bytes, lines.append)


def fill(outbox: Outbox, padding: int) -> int:
    """Put until it is full; how many went in."""
    for number in range(1, 10_000):
        try:
            outbox.put(verdict(number, padding))
        except OutboxFullError:
            return number - 1
    pytest.fail("never full")
