"""Normal equations and damped steps against the full problems that they shorten, solved by other means."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize

from gapd.fit.gauss_newton import Normal, damped_step, normal_equations, residuals
from gapd.gap.jacobian import Linearisation

Array = NDArray[np.float64]
W, K, C, P, STATE = 5, 6, 3, 4, 4


@dataclass(frozen=True)
class Joint:
    """A random linear problem in parameters and all initial states; some measurements are absent."""

    gap: Array
    linear: Linearisation
    weight: Array
    dx0: Array
    x0_sd: Array

    @property
    def normal(self) -> Normal:
        return normal_equations(self.gap, self.linear, self.weight, self.dx0, self.x0_sd)

    def solve(self, prior_sd: Array, prior_pull: Array) -> tuple[Array, Array]:
        """Parameter step (P,) and initial-state steps (W, 2 nv) of one dense least-squares problem."""
        rows, sides = [np.hstack([np.diag(1 / prior_sd), np.zeros((P, W * STATE))])], [prior_pull / prior_sd]
        for w in range(W):
            present = np.isfinite(self.gap[w])
            scale = np.broadcast_to(self.weight, (K, C))[present]
            x0 = np.zeros((present.sum(), W * STATE))
            x0[:, w * STATE : (w + 1) * STATE] = self.linear.x0_jacobian[w][present] * scale[:, None]
            rows.append(np.hstack([self.linear.jacobian[w][present] * scale[:, None], x0]))
            sides.append(self.gap[w][present] * scale)
            prior = np.zeros((STATE, W * STATE))
            prior[:, w * STATE : (w + 1) * STATE] = np.diag(1 / self.x0_sd[w])
            rows.append(np.hstack([np.zeros((STATE, P)), prior]))
            sides.append(-self.dx0[w] / self.x0_sd[w])
        solution = np.linalg.lstsq(np.vstack(rows), np.concatenate(sides))[0]
        return solution[:P], solution[P:].reshape(W, STATE)


def problem(seed: int, absent: float) -> Joint:
    rng = np.random.default_rng(seed)
    gap = rng.normal(size=(W, K, C))
    gap[rng.random(gap.shape) < absent] = np.nan
    linear = Linearisation(
        rng.normal(size=(W, K, C, P)),
        rng.normal(size=(W, K, C, STATE)) * np.exp(rng.normal(size=STATE)),
    )
    x0_sd = np.exp(rng.normal(size=(W, STATE)))
    return Joint(gap, linear, rng.uniform(0.2, 1.0, C), x0_sd * rng.normal(size=(W, STATE)), x0_sd)


@pytest.mark.parametrize("absent", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_eliminated_system_has_the_solution_of_the_joint_one(seed: int, absent: float) -> None:
    joint = problem(seed, absent)
    rng = np.random.default_rng(100 + seed)
    prior_sd, pull = np.exp(rng.normal(size=P)), rng.normal(size=P)
    normal = joint.normal
    step = np.linalg.solve(
        normal.information.sum(axis=0) + np.diag(1 / prior_sd**2), normal.score.sum(axis=0) + pull / prior_sd**2
    )  # fmt: skip
    wanted, wanted_x0 = joint.solve(prior_sd, pull)
    np.testing.assert_allclose(step, wanted, rtol=1e-9)
    np.testing.assert_allclose(normal.x0_step(step), wanted_x0, rtol=1e-8, atol=1e-10)


def test_information_is_the_inverse_of_the_joint_covariance() -> None:
    """What the initial states hide is lost for the parameters, window by window."""
    joint = problem(7, 0.0)
    for w in range(W):
        scale = np.tile(joint.weight, K)[:, None]
        jacobian = joint.linear.jacobian[w].reshape(-1, P) * scale
        x0 = joint.linear.x0_jacobian[w].reshape(-1, STATE) * scale
        both = np.hstack([jacobian, x0])
        hessian = both.T @ both + np.diag([*np.zeros(P), *(1 / joint.x0_sd[w] ** 2)])
        covariance = np.linalg.inv(hessian)[:P, :P]
        np.testing.assert_allclose(joint.normal.information[w], np.linalg.inv(covariance), rtol=1e-8)


def test_an_initial_state_that_is_known_takes_nothing_away() -> None:
    joint = problem(1, 0.0)
    known = normal_equations(joint.gap, joint.linear, joint.weight, 0 * joint.dx0, np.full((W, STATE), 1e-9))
    jacobian = (joint.linear.jacobian * joint.weight[:, None]).reshape(W, -1, P)
    np.testing.assert_allclose(known.information, jacobian.transpose(0, 2, 1) @ jacobian, rtol=1e-9)
    np.testing.assert_allclose(known.x0_step(np.ones(P)), 0.0, atol=1e-12)


def test_a_window_without_any_measurement_says_nothing() -> None:
    joint = problem(2, 0.0)
    joint.gap[3] = np.nan
    normal = joint.normal
    np.testing.assert_array_equal(normal.information[3], 0.0)
    np.testing.assert_array_equal(normal.score[3], 0.0)
    # Its initial state goes back to what was measured.
    np.testing.assert_allclose(normal.x0_step(np.zeros(P))[3], -joint.dx0[3], rtol=1e-12)


def test_residuals_are_weighted_by_channel_and_absent_ones_zero() -> None:
    gap = np.array([[[1.0, 2.0], [np.nan, 4.0]]])
    np.testing.assert_array_equal(residuals(gap, np.array([1.0, 0.5])), [[1.0, 1.0, 0.0, 2.0]])


def quadratic(seed: int, condition: float = 1e3) -> tuple[Array, Array]:
    """Information (8, 8) with mixed directions, and a score (8,)."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    values = np.exp(rng.uniform(0, np.log(condition), 8))
    return basis @ np.diag(values) @ basis.T, rng.normal(size=8) * np.exp(rng.uniform(-1, 6, 8))


