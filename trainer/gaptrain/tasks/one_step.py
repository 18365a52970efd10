"""A task as an environment of stable-baselines3: episodes of one step, many at a time in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from gaptrain.policies import from_shares
from gaptrain.tasks.simulator import Simulator

Array = NDArray[np.float64]
# Reward of an episode whose simulation diverged, m: worse than any miss.
DIVERGED = -3.0


class OneStep(VecEnv):  # type: ignore[misc]
    """n rollouts of a task with parameters (P,). There is nothing to observe before the only action: a constant."""

    def __init__(self, task: Simulator, physical: Array, n: int) -> None:
        """Actions are shares of the task's box, -1 .. 1."""
        box = spaces.Box(-1.0, 1.0, task.action_low.shape, np.float32)
        super().__init__(n, spaces.Box(0.0, 1.0, (1,), np.float32), box)
        self._task, self._physical = task, np.tile(physical, (n, 1))
        self._actions = np.zeros((n, len(task.action_low)))
        self._seen = np.ones((n, 1), np.float32)

    def reset(self) -> NDArray[np.float32]:
        """Begin n episodes."""
        return self._seen.copy()

    def step_async(self, actions: Array) -> None:
        """Take the actions (n, A) of the coming step."""
        self._actions = from_shares(self._task, actions)

    def step_wait(self) -> tuple[Any, Any, Any, list[dict[str, Any]]]:
        """Roll out: reward in m, every episode done."""
        done = self._task.rollout(self._physical, self._actions)
        reward = np.nan_to_num(done.reward, nan=DIVERGED, neginf=DIVERGED)
        information: list[dict[str, Any]] = [{"terminal_observation": row} for row in self._seen]
        return self._seen.copy(), reward.astype(np.float32), np.ones(self.num_envs, bool), information

    def close(self) -> None:
        """Nothing is open."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return what all environments share, once for each."""
        return [getattr(self, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refuse: environments have no attributes of their own."""
        raise NotImplementedError(attr_name)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Refuse: environments have no methods of their own."""
        raise NotImplementedError(method_name)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Nothing is wrapped."""
        return [False] * self.num_envs

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Nothing here is random."""
        return [None] * self.num_envs
