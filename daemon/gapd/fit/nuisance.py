"""Structural hypotheses against a fit: test them, and fit again with what was found as a nuisance. No I/O.

The strongest hypothesis is fitted together with all parameters, and the others are tested again beside it, until none
holds. Each round starts from exact derivatives with the forces found so far: the first order of a large effect gives a
wrong coefficient and drags its neighbours along.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gapd.fit.estimator import Fit, Problem, Settings, State
from gapd.fit.finding import Finding
from gapd.fit.gauss_newton import Normal, damped_step, normal_equations, residuals
from gapd.fit.hypotheses import TRIAL_SHARE, Hypothesis, hypotheses
from gapd.fit.structure import LOOSE, Prior, column_covariance, combine, contenders
from gapd.fit.uncertainty import CHANGE_SD
from gapd.gap.jacobian import Linearisation
from gapd.gap.replay import NOTHING, Unmodelled
from gapd.model.parameters import LARGEST_MOVE

Array = NDArray[np.float64]

# Findings at most: beside three model errors nobody believes the fourth.
MOST_FINDINGS = 3
# Linearisations of one refit, and steps with each. A step replays the forces along the motion that the last one gave.
LINEARISATIONS = 3
STEPS = 6
# Each further coefficient has to explain this share more: the simpler of two that explain nearly as much holds.
SIMPLER = 0.018
# A step that leaves more than this share of the cost is the last with its derivatives.
ENOUGH = 0.999


@dataclass(frozen=True)
class Structural:
    """What no parameter explains, strongest first, and the fit beside it: its state has the forces of the findings."""

    findings: tuple[Finding, ...]
    state: State


@dataclass(frozen=True)
class _Fit:
    """A fit with hypotheses along its motion, all their physical coefficients (n,), and derivatives of the replay."""

    state: State
    exact: Linearisation
    chosen: tuple[Hypothesis, ...]
    coefficient: Array

    @property
    def sizes(self) -> Array:
        """Size (n,) of each coefficient."""
        return np.array([h.size for h in self.chosen for _ in h.effects])

    def each(self) -> list[Array]:
        """The coefficients (m,) of each hypothesis."""
        edges = np.cumsum([len(h.effects) for h in self.chosen])
        return np.split(self.coefficient, edges)[:-1]


def structural(problem: Problem, fit: Fit) -> Structural:
    """Test what a fit leaves, and fit again beside what is found."""
    fits = [_Fit(fit.state, fit.exact, (), np.zeros(0))]
    while len(fits) <= MOST_FINDINGS:
        here = fits[-1]
        known = {h.name for h in here.chosen}
        tested = [h for h in _along(problem, here) if h.name not in known]
        prior = _prior(problem, here.state)
        if not tested:
            break
        normal = _extended(problem, here, [*here.chosen, *tested])
        found = [_with(problem, here, h) for h in contenders(tested, normal, prior, _left(problem, here.state))]
        fitted = [f for f in found if f is not None]
        if not fitted:
            break
        began = problem.cost(here.state)
        there = max(fitted, key=lambda f: (began - problem.cost(f.state)) / (1.0 + SIMPLER * len(f.chosen[-1].effects)))
        fits.append(there)
    return Structural(_findings(problem, fits), fits[-1].state)


def _findings(problem: Problem, fits: list[_Fit]) -> tuple[Finding, ...]:
    """What each round added, with the coefficients of the last: they hold together.

    What is not significant beside the later ones was one of them in disguise, and is none.
    """
    last, left = fits[-1], [_left(problem, f.state) for f in fits]
    if not last.chosen:
        return ()
    prior, normal = _prior(problem, last.state), _extended(problem, last, list(last.chosen))
    directions = _directions(last, column_covariance(normal, prior) * np.outer(last.sizes, last.sizes))
    along = np.diag(column_covariance(combine(normal, len(last.state.z), directions), prior))
    sds = (np.sqrt(along) * [h.size for h in last.chosen]).tolist()
    found, before = list[Finding](), left[0]
    for h, c, d, sd, after in zip(last.chosen, last.each(), directions, sds, left[1:], strict=True):
        size = float(c @ d)
        if abs(size) < CHANGE_SD * sd:
            continue
        direction = tuple(d.tolist()) if len(d) > 1 else ()
        share = max(1.0 - after / before, 0.0)
        found.append(Finding(h.regressor, h.joint, size / sd, share, size, sd, h.unit, direction))
        before = after
    return tuple(found)


def _directions(fit: _Fit, covariance: Array) -> list[Array]:
    """Unit vector (m,) along the coefficients of each hypothesis, without the parts that the data do not determine."""
    found, first = [], 0
    for c in fit.each():
        own = slice(first, first + len(c))
        first += len(c)
        if len(c) == 1:
            found.append(np.ones(1))
            continue
        variance, axes = np.linalg.eigh(covariance[own, own])
        part = axes.T @ c
        z = np.abs(part) / np.sqrt(np.maximum(variance, 1e-30))
        known = axes @ (part * (z >= min(CHANGE_SD, z.max())))
        found.append(known / max(float(np.linalg.norm(known)), 1e-30))
    return found


def _with(problem: Problem, here: _Fit, hypothesis: Hypothesis) -> _Fit | None:
    """The fit beside one more hypothesis; None if that takes nothing away."""
    coefficient = np.append(here.coefficient, np.zeros(len(hypothesis.effects)))
    return _refit(problem, replace(here, chosen=(*here.chosen, hypothesis), coefficient=coefficient))


def _refit(problem: Problem, here: _Fit) -> _Fit | None:
    """All parameters and coefficients together; None if that takes nothing away."""
    began = problem.cost(here.state)
    for _ in range(LINEARISATIONS):
        before = problem.cost(here.state)
        here = _steps(problem, here)
        if problem.cost(here.state) > ENOUGH * before:
            break
        here = replace(here, exact=problem.exact.linearise(problem.point(here.state)))
    return here if problem.cost(here.state) < began else None


def _steps(problem: Problem, here: _Fit) -> _Fit:
    """Damped steps with the same derivatives of the replay, carried along, and new ones of the forces."""
    settings, p = Settings(), len(here.state.z)
    damping = settings.damping
    normal = _extended(problem, here, list(here.chosen))
    for _ in range(STEPS):
        step = _step(problem, here, normal, damping)
        coefficient = here.coefficient + step[p:] * here.sizes
        acting = _acting(replace(here, coefficient=coefficient))
        dx0 = here.state.dx0 + normal.x0_step(step)
        trial = problem.evaluate(problem.space.advance(here.state.z, step[:p]), dx0, acting)
        before, after = problem.cost(here.state), problem.cost(trial)
        if after >= before:
            damping *= settings.damping_up
            continue
        along = {h.name: h for h in _along(problem, replace(here, state=trial, coefficient=coefficient))}
        chosen = tuple(along.get(h.name, h) for h in here.chosen)
        here = _Fit(trial, problem.carry(here.exact, here.state, trial), chosen, coefficient)
        if after > ENOUGH * before:
            break
        damping /= settings.damping_down
        normal = _extended(problem, here, list(chosen))
    return here


def _acting(here: _Fit) -> Unmodelled:
    """All hypotheses with their coefficients."""
    effects = [e for h in here.chosen for e in h.effects]
    return sum((c * e for c, e in zip(here.coefficient.tolist(), effects, strict=True)), NOTHING)


def _step(problem: Problem, here: _Fit, normal: Normal, damping: float) -> Array:
    """Damped step of the parameters (P,) within their box, followed by one of each coefficient in units of its size."""
    information, score = normal.information.sum(axis=0), normal.score.sum(axis=0)
    p, prior, coefficient = len(here.state.z), _prior(problem, here.state), here.coefficient / here.sizes
    information += np.diag(1.0 / np.concatenate([prior.sd, np.full(len(coefficient), LOOSE)]) ** 2)
    score += np.concatenate([prior.pull, -coefficient / LOOSE**2])
    low, high = problem.space.box(here.state.z)
    loose = np.full(len(score) - p, LARGEST_MOVE)
    lower = np.concatenate([np.where(problem.held, 0.0, low), -loose])
    upper = np.concatenate([np.where(problem.held, 0.0, high), loose])
    return damped_step(information, score, damping, lower, upper)


def _along(problem: Problem, here: _Fit) -> list[Hypothesis]:
    """All hypotheses, along the motion of the fit."""
    gaps = {h.joint: float(c[0]) for h, c in zip(here.chosen, here.each(), strict=True) if h.regressor == "backlash"}
    return hypotheses(problem.exact.replay.robot, problem.windows, here.state.rollouts.features, gaps)


def _prior(problem: Problem, state: State) -> Prior:
    return Prior(problem.prior_sd, (problem.prior_mean - state.z) / problem.prior_sd**2)


def _left(problem: Problem, state: State) -> float:
    """Squared weighted gap."""
    return float(np.sum(residuals(state.gap, problem.weight) ** 2))


def _extended(problem: Problem, here: _Fit, columns: list[Hypothesis]) -> Normal:
    """Normal equations with further columns for hypotheses: the exact effect of a little of each.

    Columns count in units of the hypothesis's size, so that steps are of the size of scaled parameters.
    """
    effects = [problem.effect(here.state, (TRIAL_SHARE * h.size) * e) / TRIAL_SHARE for h in columns for e in h.effects]
    jacobian = np.concatenate([here.exact.jacobian, np.stack(effects, axis=-1)], axis=-1)
    linear = replace(here.exact, jacobian=jacobian)
    return normal_equations(here.state.gap, linear, problem.weight, here.state.dx0, problem.windows.x0_sd)
