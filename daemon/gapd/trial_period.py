"""Trial period: after a correction the previous values are replayed beside the new ones for a while. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gapd.check import Check, check

Array = NDArray[np.float64]

# Windows of a trial period, and after how many of them it is judged again.
LENGTH = 40
EVERY = 8
# Windows that count as one observation, as in the check of a fit.
PER_BLOCK = 4
# Probability of giving up a correction that is no worse, over the whole period.
ALPHA = 0.01


@dataclass(frozen=True)
class Return:
    """The previous values (P,), scaled, come back: they replay better. `check` has them as the candidate."""

    z: Array
    check: Check


@dataclass
class TrialPeriod:
    """Squared gaps of new and previous values (P,), window by window."""

    previous: Array
    window_s: float
    channels: tuple[str, ...]
    gaps: list[tuple[Array, Array]] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Whether the new values have proved themselves."""
        return len(self.gaps) >= LENGTH

    def add(self, new: Array, previous: Array) -> Return | None:
        """Take in the squared gaps (C,) of one window; the verdict if the previous values are clearly better."""
        self.gaps.append((new, previous))
        if len(self.gaps) % EVERY or len(self.gaps) < 2 * EVERY:
            return None
        new_gaps, previous_gaps = (np.stack(side) for side in zip(*self.gaps, strict=True))
        verdict = check(
            new_gaps, previous_gaps, None, ALPHA * EVERY / LENGTH, block=np.arange(len(self.gaps)) // PER_BLOCK,
            window_s=self.window_s, channels=self.channels,
        )  # fmt: skip
        return Return(self.previous, verdict) if verdict.verdict == "accepted" else None
