"""The fit: a learned phase that finds the neighbourhood, and an exact finish that defines the answer. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from gapd.gauss_newton import Normal, damped_step, normal_equations, residuals
from gapd.jacobian import FiniteDifference, JacobianSource, Linearisation, Point
from gapd.parameters import ParameterSet
from gapd.replay import Rollouts, gap
from gapd.windows import Windows

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Settings:
    """Numbers of the fit. Defaults were chosen on simulated arms other than those of the benchmarks."""

    max_steps: int = 25
    damping: float = 1e-2  # Levenberg, relative to the diagonal
    damping_down: float = 5.0
    damping_up: float = 8.0
    least_damping: float = 1e-4  # from which a refused step starts
    resting: float = 1e-4  # scaled step below which a descent rests
    secant_memory: float = 0.5  # share of the secant correction that survives a new linearisation
    slow: float = 0.9  # the learned phase ends when a step leaves more than this share of the cost
    patience: int = 3
    max_chords: int = 12
    max_linearisations: int = 4
    resting_sd: float = 0.05  # chord steps end below this many standard deviations
    near_sd: float = 0.2  # ... or where one this small is refused; a finish farther off is repeated
    relinearise: float = 1.0  # a finish that moved a parameter this far (scaled) takes new derivatives
    exact_x0: bool = True  # whether the finish takes exact derivatives of the initial states too
    weak_directions: int = 0  # 0: exact derivatives along all parameters; else along the weakest ones


@dataclass(frozen=True)
class State:
    """A point of the fit with its replay."""

    z: Array  # (P,)
    dx0: Array  # (W, 2 nv) correction of the measured initial states
    rollouts: Rollouts
    gap: Array  # (W, K, C)


@dataclass(frozen=True)
class Progress:
    """One kept point of the trace: rollouts used so far, the scaled parameters (P,)."""

    rollouts: int
    z: Array


@dataclass(frozen=True)
class Fit:
    """Result of a fit. `exact` and `normal` belong to the final point; the intervals come from them."""

    state: State
    exact: Linearisation
    normal: Normal


@dataclass
class Problem:
    """Windows to be explained, from a prior over the scaled parameters.

    weight (C,) is noise / sqrt(noise² + discrepancy²) per channel; prior_mean, prior_sd (P,) are scaled;
    `held` (P,) marks parameters that stay where they are.
    """

    exact: FiniteDifference
    windows: Windows
    prior_mean: Array
    prior_sd: Array
    weight: Array
    held: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    trace: list[Progress] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Hold nothing unless told."""
        if not len(self.held):
            self.held = np.zeros(len(self.prior_mean), bool)

    @property
    def space(self) -> ParameterSet:
        """The parameters."""
        return self.exact.replay.robot.parameters

    @property
    def used(self) -> int:
        """Rollouts so far."""
        return self.exact.replay.rollouts

    def evaluate(self, z: Array, dx0: Array, force: Array | None = None) -> State:
        """Replay at z with corrected initial states, and a hypothetical force if given. Divergence costs infinity."""
        robot, windows = self.exact.replay.robot, self.windows
        nv = windows.qpos0.shape[1]
        rollouts = self.exact.replay.run(
            windows, robot.parameters.to_physical(z), windows.qpos0 + dx0[:, :nv], windows.qvel0 + dx0[:, nv:], force
        )  # fmt: skip
        return State(z, dx0, rollouts, gap(windows, rollouts, robot.layout.noise))

    def cost(self, state: State, weight: Array | None = None) -> float:
        """Squared residuals with their weights (C,), plus what the initial states and the prior pay."""
        if state.rollouts.failed.any():
            return np.inf
        squared = np.sum(residuals(state.gap, self.weight if weight is None else weight) ** 2)
        paid = np.sum((state.dx0 / self.windows.x0_sd) ** 2)
        return float(squared + paid + np.sum(((state.z - self.prior_mean) / self.prior_sd) ** 2))

    def keep(self, state: State) -> State:
        """Note a kept point in the trace."""
        self.trace.append(Progress(self.used, state.z))
        return state

    def effect(self, state: State, force: Array) -> Array:
        """Change of the state's prediction (W, K, C), in channel noise, under a force (W, N+1, nv) at the joints."""
        replay, point = self.exact.replay, self.point(state)
        physical = replay.robot.parameters.to_physical(state.z)
        moved = replay.run(point.windows, physical, point.qpos0, point.qvel0, force)
        return np.asarray((moved.predicted - state.rollouts.predicted)[:, 1:] / replay.robot.layout.noise)

    def point(self, state: State) -> Point:
        """Where to linearise."""
        nv = self.windows.qpos0.shape[1]
        return Point(
            self.windows, state.z, self.windows.qpos0 + state.dx0[:, :nv], self.windows.qvel0 + state.dx0[:, nv:],
            state.rollouts,
        )  # fmt: skip

    def normal(self, state: State, linear: Linearisation, weight: Array | None = None) -> Normal:
        """Per-window normal equations at the state."""
        weight = self.weight if weight is None else weight
        return normal_equations(state.gap, linear, weight, state.dx0, self.windows.x0_sd)

    def totals(self, state: State, normal: Normal) -> tuple[Array, Array]:
        """Information (P, P) and score (P,) of all windows and the prior."""
        precision = 1.0 / self.prior_sd**2
        information = normal.information.sum(axis=0) + np.diag(precision)
        return information, normal.score.sum(axis=0) + (self.prior_mean - state.z) * precision

    def step(self, state: State, normal: Normal, damping: float) -> Array:
        """Damped step (P,) inside the bounds, relative for log parameters; held parameters do not move."""
        lower, upper = self.space.box(state.z)
        lower, upper = np.where(self.held, 0.0, lower), np.where(self.held, 0.0, upper)
        information, score = self.totals(state, normal)
        information[self.held], information[:, self.held] = 0.0, 0.0
        information[self.held, self.held], score[self.held] = 1.0, 0.0
        return damped_step(information, score, damping, lower, upper)

    def move(self, state: State, normal: Normal, step: Array) -> State:
        """Replay after a parameter step, with the initial states moved along."""
        return self.evaluate(self.space.advance(state.z, step), state.dx0 + normal.x0_step(step))

    def carry(self, linear: Linearisation, step: Array) -> Linearisation:
        """Derivatives at the end of a step if the model is linear in the physical values."""
        return replace(linear, jacobian=linear.jacobian * self.space.growth(step))


