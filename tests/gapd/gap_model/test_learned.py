"""The learned derivatives stand in for the exact ones: same shapes, same units, near enough to lead a fit."""

from pathlib import Path

import numpy as np
import pytest

from gapd.gap.jacobian import FiniteDifference, Point
from gapd.gap.replay import Replay, Rollouts
from gapd.gap_model.bundle import open_bundle
from gapd.gap_model.learned import BATCH, Learned
from gapd.measured.windows import Windows, cut, window_starts
from gapd.model.robot import Robot, open_robot
from gaptrain.settings import load_training
from gaptrain.simulate import record

MODELS = Path(__file__).parents[3] / "models"


def recorded(robot: Robot, folder: Path, count: int) -> Windows:
    training = load_training(folder / "train.toml")
    seconds = (count + 0.5) * robot.layout.knots * robot.layout.knot_s
    frames = record(robot, training.excitation, robot.parameters.nominal, seconds, seed=7).frames
    return cut(frames, robot.layout, window_starts(frames, robot.layout)[:count])


def point(robot: Robot, windows: Windows, z: np.ndarray) -> Point:  # type: ignore[type-arg]
    rollouts = Replay(robot).run(windows, robot.parameters.to_physical(z))
    return Point(windows, z, windows.qpos0, windows.qvel0, rollouts)


@pytest.mark.parametrize("name", ["arm7", "servo_pendulum", "ballscrew"])
def test_learned_derivatives_resemble_exact_ones(name: str) -> None:
    robot = open_robot(MODELS / name / "robot.toml")
    at = point(robot, recorded(robot, MODELS / name, 6), robot.parameters.z_nominal)
    found = Learned(open_bundle(robot), robot).linearise(at)
    exact = FiniteDifference(Replay(robot)).linearise(at)
    assert found.jacobian.shape == exact.jacobian.shape
    assert found.x0_jacobian.shape == exact.x0_jacobian.shape
    for learned, wanted in ((found.jacobian, exact.jacobian), (found.x0_jacobian, exact.x0_jacobian)):
        norm = np.sqrt((wanted**2).sum((0, 1, 2)))
        wrong = np.sqrt(((learned - wanted) ** 2).sum((0, 1, 2))) / norm
        assert np.median(wrong) < 0.4, wrong


def test_batches_do_not_change_the_result_and_theta_may_differ_by_window() -> None:
    robot = open_robot(MODELS / "servo_pendulum" / "robot.toml")
    count = BATCH + 3
    windows = recorded(robot, MODELS / "servo_pendulum", count)
    z = robot.parameters.z_nominal + np.linspace(-0.3, 0.3, count)[:, None]
    learned = Learned(open_bundle(robot), robot)
    together = learned.linearise(point(robot, windows, z))
    assert together.jacobian.shape == (count, robot.layout.knots, 1, 6)
    alone = learned.linearise(point(robot, windows.take([34]), z[34:]))
    largest = np.abs(together.jacobian[34]).max()
    np.testing.assert_allclose(alone.jacobian[0], together.jacobian[34], atol=1e-5 * largest)


def test_pruned_edges_are_exactly_zero() -> None:
    robot = open_robot(MODELS / "arm7" / "robot.toml")
    learned = Learned(open_bundle(robot), robot)
    found = learned.linearise(point(robot, recorded(robot, MODELS / "arm7", 2), robot.parameters.z_nominal))
    pruned = learned.bundle.edge_probability.T <= 0.5
    assert pruned.any()
    assert (found.jacobian[:, :, pruned] == 0).all()
    assert (found.jacobian[:, :, ~pruned] != 0).any(axis=(0, 1)).all()


def test_a_failed_replay_gives_nan_and_leaves_the_others_alone() -> None:
    robot = open_robot(MODELS / "servo_pendulum" / "robot.toml")
    windows = recorded(robot, MODELS / "servo_pendulum", 3)
    at = point(robot, windows, robot.parameters.z_nominal)
    learned = Learned(open_bundle(robot), robot)
    good = learned.linearise(at)
    features = at.rollouts.features.copy()
    features[1] = np.nan
    rollouts = Rollouts(at.rollouts.predicted, features, np.array([False, True, False]))
    found = learned.linearise(Point(windows, at.z, at.qpos0, at.qvel0, rollouts))
    assert np.isnan(found.jacobian[1]).all()
    assert np.isnan(found.x0_jacobian[1]).all()
    np.testing.assert_allclose(found.jacobian[[0, 2]], good.jacobian[[0, 2]], rtol=1e-5, atol=1e-4)
