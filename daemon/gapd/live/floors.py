"""The commissioned floor: what the best model of a robot leaves, channel by channel. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gapd.fit.cycle import Report
from gapd.measured.windows import Windows

Array = NDArray[np.float64]

# A channel has moved if its motion within windows is above this many noise standard deviations; at rest it is 1.4.
MOVED = 3.0


def floor_of(report: Report, windows: Windows, noise: Array) -> Array:
    """Floor (C,), in noise, that a fit of these windows tells; NaN where it does not.

    A channel at rest leaves only noise, which says nothing about what the model leaves in motion.
    """
    action, check = report.decision.action, report.check
    if action == "reject" or (action == "escalate" and not report.identification.findings):
        return np.full(len(check.channel_after), np.nan)
    gap = check.channel_after if report.decision.corrections else check.channel_before
    return np.where(moved(windows, noise), np.maximum(gap, 1.0), np.nan)


def moved(windows: Windows, noise: Array) -> NDArray[np.bool_]:
    """Whether channels (C,) have moved within windows."""
    motion = (windows.measured - windows.measured[:, :1])[:, 1:] / noise
    present = np.isfinite(motion)
    square = np.sum(np.where(present, motion, 0.0) ** 2, axis=(0, 1)) / np.maximum(present.sum(axis=(0, 1)), 1)
    return np.asarray(square > MOVED**2)
