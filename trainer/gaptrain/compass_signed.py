"""Our variant of COMPASS: the same loop and budget, another model of the gap.

The published method learns an unsigned distance from 640 samples, from scratch each time, follows it for 2,000 steps
and drops parameters for good. Here (a) what is learned are signed gaps, per channel and time; (b) samples of earlier
iterations stay in the fit, the less the farther away they are; (c) a step is kept only if the replayed gap falls, and
the region in which one looks shrinks where none does; (d) edges are probabilities that every iteration computes
afresh for all parameters, so that a dropped one can come back; (e) the estimate has a standard deviation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gaptrain.edge_regression import Posterior, regress
from gaptrain.replay_memory import Memory
from gaptrain.tasks.search import Iteration, Trainer, published_half_width, without_policy
from gaptrain.tasks.simulator import Robot, Simulator, distance

Array = NDArray[np.float64]
Rows = NDArray[np.intp]

# Degrees of freedom of the residuals: tails heavy enough for rollouts that go another way.
FREEDOM = 4.0
# What changes a component by less than this share of the noise is nothing: it could be rounding.
NEGLIGIBLE = 0.05


@dataclass(frozen=True)
class Arguments:
    """Settings. Those of the loop are as published. The others were set by hand on seed 1 of the three tasks.

    None was searched for systematically: results on seed 1 flatter them.
    """

    iterations: int = 10  # as published
    retrain_every: int = 5  # as published
    real_rollouts: int = 10  # per iteration, as published
    rollouts: int = 640  # simulated per iteration, replays of candidates included, as published
    memory: int = 2  # iterations whose real rollouts stay; more would leave fewer samples, for they are replayed
    # Of a channel's course in time. They hold 99 % of the variance of perturbed replays, but 92 % of the height of
    # the bouncing ball and 42 % of the tilt of the cube, which hardly moves.
    components: int = 4
    traits: int = 2  # of a rollout, on which derivatives may depend: actions differ little
    subsets: tuple[int, ...] = (2, 4, 8, 16)  # sizes of the steps that are tried: few parameters first
    shares: tuple[float, ...] = (1.0, 0.5)  # of each step: a linear model oversteps
    rounds: int = 2  # steps per fitted model
    reach: float = 2.0  # longest step of a parameter, in half-widths of the perturbation
    shrink: float = 0.6  # of the half-widths after an iteration without a step
    keep_above: float = 0.5  # a parameter counts as connected from this edge probability
    seed: int = 1


@dataclass
class Search:
    """The loop's state."""

    task: Simulator
    arguments: Arguments
    z: Array  # (P,) scaled
    half_width: Array  # (P,) scaled
    memory: Memory
    simulated: int = 0
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def replay(self, z: Array, row: Rows) -> Array:
        """Trajectories (n, T, C) with scaled parameters (n, P) for remembered actions."""
        self.simulated += len(row)
        return self.task.rollout(self.task.space.to_physical(z), self.memory.actions[row]).seen

    def everywhere(self, z: Array, row: Rows) -> Array:
        """Trajectories (k, n, T, C) with each of k parameter vectors (k, P) for remembered actions (n,).

        They do not enter the fit: what a linear model misses is the same for all rollouts with one vector, and they
        would count as so many independent witnesses for it.
        """
        seen = self.replay(np.repeat(z, len(row), axis=0), np.tile(row, len(z)))
        return seen.reshape(len(z), len(row), *seen.shape[1:])


def compass_signed(
    task: Simulator, robot: Robot, arguments: Arguments, train: Trainer = without_policy
) -> Iterator[Iteration]:
    """Run the loop; yields after each iteration."""
    a, space = arguments, task.space
    rng = np.random.default_rng(a.seed)
    search = Search(task, a, space.z_nominal.copy(), _first_half_width(task), Memory.empty(task), 0, rng)
    policy = train(task, space.nominal, a.seed)
    for iteration in range(a.iterations):
        if iteration and iteration % a.retrain_every == 0:
            policy = train(task, space.to_physical(search.z), a.seed + iteration)
        actions = policy.act(rng, a.real_rollouts)
        search.memory.observe(actions, robot.act(actions).seen, a.memory)
        here = search.everywhere(search.z[None], np.arange(len(search.memory.age)))[0]
        _sample(search)
        linear = _fit(search, here, robot.noise)
        sd = _improve(search, linear, here, robot.noise)
        edge = linear.edge
        yield Iteration(
            space.to_physical(search.z), edge.max(1) > a.keep_above, edge, sd, robot.rollouts, search.simulated
        )


