"""Training data: exact derivatives, seeded, resumable, and never a half-written shard."""

import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from gapd.jacobian import FiniteDifference, Linearisation, Point
from gapd.replay import Replay
from gapd.robot import Robot, open_robot
from gaptrain import dataset
from gaptrain.simulate import Training, load_training

MODELS = Path(__file__).parents[2] / "models"


@pytest.fixture
def robot(tmp_path: Path) -> Robot:
    """A copy of the servo model without its data."""
    folder = tmp_path / "servo_pendulum"
    shutil.copytree(MODELS / "servo_pendulum", folder, ignore=shutil.ignore_patterns(".data", "bundle"))
    return open_robot(folder / "robot.toml")


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Training:
    """Two small shards to train on, one held out."""
    monkeypatch.setattr(dataset, "SHARD_WINDOWS", 16)
    training = load_training(MODELS / "servo_pendulum" / "train.toml")
    return msgspec.structs.replace(training, windows=32, held_out=16)


def test_derivatives_predict_what_a_replay_does(robot: Robot, training: Training) -> None:
    replay = Replay(robot)
    rng = np.random.default_rng(1)
    windows, z = dataset.draw_windows(robot, training, rng, count=16)
    base = replay.run(windows, robot.parameters.to_physical(z))
    exact = FiniteDifference(replay).linearise(Point(windows, z, windows.qpos0, windows.qvel0, base))
    step = 1e-3 * rng.normal(size=z.shape)
    moved = replay.run(windows, robot.parameters.to_physical(z + step))
    change = ((moved.predicted - base.predicted)[:, 1:]) / robot.layout.noise
    told = np.einsum("wkcp,wp->wkc", exact.jacobian, step)
    assert np.median(np.abs(told - change)) < 0.05 * np.median(np.abs(change))


def test_a_shard_survives_its_half_precision(robot: Robot, training: Training, tmp_path: Path) -> None:
    made = dataset.make_shard(Replay(robot), training, "train", 0)
    dataset.write_shard(tmp_path / "shard.npz", made)
    read = dataset.read_shard(tmp_path / "shard.npz")
    assert len(read) == len(made) == 16
    np.testing.assert_array_equal(read.features, made.features)
    for name in ("jacobian", "x0_jacobian"):
        wanted, found = getattr(made, name), getattr(read, name)
        largest = np.abs(wanted).max(axis=(0, 1))
        assert (np.abs(found - wanted) <= 1e-3 * largest).all()


def test_an_interrupted_run_is_continued_and_gives_the_same_data(robot: Robot, training: Training) -> None:
    folder = dataset.generate(robot, training, quiet=True)
    paths = dataset.shard_paths(folder, "train", training.windows)
    before = [p.read_bytes() for p in paths]
    kept = paths[0].stat().st_mtime_ns
    paths[1].rename(paths[1].with_name(paths[1].name + ".part"))  # as if the run had died while writing it
    assert dataset.generate(robot, training, quiet=True) == folder
    assert [p.read_bytes() for p in paths] == before
    assert paths[0].stat().st_mtime_ns == kept
    assert not list(folder.glob("*.part"))


def test_more_windows_keep_the_shards_there_are(robot: Robot, training: Training) -> None:
    more = msgspec.structs.replace(training, windows=64, epochs=99)
    assert dataset.data_folder(robot, more) == dataset.data_folder(robot, training)


def test_other_noise_or_seed_means_other_data(robot: Robot, training: Training) -> None:
    louder = tuple(msgspec.structs.replace(c, noise=2 * c.noise) for c in robot.config.channel)
    other = replace(robot, config=msgspec.structs.replace(robot.config, channel=louder))
    pinned = replace(robot, config=msgspec.structs.replace(robot.config, bundle_sha256="abc"))
    here = dataset.data_folder(robot, training)
    assert dataset.data_folder(other, training) != here
    assert dataset.data_folder(robot, msgspec.structs.replace(training, seed=2)) != here
    assert dataset.data_folder(pinned, training) == here


def test_windows_whose_replay_failed_are_dropped_and_counted(
    robot: Robot, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = FiniteDifference.linearise

    def broken(self: FiniteDifference, point: Point) -> Linearisation:
        linear = exact(self, point)
        linear.jacobian[3, 0, 0, 0] = np.nan
        return linear

    monkeypatch.setattr(FiniteDifference, "linearise", broken)
    samples = dataset.make_shard(Replay(robot), training, "train", 0)
    assert (len(samples), samples.dropped) == (15, 1)
    assert np.isfinite(samples.jacobian).all()


def test_a_switch_is_off_in_a_few_windows_and_then_torque_has_no_effect(robot: Robot, training: Training) -> None:
    rng = np.random.default_rng(0)
    windows, z = dataset.draw_windows(robot, training, rng, count=200)
    enabled = windows.context[:, :, robot.config.context_names.index("drive_enabled")]
    assert set(np.unique(enabled)) == {0.0, 1.0}
    off = (enabled == 0).all(axis=1)
    assert 0 < off.sum() < 30
    assert 0 < ((enabled == 0).any(axis=1) & ~off).sum() < 50
    dead = windows.take(off)
    replay = Replay(robot)
    base = replay.run(dead, robot.parameters.to_physical(z[off]))
    exact = FiniteDifference(replay).linearise(Point(dead, z[off], dead.qpos0, dead.qvel0, base))
    torque = robot.parameters.names.index("actuator/servo/torque_constant")
    np.testing.assert_array_equal(exact.jacobian[..., torque], 0.0)


def test_draws_stay_within_bounds(robot: Robot) -> None:
    rng, space = np.random.default_rng(0), robot.parameters
    z = dataset.draw_replay_parameters(robot, rng, space.to_scaled(space.draw(rng, 300)))
    assert (z >= space.z_min).all()
    assert (z <= space.z_max).all()
    context = dataset.draw_context(robot, rng, 300)
    low = np.array([c.low for c in robot.config.context])
    high = np.array([c.high for c in robot.config.context])
    assert (context >= low).all()
    assert (context <= high).all()
