"""Trial period: after a correction the previous values are replayed beside the new ones for a while. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gapd.fit.check import Check, check
from gapd.fit.cycle import BLOCK_S

Array = NDArray[np.float64]

# Windows of a trial period, and after how many of them it is judged again.
LENGTH = 40
EVERY = 8
# Squared gap of a replay that diverges, in noise².
DIVERGED = 1e12
# Probability of giving up a correction that is no worse, over the whole period.
ALPHA = 0.01


@dataclass(frozen=True)
class Return:
    """The previous values z (P,), scaled, come back in place of `replaced`: they replay better.

    `check` has them as the candidate.
    """

    z: Array
    replaced: Array
    check: Check


@dataclass
class TrialPeriod:
    """Squared gaps of present and previous values (P,), window by window."""

    present: Array
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
        # A replay that diverges is as bad as can be.
        self.gaps.append((np.where(np.isposinf(new), DIVERGED, new), previous))
        if len(self.gaps) % EVERY or len(self.gaps) < 2 * EVERY:
            return None
        new_gaps, previous_gaps = (np.stack(side) for side in zip(*self.gaps, strict=True))
        per_block = max(1, round(BLOCK_S / self.window_s))
        verdict = check(
            new_gaps, previous_gaps, None, ALPHA * EVERY / LENGTH, block=np.arange(len(self.gaps)) // per_block,
            window_s=self.window_s, channels=self.channels,
        )  # fmt: skip
        return Return(self.previous, self.present, verdict) if verdict.verdict == "accepted" else None
