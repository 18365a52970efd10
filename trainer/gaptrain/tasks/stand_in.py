"""A stand-in for the real robot of a task: the simulator with hidden values, noise, and a counter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gaptrain.tasks.arm_task import ArmTask
from gaptrain.tasks.simulator import Rollouts

Array = NDArray[np.float64]


class StandIn:
    """See `Robot`. What it knows of the truth is for judging methods, never for the methods."""

    def __init__(self, task: ArmTask, noise: float, seed: int, truth: Array | None = None) -> None:
        """Noise is a standard deviation, m or rad by channel; truth (P,) are the task's real values unless given."""
        self.rollouts = 0
        self.noise = np.full(len(task.channels), noise)
        self.truth = task.real_values() if truth is None else truth
        self._task, self._rng = task, np.random.default_rng(seed)

    def act(self, actions: Array) -> Rollouts:
        """One counted rollout for each of the actions (n, A), with noise."""
        self.rollouts += len(actions)
        done = self.judge(actions)
        return replace(done, seen=done.seen + self._rng.normal(size=done.seen.shape) * self.noise)

    def judge(self, actions: Array) -> Rollouts:
        """The same without noise and not counted."""
        return self._task.rollout(np.tile(self.truth, (len(actions), 1)), actions)
