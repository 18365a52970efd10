"""What is refused, for the host's log: each one is counted, and what repeats is not written each time."""

from __future__ import annotations

from collections import Counter

from gapd.live.telemetry import Logger, canonical

# The same refusal of the same robot is written this often, with the number of those in between.
REPEAT_S = 60.0


class Refusals:
    """Counts what is refused by reason, and writes the first of a kind and then one a minute."""

    def __init__(self, log: Logger) -> None:
        """Write to this log."""
        self.counts: Counter[str] = Counter()
        self._log = log

    def note(self, reason: str, who: str, remedy: str) -> None:
        """Count one, of a robot or of the key of a stranger."""
        self.counts[reason] += 1
        canonical(
            self._log, "refused", level="warning", key=f"{reason} {who}", every_s=REPEAT_S, reason=reason, robot=who,
            remedy=remedy,
        )  # fmt: skip
