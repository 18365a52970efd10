"""The one interface through which methods see a task: parameters and actions in, seen trajectories and success out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gapd.model.parameters import ParameterSet

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Rollouts:
    """n rollouts of T control steps: what the camera sees after each step, and how the task went."""

    seen: Array  # (n, T, C)
    success: Flags  # (n,)
    reward: Array  # (n,) what a policy is trained on: 0 is perfect
    failed: Flags  # (n,) the simulation diverged: `seen` is not finite from there on


class Simulator(Protocol):
    """A task in simulation. Rollouts depend on nothing but their arguments."""

    name: str
    space: ParameterSet
    channels: tuple[str, ...]  # C, `<object>/<axis>`
    objects: tuple[tuple[int, ...], ...]  # channels of each object, whose distance is taken together
    steps: int  # T
    action_low: Array  # (A,)
    action_high: Array  # (A,)

    def draw(self, rng: np.random.Generator, n: int) -> Array:
        """Random actions (n, A) within the box."""
        ...

    def rollout(self, physical: Array, actions: Array) -> Rollouts:
        """Open-loop rollouts with parameters (n, P) and actions (n, A), SI units."""
        ...


class Robot(Protocol):
    """A robot that can be asked to act, at a price: it counts."""

    rollouts: int
    noise: Array  # (C,) standard deviation of what it sees

    def act(self, actions: Array) -> Rollouts:
        """One real rollout for each of the actions (n, A)."""
        ...


def distance(task: Simulator, seen: Array, real: Array) -> Array:
    """Distance (..., M) of M objects between trajectories (..., T, C), summed over time: m·step, for angles rad·step.

    The label of COMPASS. A diverged simulation is infinitely far.
    """
    gap = seen - real
    per_object = [np.sqrt((gap[..., list(cells)] ** 2).sum(-1)).sum(-1) for cells in task.objects]
    far = np.stack(per_object, -1)
    return np.asarray(np.where(np.isfinite(far), far, np.inf))
