"""Structural hypotheses against a fit: test them, then fit again with what was found as a nuisance. No I/O."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gapd.estimator import Fit, Problem, Settings, State
from gapd.gauss_newton import Normal, damped_step, normal_equations, residuals
from gapd.parameters import LARGEST_MOVE
from gapd.structure import Finding, Hypothesis, hypotheses, judge

Array = NDArray[np.float64]

# Steps of the refit. Each replays the forces along the motion that the last one gave.
ROUNDS = 10


def findings(problem: Problem, fit: Fit) -> list[Finding]:
    """What no parameter explains, at the point of the fit."""
    tested = _propose(problem, fit.state)
    if not tested:
        return []
    normal = _extended(problem, fit, fit.state, tested, None)
    remaining = float(np.sum(residuals(fit.state.gap, problem.weight) ** 2))
    return judge(tested, normal, problem.prior_sd, remaining)


def refit(problem: Problem, fit: Fit, found: list[Finding], settings: Settings) -> Array:
    """Scaled parameters (P,) with the forces of the findings in the replay, their coefficients free."""
    state, coefficient, force = fit.state, np.zeros(len(found)), None
    damping, p = settings.damping, len(fit.state.z)
    chosen = _chosen(problem, state, found)
    normal = _extended(problem, fit, state, chosen, force)
    for _ in range(ROUNDS):
        information, score = normal.information.sum(axis=0), normal.score.sum(axis=0)
        precision = 1.0 / problem.prior_sd**2
        information[range(p), range(p)] += precision
        score[:p] += (problem.prior_mean - state.z) * precision
        low, high = problem.space.box(state.z)
        loose = np.full(len(found), LARGEST_MOVE)
        lower = np.concatenate([np.where(problem.held, 0.0, low), -loose])
        upper = np.concatenate([np.where(problem.held, 0.0, high), loose])
        step = damped_step(information, score, damping, lower, upper)
        applied = _total_force(chosen, coefficient + step[p:])
        dx0 = state.dx0 + normal.x0_step(step)
        trial = problem.evaluate(problem.space.advance(state.z, step[:p]), dx0, applied)
        cost, trial_cost = problem.cost(state), problem.cost(trial)
        if trial_cost >= cost:
            damping *= settings.damping_up
            continue
        small = trial_cost > 0.999 * cost
        state, coefficient, force, damping = (
            trial,
            coefficient + step[p:],
            applied,
            damping / settings.damping_down,
        )
        if small:
            break
        chosen = _chosen(problem, state, found)
        normal = _extended(problem, fit, state, chosen, force)
    return state.z


def _propose(problem: Problem, state: State) -> list[Hypothesis]:
    robot = problem.exact.replay.robot
    return hypotheses(robot.layout, problem.windows, state.rollouts.features, robot.actuator_joint)


def _chosen(problem: Problem, state: State, found: list[Finding]) -> list[Hypothesis]:
    """The hypotheses of the findings along the present motion, in their order."""
    proposed = {(h.regressor, h.joint): h for h in _propose(problem, state)}
    return [proposed[f.regressor, f.joint] for f in found]


def _total_force(chosen: list[Hypothesis], coefficient: Array) -> Array:
    return np.asarray(sum(c * h.size * h.force for c, h in zip(coefficient, chosen, strict=True)))


def _extended(problem: Problem, fit: Fit, state: State, tested: list[Hypothesis], force: Array | None) -> Normal:
    """Normal equations with one more column per hypothesis: the exact effect of a little of its force.

    Coefficients count in units of the joint's RMS load, so that they are of the size of scaled parameters.
    """
    present = 0.0 if force is None else force
    columns = [problem.effect(state, present + h.trial * h.size * h.force) / h.trial for h in tested]
    linear = replace(fit.exact, jacobian=np.concatenate([fit.exact.jacobian, np.stack(columns, axis=-1)], axis=-1))
    return normal_equations(state.gap, linear, problem.weight, state.dx0, problem.windows.x0_sd)