def start(problem: Problem, z: Array) -> State:
    """First replay, from the measured initial states."""
    return problem.keep(problem.evaluate(z, np.zeros((len(problem.windows), problem.windows.x0_sd.shape[1]))))


def settle(problem: Problem, state: State, source: JacobianSource, rounds: int = 2) -> State:
    """Move only the initial states: the gap of a window is what remains after its own x0 has been cleared."""
    still = np.zeros(len(state.z))
    for _ in range(rounds):
        trial = problem.move(state, problem.normal(state, source.linearise(problem.point(state))), still)
        if problem.cost(trial) >= problem.cost(state):
            break
        state = trial
    return state


def descend(problem: Problem, state: State, source: JacobianSource, settings: Settings, secant: bool = True) -> State:
    """Gauss-Newton with a given source of derivatives; a step is kept only if the replayed cost falls.

    With `secant`, every replay also corrects the derivatives along the step it took (Broyden's rank-one
    update), and a share of that correction is carried over to the next linearisation.
    """
    damping, slow = settings.damping, 0
    linear = source.linearise(problem.point(state))
    for _ in range(settings.max_steps):
        weight = emphasis(problem, state)
        normal = problem.normal(state, linear, weight)
        step = problem.step(state, normal, damping)
        if float(step @ step) < settings.resting**2:
            break
        trial = problem.move(state, normal, step)
        cost, trial_cost = problem.cost(state, weight), problem.cost(trial, weight)
        learnt = _secant(linear, state, trial, step) if secant and np.isfinite(trial_cost) else linear
        slow = slow + 1 if trial_cost > settings.slow * cost else 0
        if trial_cost < cost:
            fresh = source.linearise(problem.point(trial))
            there = problem.carry(learnt, step)
            carried = settings.secant_memory * (there.jacobian - fresh.jacobian) if secant else 0.0
            linear = replace(fresh, jacobian=fresh.jacobian + carried)
            state, damping = problem.keep(trial), damping / settings.damping_down
        else:
            linear, damping = learnt, max(damping, settings.least_damping) * settings.damping_up
        if slow >= settings.patience:
            break
    return state


