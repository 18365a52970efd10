"""One line per event: readable on a terminal, JSON elsewhere. What repeats is counted and not written each time."""

from __future__ import annotations

import sys
from collections import Counter

import structlog

# The same event of the same robot is written this often, with the number of those in between.
REPEAT_S = 60.0
# Strangers choose their keys: remember no more of them than this.
MOST_REPEATED = 1000

Logger = structlog.typing.FilteringBoundLogger


def open_journal() -> Logger:
    """The journal on standard output."""
    terminal = sys.stdout.isatty()
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    render = structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer()
    logger: Logger = structlog.wrap_logger(
        structlog.PrintLogger(sys.stdout),
        processors=[structlog.processors.add_log_level, stamp, render],
        wrapper_class=structlog.make_filtering_bound_logger(20),
        cache_logger_on_first_use=True,
    )
    return logger


class Refusals:
    """Counts what is refused by reason, and writes the first of a kind and then one a minute."""

    def __init__(self, log: Logger) -> None:
        """Write to this journal."""
        self.counts: Counter[str] = Counter()
        self._log = log
        self._written: dict[tuple[str, str], tuple[float, int]] = {}

    def note(self, reason: str, who: str, remedy: str, now: float) -> None:
        """Count one, at monotonic time `now` in s."""
        self.counts[reason] += 1
        key = (reason, who)
        last, suppressed = self._written.get(key, (-REPEAT_S, 0))
        if now - last < REPEAT_S:
            self._written[key] = (last, suppressed + 1)
            return
        if len(self._written) >= MOST_REPEATED:
            self._written.clear()
        self._written[key] = (now, 0)
        more = {"suppressed": suppressed} if suppressed else {}
        self._log.warning("refused", reason=reason, robot=who, remedy=remedy, **more)