def _first_half_width(task: Simulator) -> Array:
    """Half-widths (P,) of the published perturbation, in scaled coordinates."""
    space = task.space
    width = published_half_width(space, space.nominal)
    low, high = (space.to_scaled(np.clip(space.nominal + s * width, space.min, space.max)) for s in (-1, 1))
    # A nominal of 0 is not perturbed as published: here it gets a tenth of its range.
    return np.asarray(np.where(high > low, (high - low) / 2, (space.z_max - space.z_min) / 10))


def _sample(search: Search) -> None:
    """Perturbed replays of the newest real rollouts: what the budget has left after the candidates."""
    a, memory, space = search.arguments, search.memory, search.task.space
    newest = np.flatnonzero(memory.age == 0)
    tried = len(a.subsets) * len(a.shares) * len(newest) + len(memory.age)
    n = max(a.rollouts - len(memory.age) - a.rounds * tried, len(newest))
    row = newest[np.arange(n) % len(newest)]
    drawn = search.z + search.half_width * search.rng.uniform(-1, 1, (n, len(space)))
    z = np.clip(drawn, space.z_min, space.z_max)
    memory.add(z, row, search.replay(z, row))


@dataclass(frozen=True)
class Linear:
    """The gap's model around a point: how components of each channel change with u = (z - here) / half-width."""

    basis: Array  # (C, T, K) components of a channel's course in time
    slope: Array  # (J, C, K, P)
    variance: Array  # (J, C, K, P) of the slope
    noise: Array  # (C, K) variance of what the model does not explain
    edge: Array  # (P, C) probability

    def project(self, gap: Array) -> Array:
        """Components (..., C, K) of gaps (..., T, C)."""
        return np.asarray(np.einsum("...tc,ctk->...ck", gap, self.basis))


def _fit(search: Search, here: Array, noise: Array) -> Linear:
    """Fit to all remembered replays; `here` (J, T, C) are those at the current point."""
    a, memory = search.arguments, search.memory
    change = (memory.seen - here[memory.row]) / noise
    missing = (memory.real - here) / noise
    u = (memory.z - search.z) / search.half_width
    traits = _traits(here / noise, a.traits)
    features = _features(u, traits[memory.row])
    weight = _weights(u)
    ratio = np.array([1.0, 0.1, *[0.1] * a.traits])
    stacked = np.concatenate([change, missing])
    basis = np.stack([_components(stacked[..., c], a.components) for c in range(len(noise))])
    outputs = np.einsum("ntc,ctk->cnk", change, basis)
    found = [_regress_robustly(features, y, weight, ratio) for y in outputs]
    parts = [_slopes(posterior, traits) for posterior in found]
    slope, variance = (np.stack([part[i] for part in parts], 1) for i in (0, 1))
    return Linear(
        basis, slope, variance, np.stack([p.noise for p in found]) + 1.0, np.stack([p.edge for p in found], -1)
    )


def _components(courses: Array, count: int) -> Array:
    """Principal components (T, K) of courses in time (n, T)."""
    _, _, rows = np.linalg.svd(courses, full_matrices=False)
    return np.asarray(rows[:count].T)


def _traits(here: Array, count: int) -> Array:
    """What tells rollouts (J, T, C) from each other: whitened principal components (J, count)."""
    flat = here.reshape(len(here), -1)
    left, size, _ = np.linalg.svd(flat - flat.mean(0), full_matrices=False)
    left = np.where(size > 1e-9, left, 0.0)[:, :count] * np.sqrt(len(flat))
    return np.asarray(np.pad(left, ((0, 0), (0, count - left.shape[1]))))


def _features(u: Array, traits: Array) -> Array:
    """Features (n, P, 2 + traits): linear, quadratic, linear by trait."""
    parts = [u, u**2 - 1 / 3, *(u * traits[:, q : q + 1] for q in range(traits.shape[1]))]
    return np.stack(parts, -1)


def _weights(u: Array) -> Array:
    """Weights (n,): what a linear model misses grows with the square of the distance, its variance with the fourth."""
    far = np.sqrt((u**2).mean(1) * 3)  # 1 for a sample drawn uniformly within the half-widths
    return np.asarray(np.maximum(far, 1.0) ** -4.0)


