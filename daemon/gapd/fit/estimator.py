"""The fit: a learned phase that finds the neighbourhood, and an exact finish that defines the answer. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gapd.fit.gauss_newton import Normal, channel_rms, damped_step, normal_equations, residuals
from gapd.fit.uncertainty import Uncertainty, assess
from gapd.gap.jacobian import FiniteDifference, JacobianSource, Linearisation, Point
from gapd.gap.replay import NOTHING, Replay, Rollouts, Unmodelled, gap
from gapd.measured.windows import Windows
from gapd.model.parameters import ParameterSet

Array = NDArray[np.float64]

# Prior standard deviation as a share of the range between the bounds: wide, it only holds what the data do not.
PRIOR_SHARE = 0.5
# Rounds in which held-out windows clear their initial states: most need two, those with joints at rest a shorter step.
SETTLING = 3


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
    weak_directions: int = 0  # 0: exact derivatives along all parameters; else along the weakest ones


@dataclass(frozen=True)
class State:
    """A point of the fit with its replay, in which `unmodelled` acted besides."""

    z: Array  # (P,)
    dx0: Array  # (W, 2 nv) correction of the measured initial states
    rollouts: Rollouts
    gap: Array  # (W, K, C)
    unmodelled: Unmodelled = NOTHING


@dataclass(frozen=True)
class Progress:
    """One kept point of the trace: rollouts used so far, the scaled parameters (P,)."""

    rollouts: int
    z: Array


@dataclass(frozen=True)
class Fit:
    """Result of a fit. The intervals come from `normal`: exact derivatives, at the final point or carried there."""

    state: State
    exact: Linearisation
    normal: Normal


@dataclass
class Problem:
    """Windows to be explained, from a prior over the scaled parameters.

    weight (C,) is noise / sqrt(noise² + discrepancy²) per channel; prior_mean, prior_sd (P,) are scaled;
    `held` (P,) marks parameters that stay where they are. `of` fills in what most callers want.
    """

    exact: FiniteDifference
    windows: Windows
    prior_mean: Array
    prior_sd: Array
    weight: Array
    held: NDArray[np.bool_]
    trace: list[Progress] = field(default_factory=list)

    @classmethod
    def of(cls, replay: Replay, windows: Windows, before: Array, weight: Array | None = None) -> Problem:
        """Nothing held, channels weighted (C,) or by their noise alone, the wide prior around before (P,)."""
        space, channels = replay.robot.parameters, len(replay.robot.layout.noise)
        return cls(
            FiniteDifference(replay), windows, before, PRIOR_SHARE * (space.z_max - space.z_min),
            np.ones(channels) if weight is None else weight, np.zeros(len(space), bool),
        )  # fmt: skip

    @property
    def space(self) -> ParameterSet:
        """The parameters."""
        return self.exact.replay.robot.parameters

    @property
    def used(self) -> int:
        """Rollouts so far."""
        return self.exact.replay.rollouts

    def evaluate(self, z: Array, dx0: Array, unmodelled: Unmodelled = NOTHING) -> State:
        """Replay at z with corrected initial states, and a hypothesis if given. Divergence costs infinity."""
        robot, windows = self.exact.replay.robot, self.windows
        nv = windows.qpos0.shape[1]
        rollouts = self.exact.replay.run(
            windows, robot.parameters.to_physical(z), windows.qpos0 + dx0[:, :nv], windows.qvel0 + dx0[:, nv:],
            unmodelled,
        )  # fmt: skip
        return State(z, dx0, rollouts, gap(windows, rollouts, robot.layout.noise), unmodelled)

    def cost(self, state: State, weight: Array | None = None) -> float:
        """Squared residuals with their weights (C,), plus what the initial states and the prior pay."""
        paid = np.sum(((state.z - self.prior_mean) / self.prior_sd) ** 2)
        return float(np.sum(self.window_costs(state, weight)) + paid)

    def window_costs(self, state: State, weight: Array | None = None) -> Array:
        """What each window adds to the cost (W,), its initial state included; infinite where the replay diverged."""
        squared = np.sum(residuals(state.gap, self.weight if weight is None else weight) ** 2, axis=1)
        paid = np.sum((state.dx0 / self.windows.x0_sd) ** 2, axis=1)
        return np.where(state.rollouts.failed, np.inf, squared + paid)

    def assess(self, fit: Fit) -> Uncertainty:
        """What the fit knows."""
        space, normal = self.space, fit.normal
        return assess(normal.information, normal.score, self.prior_sd, fit.state.z, space.z_min, space.z_max)

    def keep(self, state: State) -> State:
        """Note a kept point in the trace."""
        self.trace.append(Progress(self.used, state.z))
        return state

    def effect(self, state: State, unmodelled: Unmodelled) -> Array:
        """Change of the state's prediction (W, K, C), in channel noise, if that acted, too."""
        return state.gap - self.evaluate(state.z, state.dx0, state.unmodelled + unmodelled).gap

    def point(self, state: State) -> Point:
        """Where to linearise."""
        nv = self.windows.qpos0.shape[1]
        return Point(
            self.windows, state.z, self.windows.qpos0 + state.dx0[:, :nv], self.windows.qvel0 + state.dx0[:, nv:],
            state.rollouts, state.unmodelled,
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

    def carry(self, linear: Linearisation, here: State, there: State) -> Linearisation:
        """Derivatives taken at one point, at another one if the model is linear in the physical values."""
        return replace(linear, jacobian=linear.jacobian * self.space.growth(here.z, there.z))


def start(problem: Problem, z: Array) -> State:
    """First replay, from the measured initial states."""
    return problem.keep(problem.evaluate(z, np.zeros((len(problem.windows), problem.windows.x0_sd.shape[1]))))


def settle(problem: Problem, state: State) -> State:
    """Move only the initial states: the gap of a window is what remains after its own x0 has been cleared.

    Windows do not depend on each other here, so each takes its step only if that lowers its own cost, and a shorter
    one in the next round if not.
    """
    share, no_parameters = np.ones((len(problem.windows), 1)), np.zeros((*state.gap.shape, len(state.z)))
    for _ in range(SETTLING):
        x0_jacobian = problem.exact.initial_state(problem.point(state))
        normal = problem.normal(state, Linearisation(no_parameters, x0_jacobian))
        trial = problem.evaluate(state.z, state.dx0 + share * normal.x0_step(np.zeros(len(state.z))))
        lower = problem.window_costs(trial) < problem.window_costs(state)
        state = _where(lower, trial, state)
        share = np.where(lower[:, None], 1.0, share / 3)
    return state


def _where(chosen: NDArray[np.bool_], there: State, here: State) -> State:
    """Window by window the one state or the other, of the same parameters; chosen (W,)."""

    def pick(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        return np.where(chosen.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    a, b = there.rollouts, here.rollouts
    rollouts = Rollouts(
        pick(a.predicted, b.predicted), pick(a.features, b.features), pick(a.failed, b.failed)
    )  # fmt: skip
    return State(here.z, pick(there.dx0, here.dx0), rollouts, pick(there.gap, here.gap))


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
            linear = _blend(problem.carry(learnt, state, trial), fresh, settings.secant_memory) if secant else fresh
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
    return np.asarray(problem.weight / np.sqrt(np.maximum(channel_rms(state.gap * problem.weight), 1.0)))


def _blend(carried: Linearisation, fresh: Linearisation, share: float) -> Linearisation:
    """A share of the carried derivatives and the rest of the fresh ones, in the memory of the carried ones."""
    jacobian = carried.jacobian
    jacobian -= fresh.jacobian
    jacobian *= share
    jacobian += fresh.jacobian
    return replace(fresh, jacobian=jacobian)


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
        at, taken = state, taken + 1
        fit = chords(problem, state, _exact(problem, state, source, settings), settings)
        state = fit.state
        moved = float(np.max(np.abs(state.z - at.z)))
        near = state is at or _distance(problem, state, fit.normal) < settings.near_sd
        if (moved < settings.relinearise and near) or taken == settings.max_linearisations:
            return fit


def _distance(problem: Problem, state: State, normal: Normal) -> float:
    """Length of the next step in standard deviations, RMS over the parameters."""
    information, _ = problem.totals(state, normal)
    step = problem.step(state, normal, 0.0)
    return float(np.sqrt(step @ information @ step / len(step)))


def _exact(problem: Problem, state: State, source: JacobianSource | None, settings: Settings) -> Linearisation:
    """Exact derivatives at the state: of all parameters, or along the weakest directions of the learned information."""
    point = problem.point(state)
    if source is None or not settings.weak_directions:
        return problem.exact.linearise(point)
    learned = replace(source.linearise(point), x0_jacobian=problem.exact.initial_state(point))
    information, _ = problem.totals(state, problem.normal(state, learned))
    weak = np.linalg.eigh(information)[1][:, : settings.weak_directions]
    difference = problem.exact.parameters(point, weak) - learned.jacobian @ weak
    return replace(learned, jacobian=learned.jacobian + difference @ weak.T)


def chords(problem: Problem, state: State, linear: Linearisation, settings: Settings) -> Fit:
    """Steps with the same derivatives, corrected along the steps taken, until they are small.

    The fit has the uncorrected derivatives, carried to the final state.
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
            used, linear = problem.carry(used, state, trial), problem.carry(linear, state, trial)
            state, damping = problem.keep(trial), damping / settings.damping_down
        elif distance < settings.near_sd:
            break  # sticking joints make the cost rough at this scale
        else:
            damping = max(damping, settings.least_damping) * settings.damping_up
    return Fit(state, linear, problem.normal(state, linear))
