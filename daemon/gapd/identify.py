"""From windows to an identification: fit, discrepancy, uncertainty, structure, and what survives it. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gapd.errors import InputError
from gapd.estimator import Fit, Problem, Progress, Settings, State, chords, descend, finish, start
from gapd.jacobian import FiniteDifference, JacobianSource
from gapd.nuisance import findings, refit
from gapd.replay import Replay
from gapd.structure import Finding, surviving
from gapd.uncertainty import Uncertainty, assess
from gapd.windows import Windows

Array = NDArray[np.float64]

# Below this many parameters finite differences are cheap, and a learned phase does not earn its place.
LEARNED_FROM = 8
# Channels that the best fit leaves above this many noise standard deviations have a model error worth weighing.
DISCREPANCY_FROM = 1.2
# Prior standard deviation as a share of the range between the bounds: wide, it only holds what the data do not.
PRIOR_SHARE = 0.5


@dataclass(frozen=True)
class Identification:
    """Everything the windows say about the parameters; scaled values (P,)."""

    before: Array
    fit: Fit
    uncertainty: Uncertainty
    weight: Array  # (C,) noise over noise and discrepancy
    findings: tuple[Finding, ...]
    with_nuisance: Array  # (P,) estimate with the findings as nuisances; the estimate itself if there are none
    survives: NDArray[np.bool_]  # (P,)
    trace: tuple[Progress, ...]
    rollouts: int
    learned: bool  # whether the gap model led the way

    @property
    def z(self) -> Array:
        """The estimate (P,)."""
        return self.fit.state.z


def identify(
    replay: Replay,
    windows: Windows,
    before: Array,
    learned: JacobianSource | None = None,
    settings: Settings | None = None,
    test_structure: bool = True,
) -> Identification:
    """Identify the parameters from windows, starting at `before` (P,), scaled."""
    settings = settings or Settings()
    space, exact = replay.robot.parameters, FiniteDifference(replay)
    learned = learned if len(space) >= LEARNED_FROM else None
    first = replay.rollouts
    problem = Problem(
        exact,
        windows,
        before,
        PRIOR_SHARE * (space.z_max - space.z_min),
        np.ones(len(replay.robot.layout.noise)),
    )
    state = start(problem, before)
    _require_finite(state)
    # Exact derivatives need no correction: one carried over from another point only makes them worse.
    source, secant = learned or exact, learned is not None
    fit = finish(problem, descend(problem, state, source, settings, secant), learned, settings)
    weight = _weight(fit.state.gap)
    if weight.min() < 1.0:
        problem = replace(problem, weight=weight)
        fit = finish(problem, descend(problem, fit.state, source, settings, secant), learned, settings)
    uncertainty = _assess(problem, fit, replay)
    unknown = np.array([s == "unidentifiable" for s in uncertainty.status])
    # Of a group the data know a combination: holding its members would bend the others. The prior already keeps
    # it from moving along what is unknown.
    unknown[[p for group in uncertainty.groups if len(group) > 1 for p in group]] = False
    if unknown.any():
        problem = replace(problem, held=unknown)
        fit = _without(problem, fit, before, settings)
    found: list[Finding] = []
    with_nuisance = fit.state.z
    if test_structure:
        found = findings(problem, fit)
        with_nuisance = refit(problem, fit, found, settings) if found else with_nuisance
    known = np.array([s != "unidentifiable" for s in uncertainty.status])
    survives = known & surviving(before, fit.state.z, with_nuisance, uncertainty.sd)
    return Identification(
        before,
        fit,
        uncertainty,
        weight,
        tuple(found),
        with_nuisance,
        survives,
        tuple(problem.trace),
        replay.rollouts - first,
        learned is not None,
    )


def _require_finite(state: State) -> None:
    failed = int(state.rollouts.failed.sum())
    if failed:
        raise InputError(
            f"the replay diverges in {failed} of {len(state.rollouts.failed)} windows with the present values of the "
            "parameters; correct them with --set or in parameters.toml, and check the units of the recording"
        )


def _weight(gap: Array) -> Array:
    """Weight (C,) from the gap (W, K, C) that the best fit leaves: noise over noise and discrepancy."""
    present = np.isfinite(gap)
    rms = np.sqrt(np.nansum(gap**2, axis=(0, 1)) / np.maximum(present.sum(axis=(0, 1)), 1))
    return np.asarray(np.where(rms > DISCREPANCY_FROM, 1.0 / np.maximum(rms, 1.0), 1.0))


def _assess(problem: Problem, fit: Fit, replay: Replay) -> Uncertainty:
    space = replay.robot.parameters
    return assess(
        fit.normal.information, fit.normal.score, problem.prior_sd, fit.state.z, space.z_min, space.z_max
    )  # fmt: skip


def _without(problem: Problem, fit: Fit, before: Array, settings: Settings) -> Fit:
    """Put what the data do not identify back where it was, and let the others settle around it."""
    state = problem.evaluate(np.where(problem.held, before, fit.state.z), fit.state.dx0)
    state, normal = chords(problem, state, fit.exact, settings)
    return replace(fit, state=state, normal=normal)