@pytest.mark.parametrize("damping", [0.0, 0.1])
def test_step_inside_the_box_is_levenbergs(damping: float) -> None:
    information, score = quadratic(0)
    score *= 1e-3
    free = np.linalg.solve(information + damping * np.diag(np.diag(information)), score)
    assert np.abs(free).max() < 0.5
    step = damped_step(information, score, damping, np.full(8, -0.6), np.full(8, 0.6))
    np.testing.assert_allclose(step, free, rtol=1e-8)


@pytest.mark.parametrize("condition", [1e1, 1e3, 1e6])
@pytest.mark.parametrize("seed", range(15))
def test_step_in_the_box_is_the_constrained_minimum(seed: int, condition: float) -> None:
    information, score = quadratic(seed, condition)
    rng = np.random.default_rng(500 + seed)
    low, high = -rng.uniform(0, 0.7, 8), rng.uniform(0, 0.7, 8)
    low[seed % 8] = 0.0  # the point lies on a bound
    damping = 0.01
    step = damped_step(information, score, damping, low, high)
    assert (step >= low).all()
    assert (step <= high).all()
    system = information + damping * np.diag(np.diag(information))
    root = np.linalg.cholesky(system).T
    # lsq_linear wants room between the bounds: the problem is |root d - root^-T score|².
    best = optimize.lsq_linear(root, np.linalg.solve(root.T, score), (low - 1e-15, high + 1e-15), tol=1e-13).x

    def value(d: Array) -> float:
        return float(d @ system @ d / 2 - score @ d)

    assert value(step) <= value(best) + 1e-9 * abs(value(best))
    # Karush-Kuhn-Tucker: no slope where free, and at a bound only one that pushes against it.
    slope = (system @ step - score) / np.abs(score).max()
    at_low, at_high = step <= low + 1e-12, step >= high - 1e-12
    assert np.abs(slope[~at_low & ~at_high]).max(initial=0.0) < 1e-7
    assert (slope[at_low & ~at_high] > -1e-7).all()
    assert (slope[at_high & ~at_low] < 1e-7).all()


def test_some_of_these_minima_lie_on_faces() -> None:
    """The test above must not be about free minima only, nor about corners only."""
    faces = []
    for seed in range(15):
        information, score = quadratic(seed, 1e3)
        step = damped_step(information, score, 0.01, np.full(8, -0.4), np.full(8, 0.4))
        faces.append(int((np.abs(step) > 0.4 - 1e-12).sum()))
    assert min(faces) < 8
    assert max(faces) > 2


def test_parameters_that_do_not_touch_each_other_end_at_the_box_each_for_itself() -> None:
    step = damped_step(np.eye(3), np.array([100.0, -100.0, 0.1]), 0.0, np.full(3, -0.5), np.array([0.6, 0.5, 0.4]))
    np.testing.assert_allclose(step, [0.6, -0.5, 0.1], rtol=1e-9)


def test_a_parameter_held_by_its_box_leaves_the_others_to_their_own_minimum() -> None:
    information = np.array([[2.0, 1.8, 0.0], [1.8, 2.0, 0.0], [0.0, 0.0, 1.0]])
    score = np.array([0.5, 0.6, 0.3])
    step = damped_step(information, score, 0.0, np.array([0.0, -0.5, -0.5]), np.array([0.0, 0.5, 0.5]))
    # Not 0.3158, the middle of the free minimum with the first component cut off.
    np.testing.assert_allclose(step, [0.0, 0.3, 0.3], atol=1e-9)


def test_a_direction_without_information_does_not_move() -> None:
    information = np.diag([1.0, 0.0])
    step = damped_step(information, np.array([0.4, 0.0]), 0.01, np.full(2, -0.5), np.full(2, 0.5))
    np.testing.assert_allclose(step, [0.4 / 1.01, 0.0], rtol=1e-9)


def test_huge_and_singular_information_still_gives_a_finite_step() -> None:
    """Derivatives of a replay on the edge of stability: 1e13 in one window, all in one direction."""
    direction = np.array([4.2e13, -3.8e12, 3.5e12, -2.0e12])
    step = damped_step(np.outer(direction, direction), direction * 7.0, 0.0, np.full(4, -0.5), np.full(4, 0.5))
    assert np.abs(step).max() <= 0.5
    assert direction @ step == pytest.approx(7.0, rel=1e-3)


@pytest.mark.parametrize("seed", range(40))
def test_larger_and_worse_conditioned_problems_reach_their_minimum_too(seed: int) -> None:
    """A step that falls short on a face ends a fit before it has begun."""
    rng = np.random.default_rng(seed)
    p = int(rng.integers(5, 31))
    basis = np.linalg.qr(rng.normal(size=(p, p)))[0]
    scale = np.exp(2 * rng.normal(size=p))
    information = basis @ np.diag(np.exp(rng.uniform(0, np.log(10 ** rng.uniform(1, 8)), p))) @ basis.T
    information = (information + information.T) / 2 * scale[:, None] * scale
    score = information @ (rng.normal(size=p) * rng.choice([0.3, 1, 3]))
    lower, upper = -rng.uniform(0, 0.6, p), rng.uniform(0, 0.6, p)
    step = damped_step(information, score, 0.0, lower, upper)
    root = np.linalg.cholesky(information + 1e-12 * np.diag(np.diag(information))).T
    best = optimize.lsq_linear(root, np.linalg.solve(root.T, score), (lower, upper), tol=1e-14, max_iter=500).x
    value, wanted = (float(d @ information @ d / 2 - score @ d) for d in (step, best))
    assert value <= wanted + 1e-6 * abs(wanted)
