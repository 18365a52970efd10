"""Real rollouts that a search remembers, and their replays with other parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gaptrain.tasks.simulator import Simulator

Array = NDArray[np.float64]
Rows = NDArray[np.intp]


@dataclass
class Memory:
    """Real rollouts (J) and simulated ones (n) of the same actions, with parameters z."""

    actions: Array  # (J, A)
    real: Array  # (J, T, C)
    age: Rows  # (J,) iterations
    z: Array  # (n, P)
    row: Rows  # (n,) which real rollout
    seen: Array  # (n, T, C)

    @classmethod
    def empty(cls, task: Simulator) -> Memory:
        """Nothing seen yet."""
        shape = (0, task.steps, len(task.channels))
        none = np.zeros(0, np.intp)
        return cls(np.zeros((0, len(task.action_low))), np.zeros(shape), none, np.zeros((0, len(task.space))), none,
                   np.zeros(shape))  # fmt: skip

    def observe(self, actions: Array, real: Array, longest: int) -> None:
        """Add real rollouts and forget those that are `longest` iterations old, with their replays."""
        stays = self.age + 1 < longest
        number = np.cumsum(stays) - 1
        kept = stays[self.row]
        self.z, self.seen, self.row = self.z[kept], self.seen[kept], number[self.row[kept]]
        self.actions = np.concatenate([self.actions[stays], actions])
        self.real = np.concatenate([self.real[stays], real])
        self.age = np.concatenate([self.age[stays] + 1, np.zeros(len(actions), np.intp)])

    def add(self, z: Array, row: Rows, seen: Array) -> None:
        """Add replays that did not diverge."""
        good = np.isfinite(seen).all((1, 2))
        self.z = np.concatenate([self.z, z[good]])
        self.row = np.concatenate([self.row, row[good]])
        self.seen = np.concatenate([self.seen, seen[good]])
