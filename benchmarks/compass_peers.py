"""What COMPASS is compared with, at the same number of real and simulated rollouts: methods without a learned graph."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gaptrain.tasks.search import Iteration, Trainer, perturb, published_half_width, without_policy
from gaptrain.tasks.simulator import Robot, Simulator, distance

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Budget:
    """What each method may spend."""

    iterations: int = 10
    real_rollouts: int = 10  # per iteration
    rollouts: int = 640  # simulated per iteration
    retrain_every: int = 5
    seed: int = 1


# One iteration of a method: from the current parameters (P,) to the next, and the rollouts it took.
Step = Callable[[Array, Array, Array], tuple[Array, int]]


def search(
    task: Simulator, robot: Robot, budget: Budget, step: Step, train: Trainer = without_policy
) -> Iterator[Iteration]:
    """Run the outer loop of COMPASS around any step (physical (P,), actions (n, A), real (n, T, C))."""
    rng = np.random.default_rng(budget.seed)
    physical, simulated = task.space.nominal.copy(), 0
    policy = train(task, physical, budget.seed)
    none = np.full(len(physical), np.nan)
    for iteration in range(budget.iterations):
        if iteration and iteration % budget.retrain_every == 0:
            policy = train(task, physical, budget.seed + iteration)
        actions = policy.act(rng, budget.real_rollouts)
        physical, used = step(physical, actions, robot.act(actions).seen)
        simulated += used
        yield Iteration(physical.copy(), np.ones(len(none), bool), none[:, None], none, robot.rollouts, simulated)


def _distances(task: Simulator, vectors: Array, actions: Array, real: Array) -> Array:
    """Mean distance (k,) of k parameter vectors (k, P) over all actions; infinite where the simulation diverged."""
    k, n = len(vectors), len(actions)
    seen = task.rollout(np.repeat(vectors, n, axis=0), np.tile(actions, (k, 1))).seen
    return np.asarray(distance(task, seen.reshape(k, n, *seen.shape[1:]), real).mean((1, 2)))


def random_search(task: Simulator, budget: Budget) -> Step:
    """The best of random vectors within the published perturbation around the best so far."""
    rng = np.random.default_rng(budget.seed + 1)

    def step(physical: Array, actions: Array, real: Array) -> tuple[Array, int]:
        n = max(1, budget.rollouts // len(actions) - 1)
        drawn = perturb(task.space, physical, published_half_width(task.space, physical), rng, n)
        vectors = np.concatenate([physical[None], drawn])
        return vectors[_distances(task, vectors, actions, real).argmin()], len(vectors) * len(actions)

    return step


def cma_search(task: Simulator, budget: Budget) -> Step:
    """CMA-ES (package `cma`) on the distance, in published half-widths; it goes on from iteration to iteration."""
    cma: Any = importlib.import_module("cma")
    space = task.space
    width = published_half_width(space, space.nominal)
    width = np.where(width > 0, width, (space.max - space.min) / 10)
    evaluations = max(4, budget.rollouts // budget.real_rollouts)
    size = max(4, min(16, evaluations // 4))
    settings = {"popsize": size, "seed": budget.seed, "verbose": -9, "CMA_diagonal": True}
    strategy = cma.CMAEvolutionStrategy(np.zeros(len(space)), 0.3, settings)

    def physical_of(u: Array) -> Array:
        return np.clip(space.nominal + width * u, space.min, space.max)

    def step(physical: Array, actions: Array, real: Array) -> tuple[Array, int]:
        for _ in range(evaluations // size):
            asked = strategy.ask()
            far = _distances(task, physical_of(np.array(asked)), actions, real)
            strategy.tell(asked, np.nan_to_num(far, posinf=1e6).tolist())
        return physical_of(np.array(strategy.result.xfavorite)), evaluations // size * size * len(actions)

    return step


def gauss_newton(task: Simulator, budget: Budget) -> Step:
    """Levenberg steps with forward differences on as many actions as the budget allows, kept if the gap falls.

    This is what `mujoco.sysid` does per iteration. Real rollouts that it cannot afford to replay are not used.
    """
    space = task.space
    low, high = (space.to_scaled(space.nominal + s * published_half_width(space, space.nominal)) for s in (0, 0.2))
    size = np.where(np.isfinite(high - low) & (np.abs(high - low) > 0), np.abs(high - low), 0.02)
    dampings = (0.01, 0.1, 1.0, 10.0)

    def step(physical: Array, actions: Array, real: Array) -> tuple[Array, int]:
        n = max(1, min(len(actions), budget.rollouts // (len(space) + 1 + len(dampings))))
        few, wanted = actions[:n], real[:n]
        z = space.to_scaled(physical)
        signed = np.where(z + size <= space.z_max, size, -size)
        points = space.to_physical(np.concatenate([z[None], z + np.diag(signed)]))
        seen = task.rollout(np.repeat(points, n, axis=0), np.tile(few, (len(points), 1))).seen
        flat = np.nan_to_num(seen).reshape(len(points), -1)
        jacobian = ((flat[1:] - flat[0]) / signed[:, None]).T
        tried = [z + _levenberg(jacobian, wanted.ravel() - flat[0], damping, space.z_min - z, space.z_max - z)
                 for damping in dampings]  # fmt: skip
        vectors = np.concatenate([physical[None], space.to_physical(np.array(tried))])
        far = _distances(task, vectors, few, wanted)
        return vectors[far.argmin()], n * (len(points) + len(dampings))

    return step


def _levenberg(jacobian: Array, residual: Array, damping: float, low: Array, high: Array) -> Array:
    square = jacobian.T @ jacobian
    # Columns without any effect stay where they are.
    diagonal = np.diag(square) * damping + 1e-6 * np.trace(square) / len(square)
    return np.clip(np.linalg.solve(square + np.diag(diagonal), jacobian.T @ residual), low, high)
