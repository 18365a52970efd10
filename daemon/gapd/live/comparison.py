"""Comparison: the values in force beside others, on windows that are still to come. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gapd.fit.check import Check, blocks_of, check
from gapd.fit.cycle import BLOCK_S
from gapd.measured.windows import Windows
from gapd.model.robot import Robot

Array = NDArray[np.float64]

# Squared gap of a replay that diverges with the values in force, in noise²: as bad as can be.
DIVERGED = 1e12


class Comparison:
    """Squared gaps of the values in force and of others, z (P,), scaled, window by window."""

    def __init__(self, robot: Robot, z: Array) -> None:
        """Begin without windows."""
        self.z = z
        self._window_s, self._channels = robot.config.timing.window_s, robot.layout.channels
        self._start_s: list[float] = []
        self._source: list[int] = []
        self._in_force: list[Array] = []
        self._other: list[Array] = []

    def __len__(self) -> int:
        """Windows so far."""
        return len(self._start_s)

    @property
    def blocks(self) -> NDArray[np.intp]:
        """Number (W,) of each window's time block."""
        return blocks_of(np.array(self._start_s), np.array(self._source, np.intp), BLOCK_S)

    def add(self, window: Windows, in_force: Array, other: Array) -> None:
        """Take in the squared gaps (C,) of one window, in noise²; inf where the replay diverged."""
        self._start_s.append(float(window.start_s[0]))
        self._source.append(int(window.source[0]))
        self._in_force.append(np.where(np.isposinf(in_force), DIVERGED, in_force))
        self._other.append(other)

    def check(self, alpha: float) -> Check:
        """Whether the others are better, with the others as the candidate."""
        return check(
            np.stack(self._in_force), self.others, None, alpha, block=self.blocks, window_s=self._window_s,
            channels=self._channels,
        )  # fmt: skip

    @property
    def others(self) -> Array:
        """Squared gaps (W, C) of the others."""
        return np.stack(self._other)
