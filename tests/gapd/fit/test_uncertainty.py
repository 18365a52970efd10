"""Intervals that cover, on linear problems whose truth is known; status; groups that the data cannot tell apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from gapd.fit.uncertainty import (
    BOUND_SHARE,
    ESTIMATED_SD,
    POOLED_DOF,
    UNKNOWN_SHARE,
    Uncertainty,
    assess,
    inflation,
)

Array = NDArray[np.float64]
WINDOWS, ROWS, P = 24, 30, 3
WIDE = np.full(P, 1e3)


@dataclass(frozen=True)
class Linear:
    """A linear fit without initial states: the real formulas see only its information and its scores."""

    jacobian: Array  # (W, R, P)

    @property
    def information(self) -> Array:
        return np.asarray(self.jacobian.transpose(0, 2, 1) @ self.jacobian)

    def solve(self, residual: Array, prior_sd: Array) -> tuple[Array, Uncertainty]:
        """Error of the estimate (P,) when the truth is 0, and its uncertainty."""
        total = self.information.sum(axis=0) + np.diag(1 / prior_sd**2)
        score = (self.jacobian.transpose(0, 2, 1) @ residual[..., None])[..., 0]
        found = np.linalg.solve(total, score.sum(axis=0))
        left = score - self.information @ found
        return found, assess(self.information, left, prior_sd, found, np.full(P, -9.0), np.full(P, 9.0))


@pytest.fixture
def linear() -> Linear:
    """Parameters that matter to different degrees and, as in a recording, more in some windows than in others."""
    rng = np.random.default_rng(5)
    loud = np.exp(0.7 * rng.normal(size=(WINDOWS, 1, P)))
    return Linear(rng.normal(size=(WINDOWS, ROWS, P)) @ rng.normal(size=(P, P)) * loud)


def white(rng: np.random.Generator) -> Array:
    return rng.normal(size=(WINDOWS, ROWS))


def constant_within_a_window(rng: np.random.Generator) -> Array:
    """A model error: half of the variance is common to a window."""
    return rng.normal(size=(WINDOWS, ROWS)) + rng.normal(size=(WINDOWS, 1))


def in_phase(linear: Linear) -> Linear:
    """The same with an effect that stays the same within a window, so that a common error can look like it."""
    return Linear(linear.jacobian + 2 * linear.jacobian[:, :1])


def coverage(linear: Linear, residual: list[Array]) -> tuple[float, Array, float]:
    """Share of 90 % intervals that hold the truth; mean inflation of the variance (P,); share without inflation."""
    held, naive, factors = [], [], []
    for r in residual:
        found, told = linear.solve(r, WIDE)
        held.append(np.abs(found) <= told.half_width(0.9))
        naive.append(np.abs(found) <= 1.645 * told.bound_sd)
        factors.append(told.sd**2 / told.bound_sd**2)
    return float(np.mean(held)), np.mean(factors, axis=0), float(np.mean(naive))


def test_intervals_cover_with_white_residuals(linear: Linear) -> None:
    rng = np.random.default_rng(1)
    covered, factor, _ = coverage(linear, [white(rng) for _ in range(400)])
    assert 0.87 <= covered <= 0.95
    assert (factor >= 1.0).all()
    assert (factor < 1.25).all()


def test_intervals_cover_with_residuals_common_to_a_window(linear: Linear) -> None:
    rng = np.random.default_rng(2)
    covered, factor, naive = coverage(in_phase(linear), [constant_within_a_window(rng) for _ in range(400)])
    assert naive < 0.5, "the case must be one that the pure-noise intervals fail"
    assert covered >= 0.83
    assert (factor > 5).all()


def test_one_parameter_may_be_inflated_more_than_another() -> None:
    """The error is common to a window, and so is the effect of the first parameter, but not of the others."""
    rng = np.random.default_rng(3)
    jacobian = rng.normal(size=(WINDOWS * 3, ROWS, P))
    jacobian[..., 0] = rng.normal(size=(WINDOWS * 3, 1))
    linear = Linear(jacobian)
    residual = rng.normal(size=(WINDOWS * 3, ROWS)) + rng.normal(size=(WINDOWS * 3, 1))
    _, told = linear.solve(residual, WIDE)
    factor = told.sd**2 / told.bound_sd**2
    assert factor[0] > 3 * factor[1:].max()


def test_windows_that_agree_do_not_make_the_sensors_better(linear: Linear) -> None:
    """No residuals at all: the variance stays that of the noise."""
    inverse = np.linalg.inv(linear.information.sum(axis=0))
    factor, dof = inflation(linear.information, np.zeros((WINDOWS, P)), inverse)
    np.testing.assert_array_equal(factor, 1.0)
    assert (dof > POOLED_DOF).all()
    assert (dof < POOLED_DOF + WINDOWS).all()


def test_inflation_does_not_depend_on_the_order_of_windows(linear: Linear) -> None:
    rng = np.random.default_rng(4)
    residual, order = constant_within_a_window(rng), rng.permutation(WINDOWS)
    plain = linear.solve(residual, WIDE)[1]
    shuffled = Linear(linear.jacobian[order]).solve(residual[order], WIDE)[1]
    np.testing.assert_allclose(shuffled.covariance, plain.covariance, rtol=1e-9)


def status_of(
    sd: float, z: float = 0.0, push: float = 0.0, prior_sd: float = 1.0, lower: float = -1.0, upper: float = 1.0
) -> str:
    """Status of one parameter that the data leave with this standard deviation, spread over 20 windows."""
    total = 1 / sd**2 - 1 / prior_sd**2
    score = np.zeros((20, 1))
    score[0] = push
    information = np.full((20, 1, 1), total / 20)
    return assess(information, score, np.array([prior_sd]), np.array([z]), np.array([lower]), np.array([upper])).status[
        0
    ]


@pytest.mark.parametrize(
    ("sd", "z", "push", "status"),
    [
        (0.02, 0.0, 0.0, "estimated"),
        (ESTIMATED_SD * 0.99, 0.0, 0.0, "estimated"),
        (ESTIMATED_SD * 1.01, 0.0, 0.0, "estimating"),
        (UNKNOWN_SHARE * 0.99, 0.0, 0.0, "estimating"),
        (UNKNOWN_SHARE * 1.01, 0.0, 0.0, "unidentifiable"),
        (0.99, 0.0, 0.0, "unidentifiable"),
        # On a bound, or within a thousandth of the range, and not being pushed away from it.
        (0.02, 1.0, 1e-6, "at_bound"),
        (0.02, 1.0, 0.0, "at_bound"),
        (0.02, 1.0 - 1.9 * BOUND_SHARE, 1e-6, "at_bound"),
        (0.02, 1.0 - 2.1 * BOUND_SHARE, 1e-6, "estimated"),
        (0.02, 1.0, -1e-6, "estimated"),
        (0.02, -1.0, -1e-6, "at_bound"),
        (0.02, -1.0, 1e-6, "estimated"),
        # What the data do not determine is not at its bound either.
        (0.9, 1.0, 1e-6, "unidentifiable"),
    ],
)
def test_status(sd: float, z: float, push: float, status: str) -> None:
    assert status_of(sd, z, push) == status


def effects(*columns: Array) -> Array:
    """Information (W, P, P) of parameters with these effects (W, R)."""
    return Linear(np.stack(columns, axis=-1)).information


def groups_of(information: Array, prior_sd: Array) -> Uncertainty:
    p = len(prior_sd)
    return assess(information, np.zeros((WINDOWS, p)), prior_sd, np.zeros(p), np.full(p, -2.0), np.full(p, 2.0))


def test_two_parameters_with_one_effect_are_one_group() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=(2, WINDOWS, ROWS))
    told = groups_of(effects(a, b, a), np.ones(3))
    assert told.groups == ((0, 2),)
    assert told.status == ("unidentifiable", "estimated", "unidentifiable")


def test_effects_that_differ_only_in_size_are_one_group() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=(2, WINDOWS, ROWS))
    assert groups_of(effects(a, b, 1.5 * a), np.ones(3)).groups == ((0, 2),)
    assert groups_of(effects(a, b, -a), np.ones(3)).groups == ((0, 2),)


def test_three_parameters_of_which_two_combinations_are_unknown_are_one_group() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=(2, WINDOWS, ROWS))
    told = groups_of(effects(a, a, b, a), np.ones(4))
    assert {p for group in told.groups for p in group} == {0, 1, 3}
    assert told.status == ("unidentifiable", "unidentifiable", "estimated", "unidentifiable")


def test_a_parameter_without_effect_is_a_group_of_its_own() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=(2, WINDOWS, ROWS))
    told = groups_of(effects(a, 0 * a, b), np.ones(3))
    assert told.groups == ((1,),)
    assert told.status == ("estimated", "unidentifiable", "estimated")
    assert told.sd[1] == pytest.approx(1.0)  # the prior's
    # The others are known as well as without it.
    np.testing.assert_allclose(told.sd[[0, 2]], groups_of(effects(a, b), np.ones(2)).sd, rtol=1e-9)
    np.testing.assert_allclose(told.dof[[0, 2]], groups_of(effects(a, b), np.ones(2)).dof, rtol=1e-9)


def test_parameters_that_are_merely_correlated_are_no_group() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=(2, WINDOWS, ROWS))
    told = groups_of(effects(a, a + 0.5 * b), np.ones(2))
    assert told.groups == ()
    assert told.status == ("estimated", "estimated")
    correlation = told.covariance[0, 1] / np.prod(told.sd)
    assert correlation == pytest.approx(-0.89, abs=0.03)


def test_units_of_the_prior_decide_what_is_unknown() -> None:
    """The same data leave a wide prior wide, but tell a narrow one nothing new."""
    information = np.full((WINDOWS, 1, 1), 25.0 / WINDOWS)  # known to 0.2
    assert groups_of(information, np.array([2.0])).groups == ()
    assert groups_of(information, np.array([0.1])).groups == ((0,),)


@pytest.mark.parametrize("seed", range(4))
def test_independent_pairs_are_two_groups_whatever_rounding_does(seed: int) -> None:
    """Their directions are equally unknown, so that any mixture of the two is as good an eigenvector."""
    rng = np.random.default_rng(seed)
    effects = rng.normal(size=(WINDOWS, ROWS, 3))
    jacobian = effects[..., [0, 0, 1, 1, 2]][rng.permutation(WINDOWS)]
    information = jacobian.transpose(0, 2, 1) @ jacobian
    told = assess(information, np.zeros((WINDOWS, 5)), np.ones(5), np.zeros(5), np.full(5, -9.0), np.full(5, 9.0))
    assert told.groups == ((0, 1), (2, 3))
    assert told.status == ("unidentifiable",) * 4 + ("estimated",)
    assert told.ambiguous == told.groups
    assert told.unknown.tolist() == [True] * 4 + [False]


def test_a_direction_shared_by_many_is_one_group() -> None:
    """A sum of fourteen: each has so small a part that its own interval is a quarter of its prior."""
    n = 14
    rng = np.random.default_rng(1)
    jacobian = 10 * rng.normal(size=(WINDOWS, ROWS, n))
    jacobian -= jacobian.mean(axis=2, keepdims=True)  # nothing sees the sum
    information = jacobian.transpose(0, 2, 1) @ jacobian
    told = assess(information, np.zeros((WINDOWS, n)), np.ones(n), np.zeros(n), np.full(n, -9.0), np.full(n, 9.0))
    assert told.groups == (tuple(range(n)),)
    assert told.sd.max() < 0.3
    assert told.unknown.all()