def _regress_robustly(features: Array, outputs: Array, weight: Array, ratio: Array) -> Posterior:
    """Regress twice, the second time with the weights that Student's t gives to what the first has left over.

    In a few rollouts something else happens, such as a second hit. Taken as Gaussian they would make edges.
    """
    floor = NEGLIGIBLE**2
    first = regress(features, outputs, weight, ratio, floor)
    left = outputs - np.einsum("npf,pfk->nk", features, first.mean)
    size = weight * (left**2 / first.noise).mean(1)
    return regress(features, outputs, weight * (FREEDOM + 1) / (FREEDOM + size), ratio, floor)


def _slopes(posterior: Posterior, traits: Array) -> tuple[Array, Array]:
    """Mean and variance (J, K, P) of the slopes of one channel, edges taken into account."""
    p, f, _ = posterior.mean.shape
    mixed = np.concatenate([np.ones((len(traits), 1)), np.zeros((len(traits), 1)), traits], 1)  # (J, F)
    mean = np.einsum("jf,pfk->jkp", mixed, posterior.mean)
    blocks = posterior.spread.reshape(p, f, p, f)[np.arange(p), :, np.arange(p)]
    spread = np.einsum("jf,pfg,jg->jp", mixed, blocks, mixed)
    variance = spread[:, None] * posterior.noise[:, None]
    edge = posterior.edge
    return edge * mean, edge * variance + edge * (1 - edge) * mean**2


def _improve(search: Search, linear: Linear, here: Array, noise: Array) -> Array:
    """Move to the best of some steps while the replayed gap falls; returns the standard deviation (P,) of z.

    Steps are tried on the newest real rollouts, which are the ones not fitted before.
    """
    a, memory, space = search.arguments, search.memory, search.task.space
    newest = np.flatnonzero(memory.age == 0)
    best, began = _badness(search, here[newest], newest), search.z
    for _ in range(a.rounds):
        information, score, _ = _normal(search, linear, (memory.real - here) / noise)
        steps = [share * step for step in _steps(information, score, a) for share in a.shares]
        z = np.clip(search.z + search.half_width * np.array(steps), space.z_min, space.z_max)
        bad = np.array([_badness(search, seen, newest) for seen in search.everywhere(z, newest)])
        if not bad.min() < best:
            break
        best, search.z = float(bad.min()), z[bad.argmin()]
        here = search.everywhere(search.z[None], np.arange(len(memory.age)))[0]
    _, _, covariance = _normal(search, linear, (memory.real - here) / noise)
    sd = np.sqrt(np.diag(covariance)) * search.half_width
    if search.z is began:
        search.half_width = search.half_width * a.shrink
    return np.asarray(sd)


def _badness(search: Search, seen: Array, row: Rows) -> float:
    """Mean distance of trajectories (n, T, C) from the real ones: what the method lowers."""
    return float(distance(search.task, seen, search.memory.real[row]).mean())


def _normal(search: Search, linear: Linear, missing: Array) -> tuple[Array, Array, Array]:
    """Normal equations (P, P), (P,) of a step in u that explains gaps (J, T, C), and the covariance (P, P) of u.

    The mean of |r - S u|^2 over uncertain slopes S is |r - E[S] u|^2 + u'Var[S] u: doubtful slopes are not
    followed.
    """
    space, h = search.task.space, search.half_width
    wide = (space.z_max - space.z_min) / 4
    root = np.sqrt(linear.noise)
    s = (linear.slope / root[..., None]).reshape(-1, len(space))
    r = (linear.project(missing) / root).ravel()
    prior = (h / wide) ** 2
    data = s.T @ s
    doubt = (linear.variance / linear.noise[..., None]).sum((0, 1, 2))
    # What is left in excess of the noise is not noise: the model is wrong by as much.
    excess = max(1.0, float(r @ r) / len(r))
    covariance = np.linalg.inv(data / excess + np.diag(prior))
    score = s.T @ r + prior * (space.z_nominal - search.z) / h
    return data + np.diag(prior + doubt), score, np.asarray(covariance)


def _steps(information: Array, score: Array, arguments: Arguments) -> list[Array]:
    """Steps (P,) that move only some parameters, each time the one more that gains most, as in matching pursuit."""
    moved: list[int] = []
    step, found = np.zeros_like(score), {}
    for count in range(1, min(max(arguments.subsets), len(score)) + 1):
        left = score - information @ step
        gain = left**2 / np.diag(information)
        gain[moved] = -1.0
        moved.append(int(gain.argmax()))
        step = np.zeros_like(score)
        step[moved] = np.linalg.solve(information[np.ix_(moved, moved)], score[moved])
        found[count] = np.clip(step, -arguments.reach, arguments.reach)
    return [found[count] for count in arguments.subsets if count in found]
