"""Trial period: after a correction the previous values are replayed beside the new ones for a while. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gapd.fit.check import Check
from gapd.live.comparison import Comparison
from gapd.live.memory import Memory
from gapd.model.robot import Robot

Array = NDArray[np.float64]

# Windows of a trial period, and after how many of them it is judged again.
LENGTH = 40
EVERY = 8
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


class TrialPeriod:
    """What was known before a correction, and how the values of then do beside those in force."""

    def __init__(self, robot: Robot, previous: Memory) -> None:
        """Begin with the first window after the correction."""
        self.previous = previous
        self.comparison = Comparison(robot, np.array(previous.z))

    @property
    def over(self) -> bool:
        """Whether the new values have proved themselves."""
        return len(self.comparison) >= LENGTH

    def verdict(self) -> Check | None:
        """After every few windows: the check, if the previous values are clearly better."""
        if len(self.comparison) % EVERY or len(self.comparison) < 2 * EVERY:
            return None
        found = self.comparison.check(ALPHA * EVERY / LENGTH)
        return found if found.verdict == "accepted" else None