def emphasis(problem: Problem, state: State) -> Array:
    """Weights (C,) while a fit is far away: a channel whose gap is r floors counts 1/sqrt(r).

    The fit then lowers the sum of the channels' RMS gaps and not of their squares, so that one channel that
    is off by a thousand floors does not hide what the other channels say. At one floor it makes no difference.
    """
    present = np.isfinite(state.gap)
    total = np.sum(np.where(present, state.gap * problem.weight, 0.0) ** 2, axis=(0, 1))
    squared = total / np.maximum(present.sum(axis=(0, 1)), 1)
    return np.asarray(problem.weight / np.maximum(squared, 1.0) ** 0.25)


def _secant(linear: Linearisation, before: State, after: State, step: Array) -> Linearisation:
    """Broyden's update: the derivatives that agree with the change of prediction just seen."""
    change = np.nan_to_num(before.gap - after.gap)
    x0_change = (linear.x0_jacobian @ (after.dx0 - before.dx0)[:, None, :, None])[..., 0]
    missed = change - x0_change - linear.jacobian @ step
    return replace(linear, jacobian=linear.jacobian + missed[..., None] * (step / (step @ step)))


def finish(problem: Problem, state: State, source: JacobianSource | None, settings: Settings) -> Fit:
    """Exact derivatives, then chord steps with them until the point rests. They are taken anew if it moved far.

    They are also taken anew if chords with them cannot bring it to rest: intervals would come from the wrong place.
    """
    taken = 0
    while True:
        linear, at, taken = _exact(problem, state, source, settings), state, taken + 1
        state, normal = chords(problem, state, linear, settings)
        moved = float(np.max(np.abs(state.z - at.z)))
        near = state is at or _distance(problem, state, normal) < settings.near_sd
        if (moved < settings.relinearise and near) or taken == settings.max_linearisations:
            return Fit(state, linear, normal)


def _distance(problem: Problem, state: State, normal: Normal) -> float:
    """Length of the next step in standard deviations, RMS over the parameters."""
    information, _ = problem.totals(state, normal)
    step = problem.step(state, normal, 0.0)
    return float(np.sqrt(step @ information @ step / len(step)))


def _exact(problem: Problem, state: State, source: JacobianSource | None, settings: Settings) -> Linearisation:
    """Exact derivatives at the state: of all parameters, or along the weakest directions of the learned information."""
    point = problem.point(state)
    if source is None:
        return problem.exact.linearise(point)
    learned = source.linearise(point)
    if settings.exact_x0:
        learned = replace(learned, x0_jacobian=problem.exact.initial_state(point))
    if not settings.weak_directions:
        return replace(learned, jacobian=problem.exact.parameters(point))
    information, _ = problem.totals(state, problem.normal(state, learned))
    weak = np.linalg.eigh(information)[1][:, : settings.weak_directions]
    difference = problem.exact.parameters(point, weak) - learned.jacobian @ weak
    return replace(learned, jacobian=learned.jacobian + difference @ weak.T)


def chords(problem: Problem, state: State, linear: Linearisation, settings: Settings) -> tuple[State, Normal]:
    """Steps with the same derivatives, corrected along the steps taken, until they are small.

    Returns the normal equations of the uncorrected derivatives at the final state.
    """
    damping, used = 0.0, linear
    for _ in range(settings.max_chords):
        normal = problem.normal(state, used)
        distance = _distance(problem, state, normal)
        if distance < settings.resting_sd:
            break
        step = problem.step(state, normal, damping)
        trial = problem.move(state, normal, step)
        used = _secant(used, state, trial, step) if np.isfinite(problem.cost(trial)) else used
        if problem.cost(trial) < problem.cost(state):
            used, linear = problem.carry(used, step), problem.carry(linear, step)
            state, damping = problem.keep(trial), damping / settings.damping_down
        elif distance < settings.near_sd:
            break  # sticking joints make the cost rough at this scale
        else:
            damping = max(damping, settings.least_damping) * settings.damping_up
    return state, problem.normal(state, linear)
