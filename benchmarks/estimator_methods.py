"""The ways to fit that the estimator's benchmark compares: gapd's, plain finite differences, Broyden, mujoco.sysid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from estimator_runs import THREADS
from numpy.typing import NDArray
from trial import FrozenInitialState, Trial, every_step

from gapd.fit.estimator import Fit, Problem, Progress, Settings, State, descend, finish, start
from gapd.fit.identify import COARSE
from gapd.gap.jacobian import FiniteDifference, JacobianSource, Linearisation, Point
from gapd.gap.replay import Replay
from gapd.gap_model.learned import Learned

Array = NDArray[np.float64]
# Finite-difference Gauss-Newton goes on until a step gains less than a thousandth.
PATIENT = Settings(max_steps=40, slow=0.999, patience=3)


@dataclass(frozen=True)
class Solution:
    """Where a method ended (P,), the points on the way, its rollouts, and half widths (P,) of its 90 % intervals."""

    z: Array
    trace: tuple[Progress, ...]
    rollouts: int
    half_width: Array | None = None


Method = Callable[[Trial, Learned | None], Solution]

GAPD = "gapd, learned + exact finish"
EXACT = "gapd, finite differences + exact finish"
GAUSS_NEWTON = "finite-difference Gauss-Newton"


class Once:
    """Derivatives at the first point only; what follows is left to Broyden's updates."""

    def __init__(self, exact: JacobianSource) -> None:
        self.exact = exact
        self._first: Linearisation | None = None

    def linearise(self, point: Point) -> Linearisation:
        """See `JacobianSource`."""
        self._first = self._first or self.exact.linearise(point)
        return self._first


def _begin(trial: Trial) -> tuple[Problem, State]:
    problem = trial.problem(Replay(trial.robot, THREADS))
    return problem, start(problem, trial.robot.parameters.z_nominal)


def learned_only(trial: Trial, learned: Learned | None) -> Solution:
    """The learned phase alone. Its own covariance does not define an interval."""
    assert learned is not None  # noqa: S101 - `methods` leaves it out otherwise
    problem, state = _begin(trial)
    state = descend(problem, state, learned, Settings())
    return Solution(state.z, tuple(problem.trace), problem.used)


def with_finish(settings: Settings, plain: bool = False) -> Method:
    """A first phase, learned or as gapd does it without a gap model, and a finish."""

    def solve(trial: Trial, learned: Learned | None) -> Solution:
        problem, state = _begin(trial)
        coarse = FiniteDifference(problem.exact.replay, COARSE)
        source: JacobianSource = coarse if plain or learned is None else learned
        fit = finish(problem, descend(problem, state, source, settings), learned, settings)
        return Solution(fit.state.z, tuple(problem.trace), problem.used, problem.assess(fit).half_width(0.90))

    return solve


def finite_differences(frozen: bool) -> Method:
    """Gauss-Newton with a new finite-difference Jacobian in each step."""

    def solve(trial: Trial, learned: Learned | None) -> Solution:
        problem, state = _begin(trial)
        source = FrozenInitialState(problem.exact) if frozen else problem.exact
        state = descend(problem, state, source, PATIENT, secant=False)
        used = problem.used
        linear = problem.exact.linearise(problem.point(state))
        fit = Fit(state, linear, problem.normal(state, linear))
        return Solution(state.z, tuple(problem.trace), used, problem.assess(fit).half_width(0.90))

    return solve


def broyden(trial: Trial, learned: Learned | None) -> Solution:
    """One finite-difference Jacobian at the start, Broyden's updates from then on."""
    problem, state = _begin(trial)
    state = descend(problem, state, Once(problem.exact), replace(PATIENT, secant_memory=1.0, max_steps=80))
    return Solution(state.z, tuple(problem.trace), problem.used)


LEARNED: dict[str, Method] = {
    GAPD: with_finish(Settings()),
    "gapd, learned phase only": learned_only,
    "gapd, learned + 12 weakest directions": with_finish(Settings(weak_directions=12)),
}
PLAIN: dict[str, Method] = {
    EXACT: with_finish(Settings(), plain=True),
    GAUSS_NEWTON: finite_differences(frozen=False),
    "the same, x0 derivatives once": finite_differences(frozen=True),
    "one Jacobian + Broyden": broyden,
}


def methods(learned: Learned | None, parameters: int) -> dict[str, Method]:
    """All methods that can run on a problem."""
    chosen = LEARNED if learned is not None else {}
    return {k: v for k, v in chosen.items() if "weakest" not in k or parameters > 12} | PLAIN


def shipped(learned: Learned | None) -> str:
    """The method that `gapd` takes by itself."""
    return GAPD if learned is not None else EXACT


def sysid_method(scale: str, x_scale: str | None, knots_only: bool) -> Method:
    """mujoco.sysid with one choice of its settings."""
    from peers import sysid_fit

    def solve(trial: Trial, learned: Learned | None) -> Solution:
        fit = sysid_fit(
            trial.robot if knots_only else every_step(trial.robot), trial.windows if knots_only else trial.fine,
            trial.robot.parameters.z_nominal, scale=scale, x_scale=x_scale, knots_only=knots_only, threads=THREADS,
        )  # fmt: skip
        return Solution(fit.z, fit.trace, fit.rollouts)

    return solve


def sysid_name(scale: str, x_scale: str | None, knots_only: bool) -> str:
    """What the tables call it."""
    return f"mujoco.sysid, {scale}{', x_scale' if x_scale else ''}, {'knots' if knots_only else 'all samples'}"


SYSID: dict[str, Method] = {
    sysid_name(*choice): sysid_method(*choice)
    for choice in (
        ("log", None, True), ("log", "jac", True), ("linear", None, True), ("log", None, False),
        ("linear", None, False),
    )
}  # fmt: skip
# As the tool comes: physical values, every sample.
SYSID_DEFAULT = sysid_name("linear", None, False)
