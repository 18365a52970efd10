"""Recovery: has what was escalated gone away? Pure.

After an escalation the gap with its cause is what the drift test compares with, and a small drift would hide below it.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from gapd.live.monitor import SLACK, TINY, Baseline

Array = NDArray[np.float64]

# The cause must have been away for this long: longer than a turn of most tasks, which may reach it only once.
QUIET_S = 60.0
LEAST_WINDOWS = 20
# Without a baseline from before, a fall by this many spreads: several standard errors of the mean of so many windows.
FALL = 0.5


class Recovery:
    """Tells when the gap is nearer to what it was before an escalation than to what it was with its cause."""

    def __init__(self, earlier: Baseline | None, now: Baseline, window_s: float) -> None:
        """`earlier` is from before the escalation, None if it came first of all; `now` is from its fit."""
        mean = np.array(now.mean)
        if earlier is None:
            self._louder, middle = np.isfinite(mean), mean - FALL * np.array(now.spread)
        else:
            self._louder = mean > np.array(earlier.mean) + SLACK * np.array(earlier.spread)  # false where absent
            middle = (np.array(earlier.mean) + mean) / 2
        self._middle: Array = middle[self._louder]
        self._logs: deque[Array] = deque(maxlen=max(LEAST_WINDOWS, round(QUIET_S / window_s)))

    def update(self, gap2: Array) -> bool:
        """Take in one window (C,), squared gaps in noise²; NaN where absent, inf where the replay diverged."""
        self._logs.append(np.log(gap2[self._louder] + TINY))
        if not self._louder.any() or len(self._logs) < (self._logs.maxlen or 0):
            return False
        return bool(np.all(np.mean(self._logs, axis=0) < self._middle))
