"""Exact derivatives: against central differences, along directions, and never outside the bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gapd.gap.jacobian import STEP_POSITION, STEP_VELOCITY, STEP_Z, FiniteDifference, Point
from gapd.gap.replay import Replay, Rollouts
from gapd.model.robot import Robot

Array = NDArray[np.float64]


def point_at(robot: Robot, replay: Replay, windows: Any, z: Array) -> Point:
    rollouts = replay.run(windows, robot.parameters.to_physical(z))
    return Point(windows, z, windows.qpos0, windows.qvel0, rollouts)


@pytest.fixture
def point(tiny: Robot, windows_of: Any) -> Point:
    windows = windows_of(tiny, tiny.parameters.nominal, 6, seed=1)
    return point_at(tiny, Replay(tiny), windows, tiny.parameters.z_nominal + 0.1)


def errors(found: Array, wanted: Array) -> Array:
    """Relative error (columns,) in the mean square over windows, knots and channels."""
    axes = (0, 1, 2)
    return np.asarray(np.sqrt(((found - wanted) ** 2).sum(axes) / (wanted**2).sum(axes)))


def test_parameters_agree_with_central_differences_at_a_tenth_of_the_step(tiny: Robot, point: Point) -> None:
    replay, space, step = Replay(tiny), tiny.parameters, STEP_Z / 10
    columns = []
    for axis in np.eye(len(space)):
        ends = [replay.run(point.windows, space.to_physical(point.z + s * axis)).predicted for s in (step, -step)]
        columns.append((ends[0] - ends[1])[:, 1:] / (2 * step) / tiny.layout.noise)
    found = FiniteDifference(replay).parameters(point)
    assert found.shape == (6, 20, 3, 4)
    assert errors(found, np.stack(columns, axis=-1)).max() < 5e-3


def test_initial_state_agrees_with_central_differences_at_a_tenth_of_the_step(tiny: Robot, point: Point) -> None:
    replay, physical = Replay(tiny), tiny.parameters.to_physical(point.z)
    columns = []
    for position, velocity in ((STEP_POSITION / 10, 0.0), (0.0, STEP_VELOCITY / 10)):
        ends = [
            replay.run(point.windows, physical, point.qpos0 + s * position, point.qvel0 + s * velocity).predicted
            for s in (1, -1)
        ]
        columns.append((ends[0] - ends[1])[:, 1:] / (2 * (position + velocity)) / tiny.layout.noise)
    found = FiniteDifference(replay).initial_state(point)
    assert found.shape == (6, 20, 3, 2)
    assert errors(found, np.stack(columns, axis=-1)).max() < 2e-2


def test_coarse_derivatives_are_slopes_over_a_longer_step(tiny: Robot, point: Point) -> None:
    replay, space = Replay(tiny), tiny.parameters
    there = replay.run(point.windows, space.to_physical(point.z + 40 * STEP_Z * np.eye(len(space))[1]))
    slope = (there.predicted - point.rollouts.predicted)[:, 1:] / (40 * STEP_Z * tiny.layout.noise)
    coarse = FiniteDifference(replay, coarse=40)
    np.testing.assert_allclose(coarse.parameters(point)[..., 1], slope, rtol=1e-9, atol=1e-9)
    assert 1e-3 < errors(coarse.initial_state(point), FiniteDifference(replay).initial_state(point)).max() < 0.3


def test_initial_position_and_velocity_are_not_swapped(level: Robot, windows_of: Any) -> None:
    """Coasting without command, friction or gravity: the later position follows q0 + v0 t."""
    windows = windows_of(level, level.parameters.nominal, 2, seed=1)
    windows = replace(windows, qvel0=np.full_like(windows.qvel0, 0.5))
    z = level.parameters.z_min.copy()
    point = point_at(level, Replay(level), windows, z)
    by_position, by_velocity = np.moveaxis(FiniteDifference(Replay(level)).initial_state(point)[0, :, 0], 1, 0)
    noise = level.layout.noise[0]
    assert by_position[0] * noise == pytest.approx(1.0, rel=0.05)
    assert by_velocity[0] * noise == pytest.approx(level.layout.knot_s, rel=0.1)


def test_direction_along_two_axes_is_their_combination(tiny: Robot, point: Point) -> None:
    exact = FiniteDifference(Replay(tiny))
    axes = exact.parameters(point)
    directions = np.array([[1.0, 0.0], [0.0, 0.0], [-2.0, 3.0], [0.0, 4.0]])
    found = exact.parameters(point, directions)
    assert found.shape == (6, 20, 3, 2)
    assert errors(found, axes @ directions).max() < 5e-3


def test_linearise_is_both_and_costs_one_rollout_per_window_and_column(tiny: Robot, point: Point) -> None:
    replay = Replay(tiny)
    exact = FiniteDifference(replay)
    linear = exact.linearise(point)
    assert replay.rollouts == 6 * (4 + 2)
    np.testing.assert_array_equal(linear.jacobian, exact.parameters(point))
    np.testing.assert_array_equal(linear.x0_jacobian, exact.initial_state(point))


def test_at_a_bound_the_step_goes_inwards(tiny: Robot, point: Point, monkeypatch: pytest.MonkeyPatch) -> None:
    space, replay = tiny.parameters, Replay(tiny)
    asked: list[Array] = []
    original = Replay.run

    def run(self: Replay, windows: Any, physical: Array, *rest: Any) -> Rollouts:
        asked.append(np.atleast_2d(physical))
        return original(self, windows, physical, *rest)

    monkeypatch.setattr(Replay, "run", run)
    for z in (space.z_max, space.z_min, np.where([True, False, True, False], space.z_max, space.z_min)):
        at = point_at(tiny, replay, point.windows, z)
        found = FiniteDifference(replay).parameters(at)
        nearby = point_at(tiny, replay, point.windows, np.clip(z, space.z_min + 0.01, space.z_max - 0.01))
        assert errors(found, FiniteDifference(replay).parameters(nearby)).max() < 0.3  # the sign would be 2
    values = space.to_scaled(np.concatenate(asked))
    assert (values <= space.z_max + 1e-12).all()
    assert (values >= space.z_min - 1e-12).all()


def test_derivatives_of_a_replay_that_failed_are_nan_and_of_the_others_not(tiny: Robot, point: Point) -> None:
    qpos0 = point.qpos0.copy()
    qpos0[2] = np.nan
    replay = Replay(tiny)
    rollouts = replay.run(point.windows, tiny.parameters.to_physical(point.z), qpos0)
    linear = FiniteDifference(replay).linearise(replace(point, qpos0=qpos0, rollouts=rollouts))
    for found in (linear.jacobian, linear.x0_jacobian):
        assert np.isnan(found[2]).all()
        assert np.isfinite(found[[0, 1, 3, 4, 5]]).all()
