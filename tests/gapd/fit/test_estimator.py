"""The fit: it finds known parameters, keeps only what replays better, and gives the same numbers every time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gapd.fit.estimator import (
    Fit,
    Problem,
    Settings,
    State,
    _exact,
    _secant,
    descend,
    emphasis,
    finish,
    settle,
    start,
)
from gapd.fit.gauss_newton import residuals
from gapd.gap.jacobian import FiniteDifference, Linearisation, Point
from gapd.gap.replay import Replay, Rollouts
from gapd.measured.windows import Windows
from gapd.model.robot import Robot

Array = NDArray[np.float64]

DEFAULTS = Settings()


def problem_of(robot: Robot, windows: Windows, threads: int = 1, **changes: Any) -> Problem:
    return replace(Problem.of(Replay(robot, threads), windows, robot.parameters.z_nominal), **changes)


def fitted(problem: Problem, z: Array | None = None) -> Fit:
    state = start(problem, problem.prior_mean if z is None else z)
    return finish(problem, descend(problem, state, problem.exact, DEFAULTS, secant=False), None, DEFAULTS)


def hidden(robot: Robot, seed: int, spread: float) -> Array:
    """Scaled truth (P,), each parameter this far from nominal, up or down."""
    space, rng = robot.parameters, np.random.default_rng(seed)
    z = space.z_nominal + spread * rng.choice([-1, 1], len(space)) * rng.uniform(0.7, 1.0, len(space))
    return np.asarray(np.clip(z, space.z_min + 0.1, space.z_max - 0.1))


@pytest.fixture(scope="module")
def truth(tiny: Robot) -> Array:
    return hidden(tiny, 1, 0.7)


@pytest.fixture(scope="module")
def windows(tiny: Robot, truth: Array, windows_of: Any) -> Windows:
    found: Windows = windows_of(tiny, tiny.parameters.to_physical(truth), 24, seed=1)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_finite_differences_find_what_is_hidden(tiny: Robot, windows_of: Any, seed: int) -> None:
    """From a start that is off by a factor of 2 to 2.7 in every parameter."""
    truth = hidden(tiny, seed, 1.0)
    problem = problem_of(tiny, windows_of(tiny, tiny.parameters.to_physical(truth), 40, seed=10 + seed))
    fit = fitted(problem)
    told = problem.assess(fit)
    assert np.abs(fit.state.z - problem.prior_mean).min() > 0.5
    assert np.abs((fit.state.z - truth) / told.sd).max() < 4
    assert (told.sd < 0.1).all()
    assert np.sqrt(np.mean(fit.state.gap**2)) == pytest.approx(1.0, abs=0.06)


def test_the_servo_with_one_channel_and_its_context(servo: Robot, windows_of: Any) -> None:
    space = servo.parameters
    truth = hidden(servo, 3, 0.8)
    problem = problem_of(servo, windows_of(servo, space.to_physical(truth), 20, seed=3))
    fit = fitted(problem)
    told = problem.assess(fit)
    assert np.abs((fit.state.z - truth) / told.sd).max() < 4
    known = [space.names.index(n) for n in ("actuator/servo/torque_constant", "joint/j/armature", "joint/j/offset")]
    assert (told.sd[known] < 0.05).all()
    assert np.sqrt(np.mean(fit.state.gap**2)) == pytest.approx(1.0, abs=0.06)


def test_two_runs_and_any_number_of_threads_give_the_same_bits(tiny: Robot, windows: Windows) -> None:
    first, again, threaded = (fitted(problem_of(tiny, windows, threads)) for threads in (1, 1, 2))
    for other in (again, threaded):
        np.testing.assert_array_equal(other.state.z, first.state.z)
        np.testing.assert_array_equal(other.state.dx0, first.state.dx0)
        np.testing.assert_array_equal(other.normal.information, first.normal.information)


@pytest.mark.parametrize("seed", [3, 5])
def test_a_finish_from_afar_ends_where_fresh_derivatives_leave_nothing_to_do(
    level: Robot, windows_of: Any, seed: int
) -> None:
    """Its intervals would otherwise belong to a place that the estimate has left."""
    truth = hidden(level, seed, 0.7)
    problem = problem_of(level, windows_of(level, level.parameters.to_physical(truth), 30, seed=seed))
    fit = finish(problem, start(problem, problem.prior_mean), None, DEFAULTS)
    normal = problem.normal(fit.state, problem.exact.linearise(problem.point(fit.state)))
    information, score = problem.totals(fit.state, normal)
    step = np.linalg.solve(information, score)
    assert np.sqrt(step @ information @ step / len(step)) < 0.5
    assert np.abs((fit.state.z - truth) / problem.assess(fit).sd).max() < 4


def test_every_point_of_the_trace_replays_better_than_the_one_before(tiny: Robot, windows: Windows) -> None:
    """Against the emphasis that a step was judged with, so at least the last ones against the plain cost."""
    problem = problem_of(tiny, windows)
    fit = fitted(problem)
    assert len(problem.trace) >= 4
    rollouts = [entry.rollouts for entry in problem.trace]
    assert rollouts == sorted(rollouts)
    assert problem.used >= rollouts[-1]
    assert problem.cost(fit.state) < problem.cost(start(problem, problem.prior_mean)) / 20


def test_held_parameters_do_not_move_at_all_and_the_others_settle_beside_them(
    tiny: Robot, windows: Windows, truth: Array
) -> None:
    held = np.array([False, True, False, True])
    known = np.where(held, truth, tiny.parameters.z_nominal)
    problem = problem_of(tiny, windows, held=held, prior_mean=known)
    fit = fitted(problem)
    np.testing.assert_array_equal(fit.state.z[held], truth[held])
    assert all((entry.z[held] == truth[held]).all() for entry in problem.trace)
    assert np.abs((fit.state.z - truth)[~held] / problem.assess(fit).sd[~held]).max() < 4
    assert (np.abs(fit.state.z - known)[~held] > 0.3).all()


def test_a_truth_beyond_the_bounds_ends_on_them(
    make_robot: Any, windows: Windows, truth: Array, tmp_path: Path
) -> None:
    make_robot(tmp_path)
    text = (tmp_path / "parameters.toml").read_text(encoding="utf-8")
    name, limit = "joint/j/damping", 0.06
    robot = make_robot(tmp_path, parameters=text.replace("max = 0.5\n", f"max = {limit}\n"))
    place = robot.parameters.names.index(name)
    assert np.exp(truth[place]) > 1.3 * limit
    problem = problem_of(robot, windows)
    fit = fitted(problem)
    assert fit.state.z[place] == pytest.approx(np.log(limit), abs=1e-9)
    assert all(entry.z[place] <= np.log(limit) + 1e-12 for entry in problem.trace)
    assert problem.assess(fit).status[place] == "at_bound"


def test_without_measurements_the_prior_stays(tiny: Robot, windows: Windows) -> None:
    silent = replace(windows, measured=np.full_like(windows.measured, np.nan))
    fit = fitted(problem_of(tiny, silent))
    np.testing.assert_array_equal(fit.state.z, tiny.parameters.z_nominal)
    np.testing.assert_array_equal(fit.normal.information, 0.0)


def test_a_channel_that_is_absent_costs_nothing_and_warns_of_nothing(
    tiny: Robot, windows: Windows, truth: Array
) -> None:
    measured = windows.measured.copy()
    measured[:, :, 1] = np.nan
    problem = problem_of(tiny, replace(windows, measured=measured))
    fit = fitted(problem)
    assert np.abs((fit.state.z - truth) / problem.assess(fit).sd).max() < 4


def test_the_prior_pulls_as_its_standard_deviation_says(tiny: Robot, windows: Windows) -> None:
    """A prior as tight as the data meets them halfway."""
    wide = problem_of(tiny, windows)
    free = fitted(wide)
    sd = np.sqrt(np.diag(np.linalg.inv(free.normal.information.sum(axis=0))))
    away = free.state.z + np.array([0, 0, 0, 6 * sd[3]])
    tight = problem_of(tiny, windows, prior_mean=away, prior_sd=np.array([1e3, 1e3, 1e3, sd[3]]))
    fit = fitted(tight, free.state.z)
    assert (fit.state.z[3] - free.state.z[3]) / sd[3] == pytest.approx(3.0, abs=0.4)


def settled_by(problem: Problem, state: State) -> tuple[State, float]:
    done = settle(problem, state)
    return done, float(np.sqrt(np.mean(residuals(done.gap, problem.weight) ** 2)))


def test_settling_clears_an_error_of_the_initial_state_and_moves_no_parameter(
    tiny: Robot, windows: Windows, truth: Array
) -> None:
    rng = np.random.default_rng(2)
    error = rng.normal(size=(len(windows), 2)) * np.array([0.01, 0.1])
    wrong = replace(
        windows,
        qpos0=windows.qpos0 + error[:, :1],
        qvel0=windows.qvel0 + error[:, 1:],
        x0_sd=np.tile([0.01, 0.1], (len(windows), 1)),
    )
    problem = problem_of(tiny, wrong)
    first = start(problem, truth)
    assert np.sqrt(np.mean(first.gap**2)) > 3
    done, left = settled_by(problem, first)
    assert left == pytest.approx(1.0, abs=0.05)
    np.testing.assert_array_equal(done.z, truth)
    # What was wrong is found within the noise of the first measurements.
    assert np.abs(done.dx0[:, 0] + error[:, 0]).max() < 5 * 0.001
    assert np.abs(done.dx0[:, 1] + error[:, 1]).max() < 5 * 0.02


def test_settling_cannot_clear_what_the_initial_state_is_too_sure_about(
    tiny: Robot, windows: Windows, truth: Array
) -> None:
    wrong = replace(windows, qpos0=windows.qpos0 + 0.05, x0_sd=np.full_like(windows.x0_sd, 1e-6))
    done, left = settled_by(problem_of(tiny, wrong), start(problem_of(tiny, wrong), truth))
    assert left > 5
    assert np.abs(done.dx0).max() < 1e-4


@pytest.fixture(scope="module")
def driven(make_robot: Any, tmp_path_factory: pytest.TempPathFactory) -> Robot:
    """The tiny robot with a damping that may be negative, which makes the replay diverge."""
    folder = tmp_path_factory.mktemp("driven")
    make_robot(folder)
    text = (folder / "parameters.toml").read_text(encoding="utf-8")
    return make_robot(  # type: ignore[no-any-return]
        folder, parameters=text.replace("min = 0.005\nmax = 0.5", 'min = -300\nmax = 100\nscale = "linear"')
    )


@dataclass
class Misled:
    """Derivatives with the wrong sign and far too small: each step goes the wrong way, as far as it may."""

    exact: FiniteDifference

    def linearise(self, point: Point) -> Linearisation:
        linear = self.exact.linearise(point)
        return replace(linear, jacobian=-1e-3 * linear.jacobian)


def test_divergence_costs_infinity_and_is_never_kept(driven: Robot, windows_of: Any) -> None:
    space = driven.parameters
    windows = windows_of(driven, space.vector({"joint/j/damping": 0.1}), 12, seed=1)
    problem = problem_of(driven, windows)
    diverged = start(problem, space.to_scaled(space.vector({"joint/j/damping": -250.0})))
    assert diverged.rollouts.failed.any()
    assert problem.cost(diverged) == np.inf
    problem.trace.clear()
    first = start(problem, space.z_nominal)
    tried: list[float] = []
    original = problem.evaluate

    def evaluate(*arguments: Any, **named: Any) -> State:
        state = original(*arguments, **named)
        tried.append(problem.cost(state))
        return state

    problem.evaluate = evaluate  # type: ignore[method-assign]
    end = descend(problem, first, Misled(problem.exact), DEFAULTS)
    assert np.inf in tried, "the case must try what diverges"
    assert problem.cost(end) <= problem.cost(first)
    for entry in problem.trace:
        state = original(entry.z, np.zeros_like(first.dx0))
        assert not state.rollouts.failed.any()


def random_state(rng: np.random.Generator) -> State:
    return State(
        rng.normal(size=4), rng.normal(size=(5, 6)), Rollouts(np.zeros(0), np.zeros(0), np.zeros(5, bool)),
        rng.normal(size=(5, 7, 2)),
    )  # fmt: skip


def test_secant_update_explains_the_change_just_seen_and_nothing_else() -> None:
    rng = np.random.default_rng(1)
    before, after, step = random_state(rng), random_state(rng), rng.normal(size=4)
    linear = Linearisation(rng.normal(size=(5, 7, 2, 4)), rng.normal(size=(5, 7, 2, 6)))
    learnt = _secant(linear, before, after, step)
    # The gap is measured minus predicted: what it lost, the prediction gained.
    x0_part = np.einsum("wkcs,ws->wkc", linear.x0_jacobian, after.dx0 - before.dx0)
    np.testing.assert_allclose(learnt.jacobian @ step + x0_part, before.gap - after.gap, rtol=1e-9, atol=1e-12)
    across = np.linalg.qr(np.column_stack([step, rng.normal(size=(4, 3))]))[0][:, 1:]
    np.testing.assert_allclose(learnt.jacobian @ across, linear.jacobian @ across, atol=1e-12)
    np.testing.assert_array_equal(learnt.x0_jacobian, linear.x0_jacobian)


def test_secant_update_leaves_absent_measurements_finite() -> None:
    rng = np.random.default_rng(1)
    before, after = random_state(rng), random_state(rng)
    before.gap[0, 0, 0] = after.gap[0, 0, 0] = np.nan
    linear = Linearisation(rng.normal(size=(5, 7, 2, 4)), rng.normal(size=(5, 7, 2, 6)))
    assert np.isfinite(_secant(linear, before, after, rng.normal(size=4)).jacobian).all()


@dataclass
class Biased:
    """Stands in for a learned source: exact derivatives, wrong by up to a factor of 1.5, with some crosstalk."""

    exact: FiniteDifference

    def linearise(self, point: Point) -> Linearisation:
        linear = self.exact.linearise(point)
        mixing = np.diag([1.5, 0.7, 1.3, 0.8]) + 0.1
        return Linearisation(linear.jacobian @ mixing, 0.8 * linear.x0_jacobian)


@pytest.mark.parametrize("weak", [0, 4])
def test_a_biased_source_does_not_define_the_answer(tiny: Robot, windows: Windows, weak: int) -> None:
    settings = replace(DEFAULTS, weak_directions=weak)
    problem = problem_of(tiny, windows)
    source = Biased(problem.exact)
    state = descend(problem, start(problem, problem.prior_mean), source, settings)
    fit = finish(problem, state, source, settings)
    wanted = fitted(problem)
    sd = problem.assess(wanted).sd
    assert np.abs((fit.state.z - wanted.state.z) / sd).max() < 0.3
    np.testing.assert_allclose(problem.assess(fit).sd, sd, rtol=0.1)


def test_exact_derivatives_along_the_weak_directions_replace_the_learned_ones(tiny: Robot, windows: Windows) -> None:
    problem = problem_of(tiny, windows)
    state, source = start(problem, problem.prior_mean), Biased(problem.exact)
    learned, mixed = source.linearise(problem.point(state)), _exact(
        problem, state, source, replace(DEFAULTS, weak_directions=2)
    )  # fmt: skip
    exact = problem.exact.linearise(problem.point(state))
    np.testing.assert_array_equal(mixed.x0_jacobian, exact.x0_jacobian)
    away = [
        np.linalg.matrix_rank((mixed.jacobian - other.jacobian).reshape(-1, 4), tol=30) for other in (learned, exact)
    ]
    assert away == [2, 2]


def test_emphasis_counts_a_channel_of_r_floors_by_the_root_of_r(tiny: Robot, windows: Windows) -> None:
    problem = problem_of(tiny, windows, weight=np.array([1.0, 1.0, 0.5]))
    state = start(problem, problem.prior_mean)
    gap = np.ones_like(state.gap) * np.array([0.5, 16.0, 8.0])
    gap[:, 3, 1] = np.nan
    np.testing.assert_allclose(emphasis(problem, replace(state, gap=gap)), [1.0, 0.25, 0.25])


def test_cost_is_the_sum_of_its_three_parts(tiny: Robot, windows: Windows) -> None:
    problem = problem_of(tiny, windows, weight=np.array([1.0, 0.5, 0.25]))
    state = start(problem, problem.prior_mean)
    moved = replace(state, z=state.z + 0.3, dx0=np.full_like(state.dx0, 0.01))
    paid = np.sum((0.01 / windows.x0_sd) ** 2) + np.sum((0.3 / problem.prior_sd) ** 2)
    wanted = np.nansum((state.gap * problem.weight) ** 2) + paid
    assert problem.cost(moved) == pytest.approx(wanted, rel=1e-12)
    assert problem.cost(state) == pytest.approx(wanted - paid, rel=1e-12)
