"""From windows to an identification: what cannot be told apart stays, and the rest is as sure as it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gapd.errors import InputError
from gapd.fit.estimator import PRIOR_SHARE
from gapd.fit.identify import Identification, identify
from gapd.fit.uncertainty import unknown_directions
from gapd.gap.jacobian import FiniteDifference, Linearisation, Point
from gapd.gap.replay import Replay
from gapd.measured.windows import Windows
from gapd.model.robot import Robot

Array = NDArray[np.float64]

NAMES = (
    "actuator/servo/kp", "joint/j/damping", "joint/j/frictionloss", "joint/j/armature",
    "actuator/servo/kv", "tendon/idle/stiffness",
)  # fmt: skip
TOGETHER = [1, 4]
ALONE = [0, 2, 3]


def twin_truth(robot: Robot, damping: float) -> Array:
    """Physical truth with both dampings at this multiple of nominal."""
    assert robot.parameters.names == NAMES
    return np.asarray(robot.parameters.nominal * np.array([1.4, damping, 1.5, 0.7, damping, 3.0]))


def error_sd(found: Identification, robot: Robot, truth: Array) -> Array:
    return np.asarray(np.abs(found.z - robot.parameters.to_scaled(truth)) / found.uncertainty.sd)


def test_parameters_of_one_effect_are_a_group_and_stay_and_one_of_none_stays(twins: Robot, windows_of: Any) -> None:
    truth = twin_truth(twins, 1.0)
    before = twins.parameters.z_nominal
    found = identify(Replay(twins), windows_of(twins, truth, 40, seed=1), before)
    assert found.uncertainty.groups == ((1, 4), (5,))
    for p, status in enumerate(found.uncertainty.status):
        assert (status == "unidentifiable") == (p not in ALONE)
    assert found.z[5] == before[5]
    # Their sum is known to be unchanged; the way along which they would make up for each other stays untrodden.
    np.testing.assert_allclose(found.z[TOGETHER], before[TOGETHER], atol=0.05)
    assert not found.survives[[1, 4, 5]].any()
    assert error_sd(found, twins, truth)[ALONE].max() < 4
    assert found.findings == ()


@pytest.mark.parametrize("damping", [0.5, 2.0])
def test_a_group_whose_sum_has_changed_bends_no_other_parameter(twins: Robot, windows_of: Any, damping: float) -> None:
    truth = twin_truth(twins, damping)
    found = identify(Replay(twins), windows_of(twins, truth, 40, seed=1), twins.parameters.z_nominal)
    sure = [p for p in ALONE if found.uncertainty.status[p] == "estimated"]
    assert (error_sd(found, twins, truth)[sure] < 5).all()
    # Along what the data do not tell at the end, it has not moved.
    space = twins.parameters
    prior_sd = PRIOR_SHARE * (space.z_max - space.z_min)
    free = unknown_directions(found.fit.normal.information.sum(axis=0), prior_sd)
    assert free.shape[1] == 2  # the pair, and the tendon
    assert np.abs(free.T @ ((found.z - space.z_nominal) / prior_sd)).max() < 0.01


def test_data_that_tell_them_apart_dissolve_the_group(
    make_robot: Any, twins: Robot, tmp_path: Path, windows_of: Any
) -> None:
    """With the effort measured, the damping in the servo and that in the joint are two things."""
    both = twins.config.path(twins.config.parameters).read_text(encoding="utf-8")
    robot = make_robot(tmp_path, parameters=both[: both.index('[[parameter]]\nname = "tendon')])
    truth = robot.parameters.nominal * np.array([1.4, 2.0, 1.5, 0.7, 0.6])
    found = identify(Replay(robot), windows_of(robot, truth, 40, seed=1), robot.parameters.z_nominal)
    assert found.uncertainty.groups == ()
    assert set(found.uncertainty.status) == {"estimated"}
    assert error_sd(found, robot, truth).max() < 4


def test_a_channel_with_a_model_error_is_weighed_down_and_intervals_grow(tiny: Robot, windows_of: Any) -> None:
    """An effort sensor with an offset of 8 standard deviations, which no parameter explains."""
    space = tiny.parameters
    truth = space.nominal * np.array([1.4, 2.0, 1.5, 0.7])
    plain = windows_of(tiny, truth, 40, seed=1)
    measured = plain.measured.copy()
    measured[:, :, 2] += 0.08
    clean, off = (
        identify(Replay(tiny), windows, space.z_nominal, test_structure=False)
        for windows in (plain, replace(plain, measured=measured))
    )
    np.testing.assert_array_equal(clean.weight, 1.0)
    # The first fit bends to it, so that the others are not at their floor either; but it stands out.
    assert off.weight[2] < 0.2
    assert off.weight[2] < 0.3 * off.weight[:2].min()
    assert error_sd(clean, tiny, truth).max() < 4
    assert error_sd(off, tiny, truth).max() < 4
    assert (off.uncertainty.sd >= 0.99 * clean.uncertainty.sd).all()
    assert off.uncertainty.sd.max() < 0.03, "with the effort at full weight it would be 0.1"


def test_a_gap_model_leads_with_few_parameters_too(tiny: Robot, windows_of: Any) -> None:
    """A source that is a third off costs fewer replays than exact derivatives, and the answer is the same."""

    class Rough:
        calls = 0

        def linearise(self, point: Point) -> Linearisation:
            self.calls += 1
            linear = FiniteDifference(Replay(tiny)).linearise(point)
            return replace(linear, jacobian=1.3 * linear.jacobian)

    rough = Rough()
    windows = windows_of(tiny, tiny.parameters.nominal * np.array([1.4, 2.0, 1.5, 0.7]), 6, seed=1)
    plain = identify(Replay(tiny), windows, tiny.parameters.z_nominal, test_structure=False)
    found = identify(Replay(tiny), windows, tiny.parameters.z_nominal, rough, test_structure=False)
    assert (plain.learned, found.learned) == (False, True)
    assert rough.calls > 1
    assert found.rollouts < plain.rollouts
    np.testing.assert_allclose(found.z, plain.z, atol=float(0.2 * plain.uncertainty.sd.min()))


@pytest.mark.slow
def test_a_gap_model_of_many_parameters_leads_but_does_not_decide(arm: Robot, windows_of: Any) -> None:
    """Any source will do that roughly points the way: here exact derivatives, a third too large."""

    class Rough:
        calls = 0

        def linearise(self, point: Point) -> Linearisation:
            self.calls += 1
            linear = FiniteDifference(Replay(arm)).linearise(point)
            return replace(linear, jacobian=1.3 * linear.jacobian)

    space, rough = arm.parameters, Rough()
    z = space.z_nominal + np.random.default_rng(1).uniform(-0.3, 0.3, len(space))
    windows = windows_of(arm, space.to_physical(z), 8, seed=1)
    found = identify(Replay(arm, 2), windows, space.z_nominal, rough, test_structure=False)
    assert found.learned
    assert rough.calls > 1
    t = np.abs(found.z - z) / found.uncertainty.sd
    assert np.mean(t < found.uncertainty.half_width(0.9) / found.uncertainty.sd) > 0.7
    assert t.max() < 6


def test_rollouts_are_all_counted_and_the_trace_ends_at_the_result(tiny: Robot, windows_of: Any) -> None:
    truth = tiny.parameters.nominal * np.array([1.4, 2.0, 1.5, 0.7])
    windows, replay = windows_of(tiny, truth, 12, seed=1), Replay(tiny)
    replay.run(windows, truth)
    found = identify(replay, windows, tiny.parameters.z_nominal)
    assert found.rollouts == replay.rollouts - len(windows)
    assert found.rollouts % len(windows) == 0
    np.testing.assert_array_equal(found.trace[-1].z, found.z)
    assert found.trace[-1].rollouts <= replay.rollouts


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_windows_give_the_same_bits(tiny: Robot, windows_of: Any, threads: int) -> None:
    truth = tiny.parameters.nominal * np.array([1.4, 2.0, 1.5, 0.7])
    windows = windows_of(tiny, truth, 16, seed=1)
    first = identify(Replay(tiny), windows, tiny.parameters.z_nominal)
    again = identify(Replay(tiny, threads), windows, tiny.parameters.z_nominal)
    np.testing.assert_array_equal(again.z, first.z)
    np.testing.assert_array_equal(again.uncertainty.covariance, first.uncertainty.covariance)
    assert again.findings == first.findings


def test_present_values_that_make_the_replay_diverge_are_refused(
    make_robot: Any, tiny_folder: Path, tmp_path: Path, windows_of: Any
) -> None:
    parameters = (tiny_folder / "parameters.toml").read_text(encoding="utf-8")
    robot = make_robot(
        tmp_path, parameters=parameters.replace("min = 0.005\nmax = 0.5", 'min = -300\nmax = 1\nscale = "linear"')
    )
    windows = windows_of(robot, robot.parameters.nominal, 12, seed=1)
    bad = robot.parameters.to_scaled(robot.parameters.vector({"joint/j/damping": -250.0}))
    with pytest.raises(InputError, match=r"diverges in 12 of 12 windows .*; correct them with --set"):
        identify(Replay(robot), windows, bad)


@pytest.mark.slow
def test_intervals_of_the_whole_fit_cover(tiny: Robot, level: Robot, windows_of: Any) -> None:
    """90 % intervals over 40 truths in two robots."""
    held = []
    for robot in (tiny, level):
        space = robot.parameters
        for seed in range(40):
            z = space.z_nominal + np.random.default_rng(seed).uniform(-0.7, 0.7, len(space))
            windows: Windows = windows_of(robot, space.to_physical(z), 40, seed)
            found = identify(Replay(robot), windows, space.z_nominal, test_structure=False)
            held.append(np.abs(found.z - z) <= found.uncertainty.half_width(0.9))
    assert 0.85 <= np.mean(held) <= 0.98
