"""From windows to an identification: fit, discrepancy, uncertainty, structure, and what survives it. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gapd.errors import InputError
from gapd.fit.estimator import Fit, Problem, Progress, Settings, State, chords, descend, finish, start
from gapd.fit.finding import Finding
from gapd.fit.gauss_newton import channel_rms, normal_equations
from gapd.fit.nuisance import Structural, structural
from gapd.fit.structure import surviving
from gapd.fit.uncertainty import Uncertainty, unknown_directions
from gapd.gap.jacobian import FiniteDifference, JacobianSource
from gapd.gap.replay import Replay
from gapd.measured.windows import Windows

Array = NDArray[np.float64]

# Without a gap model finite differences lead, with steps longer than those of exact derivatives: 3 % of a value.
COARSE = 30.0
# What sticking joints make the cost rise by for any step.
ROUGH = 1.0
# Putting back what is not identified may cost this much, before the others are fitted anew.
FAR_BACK = 10.0
# Replays along what the data do not identify: the step, and what undoes its effect.
RESTS = 3
# Channels that the best fit leaves above this many noise standard deviations have a model error worth weighing.
DISCREPANCY_FROM = 1.2


@dataclass(frozen=True)
class Identification:
    """Everything the windows say about the parameters; scaled values (P,)."""

    before: Array
    fit: Fit
    uncertainty: Uncertainty
    weight: Array  # (C,) noise over noise and discrepancy
    findings: tuple[Finding, ...]
    beside: State  # the fit with the findings as nuisances; the fit itself if there are none
    survives: NDArray[np.bool_]  # (P,)
    trace: tuple[Progress, ...]
    rollouts: int
    learned: bool  # whether the gap model led the way

    @property
    def z(self) -> Array:
        """The estimate (P,)."""
        return self.fit.state.z

    @property
    def with_nuisance(self) -> Array:
        """The estimate (P,) with the findings as nuisances."""
        return self.beside.z


def identify(
    replay: Replay,
    windows: Windows,
    before: Array,
    learned: JacobianSource | None = None,
    test_structure: bool = True,
) -> Identification:
    """Identify the parameters from windows, starting at `before` (P,), scaled; `learned` leads, if given."""
    first = replay.rollouts
    problem, fit = _weighed(Problem.of(replay, windows, before), learned)
    problem, fit, uncertainty = _held(problem, fit, learned)
    told = structural(problem, fit) if test_structure else Structural((), fit.state)
    survives = ~uncertainty.unknown & surviving(before, fit.state.z, told.state.z, uncertainty.sd)
    return Identification(
        before, fit, uncertainty, problem.weight, told.findings, told.state, survives, tuple(problem.trace),
        replay.rollouts - first, learned is not None,
    )  # fmt: skip


def _weighed(problem: Problem, learned: JacobianSource | None) -> tuple[Problem, Fit]:
    """Fit, and fit again where channels are left with more than noise: those then count less."""
    settings = Settings()
    source = _source(problem, learned)
    state = start(problem, problem.prior_mean)
    _require_finite(state)
    fit = finish(problem, descend(problem, state, source, settings), learned, settings)
    weight = _weight(fit.state.gap)
    if weight.min() == 1.0:
        return problem, fit
    problem = replace(problem, weight=weight)
    return problem, finish(problem, descend(problem, fit.state, source, settings), learned, settings)


def _source(problem: Problem, learned: JacobianSource | None) -> JacobianSource:
    return learned or FiniteDifference(problem.exact.replay, COARSE)


def _held(problem: Problem, fit: Fit, learned: JacobianSource | None) -> tuple[Problem, Fit, Uncertainty]:
    """Put what the data do not identify back where it was, and let the others settle around it.

    Of a group the data know a combination: holding its members would bend the others. The prior keeps it from moving
    along what is unknown, but a fit may rest before that has come to its end.
    """
    uncertainty = problem.assess(fit)
    if uncertainty.ambiguous:
        fit = _rested(problem, fit)
        uncertainty = problem.assess(fit)
    unknown = uncertainty.unknown
    unknown[[p for group in uncertainty.ambiguous for p in group]] = False
    if not unknown.any():
        return problem, fit, uncertainty
    free, problem, may_cost = problem, replace(problem, held=unknown), problem.cost(fit.state) + FAR_BACK
    state = problem.evaluate(np.where(unknown, problem.prior_mean, fit.state.z), fit.state.dx0)
    beside = chords(problem, state, problem.carry(fit.exact, fit.state, state), Settings())
    if problem.cost(beside.state) > may_cost:
        # Others had made up for it: they have a way to go, on which the old derivatives lead astray.
        beside = finish(problem, descend(problem, state, _source(problem, learned), Settings()), learned, Settings())
    if problem.cost(beside.state) > may_cost:
        return free, fit, uncertainty  # the data say that it is not where it was, if not where it is
    fit = beside
    told = problem.assess(fit)
    status = tuple("unidentifiable" if u else s for u, s in zip(unknown, told.status, strict=True))
    return problem, fit, replace(told, status=status)


def _rested(problem: Problem, fit: Fit) -> Fit:
    """The fit after a step along what the data do not identify: there the prior decides, and its pull is weak.

    Derivatives know that direction as well as their steps are short, so that replays change a little along it. That
    change, and nothing else, is undone. The step is kept unless it costs more than sticking joints make a cost rough.
    """
    here, space, windows = fit.state, problem.space, problem.windows
    free = problem.prior_sd[:, None] * unknown_directions(fit.normal.information.sum(axis=0), problem.prior_sd)
    information, score = problem.totals(here, fit.normal)
    step = free @ np.linalg.solve(free.T @ information @ free, free.T @ score)
    z, dx0, there = here.z + step, here.dx0, here
    for _ in range(RESTS):
        there = problem.evaluate(np.clip(z, space.z_min, space.z_max), dx0)
        if not np.isfinite(problem.cost(there)):
            return fit
        exact = problem.carry(fit.exact, here, there)
        changed = normal_equations(there.gap - here.gap, exact, problem.weight, there.dx0 - here.dx0, windows.x0_sd)
        back = np.linalg.solve(problem.totals(there, changed)[0], changed.score.sum(axis=0))
        lower, upper = space.box(there.z)
        if ((back < lower) | (back > upper)).any():
            return fit  # so large a change is more than what replays do along the direction
        z, dx0 = space.advance(there.z, back), there.dx0 + changed.x0_step(back)
    if problem.cost(there) > problem.cost(here) + ROUGH:
        return fit
    exact = problem.carry(fit.exact, here, there)
    return Fit(problem.keep(there), exact, problem.normal(there, exact))


def _require_finite(state: State) -> None:
    failed = int(state.rollouts.failed.sum())
    if failed:
        raise InputError(
            f"the replay diverges in {failed} of {len(state.rollouts.failed)} windows with the present values of the "
            "parameters; correct them with --set or in parameters.toml, and check the units of the recording"
        )


def _weight(gap: Array) -> Array:
    """Weight (C,) from the gap (W, K, C) that the best fit leaves: noise over noise and discrepancy."""
    rms = channel_rms(gap)
    return np.asarray(np.where(rms > DISCREPANCY_FROM, 1.0 / np.maximum(rms, 1.0), 1.0))
