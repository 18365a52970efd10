"""Policies for the tasks: which action to take, learned in the simulator. None needs the real robot.

A rollout's action is chosen once, before it begins: what is learned is a distribution over actions. `train_sac` is what
the published method uses; `train_cross_entropy` needs nothing but numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gapd.errors import ConfigError
from gaptrain.tasks.search import Policy
from gaptrain.tasks.simulator import Simulator

Array = NDArray[np.float64]

ROUNDS, DRAWN, ELITE = 5, 48, 6
NARROWER = 0.5  # factor on the spread after each round
SAC_EPISODES, SAC_TOGETHER = 1280, 32


@dataclass(frozen=True)
class Around:
    """Actions near one action (A,): `spread` of a random action's distance from the middle of all."""

    task: Simulator
    action: Array
    centre: Array
    spread: float

    def act(self, rng: np.random.Generator, n: int) -> Array:
        """See `Policy.act`."""
        drawn = self.action + self.spread * (self.task.draw(rng, n) - self.centre)
        return np.asarray(np.clip(drawn, self.task.action_low, self.task.action_high))


def train_cross_entropy(task: Simulator, physical: Array, seed: int) -> Policy:
    """Cross-entropy method (Rubinstein 1999) in the simulator with parameters (P,): 240 rollouts."""
    rng = np.random.default_rng(seed)
    centre = (task.action_low + task.action_high) / 2
    policy = Around(task, centre, centre, 1.0)
    for _ in range(ROUNDS):
        actions = policy.act(rng, DRAWN)
        reward = task.rollout(np.tile(physical, (DRAWN, 1)), actions).reward
        best = np.argsort(-np.nan_to_num(reward, nan=-np.inf))[:ELITE]
        policy = Around(task, actions[best].mean(0), centre, policy.spread * NARROWER)
    return policy


@dataclass(frozen=True)
class Learned:
    """A policy of stable-baselines3, drawn from as in training; its actions are -1 .. 1 across the box."""

    task: Simulator
    model: object

    def act(self, rng: np.random.Generator, n: int) -> Array:
        """See `Policy.act`. Draws from torch's generator, which `rng` seeds."""
        import torch

        torch.manual_seed(int(rng.integers(2**31)))
        share, _ = self.model.predict(np.ones((n, 1), np.float32), deterministic=False)  # type: ignore[attr-defined]
        return from_shares(self.task, share)


def from_shares(task: Simulator, share: Array) -> Array:
    """Actions (n, A) for shares (n, A) from -1 to 1 across the box."""
    return np.asarray(task.action_low + (task.action_high - task.action_low) * (share + 1) / 2)


def train_sac(task: Simulator, physical: Array, seed: int) -> Policy:
    """Soft actor-critic of stable-baselines3 in the simulator with parameters (P,); ConfigError where it is missing."""
    try:
        from stable_baselines3 import SAC

        from gaptrain.tasks.one_step import OneStep
    except ImportError as missing:
        raise ConfigError(
            f"policy sac needs {missing.name}, which is not installed; pip install 'gapd[compass]'"
        ) from None
    model = SAC(
        "MlpPolicy", OneStep(task, physical, SAC_TOGETHER), learning_starts=4 * SAC_TOGETHER, batch_size=128,
        train_freq=1, gradient_steps=SAC_TOGETHER, gamma=0.0, policy_kwargs={"net_arch": [64, 64]}, seed=seed,
        device="cpu",
    )  # fmt: skip
    model.learn(SAC_EPISODES)
    return Learned(task, model)
