"""Monitor: is the gap what it was when the robot was commissioned? One number per window and channel. Pure.

A cumulative sum test (Page 1954) on the logarithm of each channel's squared gap, in units of its spread over the
commissioning windows. Whole windows are tested, never samples, which depend on each other.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import exp

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Shift, in spreads of a channel, that the test leaves alone: motions differ, and so do their gaps.
SLACK = 1.0
# Windows that are remembered for the onset of a change, and of them the newest ones, which tell how large it is.
LONGEST, NEWEST = 200, 3
# A window belongs to a change from this share of the size of the newest ones on. Half would be the likeliest place, but
# a window too many from before the change spoils the fit, and one too few costs only time.
BELONGS = 0.75
# One window never says more than this many spreads: an outlier is no drift.
LOUDEST = 4.0
# Smallest spread of a log squared gap: what 30 knots of pure noise give. Fewer windows than that may look calmer.
LEAST_SPREAD = 0.25
# Standard deviations by which a baseline from few windows may be off: the worst of twenty channels.
UNSURE = 2.0
# Added to squared gaps (in noise²) before logarithms.
TINY = 1e-6
DAY_S = 86400.0


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mean and spread (C,) of log squared gaps of a healthy robot; NaN for a channel that was absent."""

    mean: tuple[float, ...]
    spread: tuple[float, ...]

    @classmethod
    def of(cls, gap2: Array) -> Baseline:
        """From windows (W, C), squared gaps in noise²; NaN where nothing was measured, inf where a replay diverged.

        Few windows know mean and spread badly, and a mean that is too low alarms for ever: both are taken UNSURE
        standard deviations high.
        """
        logs = np.log(np.where(np.isfinite(gap2), gap2, np.nan) + TINY)
        count = np.isfinite(logs).sum(axis=0)
        safe, n = np.where(count > 0, logs, 0.0), np.maximum(count, 1)
        spread = np.maximum(np.nanstd(safe, axis=0), LEAST_SPREAD)
        mean = np.nanmean(safe, axis=0) + UNSURE * spread / np.sqrt(n)
        spread = spread * (1 + UNSURE / np.sqrt(2 * n))
        return cls(*(tuple(np.where(count > 0, values, np.nan).tolist()) for values in (mean, spread)))

    def scores(self, gap2: Array) -> Array:
        """Spreads (C,) by which a window (C,) is above the mean; 0 for absent channels, LOUDEST where it diverged."""
        above = (np.log(gap2 + TINY) - self.mean) / self.spread
        return np.clip(np.nan_to_num(above, nan=0.0, posinf=LOUDEST), -LOUDEST, LOUDEST)


@dataclass(frozen=True)
class Drift:
    """An alarm: the channel that says it, and how many windows ago it began, counting the last."""

    channel: int
    windows: int
    score: float


class DriftTest:
    """Cumulative sums of all channels; a new test begins after each alarm."""

    def __init__(self, baseline: Baseline, window_s: float, false_alarms_per_day: float) -> None:
        """State the false-alarm rate: of all channels together, on windows as independent as they are normal."""
        self.baseline = baseline
        channels = int(np.isfinite(baseline.mean).sum())
        self.threshold = threshold(DAY_S / window_s * max(channels, 1) / false_alarms_per_day)
        self._sum: Array = np.zeros(len(baseline.mean))
        self._scores: deque[Array] = deque(maxlen=LONGEST)

    def update(self, gap2: Array) -> Drift | None:
        """Take in one window (C,), squared gaps in noise², NaN where absent."""
        scores = self.baseline.scores(gap2)
        self._sum = np.maximum(self._sum + scores - SLACK, 0.0)
        self._scores.append(scores)
        loudest = int(np.argmax(self._sum))
        if self._sum[loudest] <= self.threshold:
            return None
        return Drift(loudest, self._onset(loudest), float(self._sum[loudest]))

    def _onset(self, channel: int) -> int:
        """Windows since the change: from where on they are most clearly like the newest ones.

        The sum may have been above zero for a while before, by luck.
        """
        scores = np.array([s[channel] for s in self._scores])[::-1]
        least = max(BELONGS * float(scores[:NEWEST].mean()), SLACK)
        return int(np.argmax(np.cumsum(scores - least))) + 1


def threshold(windows: float) -> float:
    """Threshold of one cumulative sum whose false alarms are `windows` apart on average (Siegmund 1985, eq. 2.56)."""
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        b = 2 * SLACK * (middle + 1.166)
        low, high = (middle, high) if (exp(b) - b - 1) / (2 * SLACK**2) < windows else (low, middle)
    return high
