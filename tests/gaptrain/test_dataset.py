"""Training data: exact derivatives, seeded, resumable, and never a half-written shard."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from gapd.errors import ConfigError, InputError
from gapd.gap.jacobian import FiniteDifference, Linearisation, Point
from gapd.gap.replay import Replay
from gapd.model.robot import Robot, open_robot
from gaptrain import dataset, draws, shards
from gaptrain.settings import Training, load_training
from gaptrain.simulate import Motion, simulate

MODELS = Path(__file__).parents[2] / "models"


@pytest.fixture
def robot(tmp_path: Path) -> Robot:
    """A copy of the servo model without its data."""
    folder = tmp_path / "servo_pendulum"
    shutil.copytree(MODELS / "servo_pendulum", folder, ignore=shutil.ignore_patterns(".data", "bundle"))
    return open_robot(folder / "robot.toml")


@pytest.fixture
def training() -> Training:
    """Two small shards to train on, one held out."""
    training = load_training(MODELS / "servo_pendulum" / "train.toml")
    return msgspec.structs.replace(training, windows=32, held_out=16, shard_windows=16)


def test_derivatives_predict_what_a_replay_does(robot: Robot, training: Training) -> None:
    replay = Replay(robot)
    rng = np.random.default_rng(1)
    windows, z = draws.draw_windows(robot, training, rng, count=16)
    base = replay.run(windows, robot.parameters.to_physical(z))
    exact = FiniteDifference(replay).linearise(Point(windows, z, windows.qpos0, windows.qvel0, base))
    step = 1e-3 * rng.normal(size=z.shape)
    moved = replay.run(windows, robot.parameters.to_physical(z + step))
    change = ((moved.predicted - base.predicted)[:, 1:]) / robot.layout.noise
    told = np.einsum("wkcp,wp->wkc", exact.jacobian, step)
    assert np.median(np.abs(told - change)) < 0.05 * np.median(np.abs(change))


def test_a_shard_survives_its_half_precision(robot: Robot, training: Training, tmp_path: Path) -> None:
    made = dataset.make_shard(Replay(robot), training, "train", 0)
    path = tmp_path / dataset.data_folder(robot, training).name / "train-0000.npz"
    path.parent.mkdir()
    shards.write_shard(path, made)
    read = shards.read_shard(path)
    assert len(read) == len(made) == 16
    for name in ("features", "context", "z", "dropped", "data"):
        np.testing.assert_array_equal(getattr(read, name), getattr(made, name))
    for name in ("jacobian", "x0_jacobian"):
        wanted, found = getattr(made, name), getattr(read, name)
        largest = np.abs(wanted).max(axis=(0, 1))
        assert (np.abs(found - wanted) <= 1e-3 * largest).all()


def test_an_interrupted_run_is_continued_and_gives_the_same_data(robot: Robot, training: Training) -> None:
    folder = dataset.generate(robot, training)
    paths = dataset.shard_paths(folder, training, "train")
    before = [p.read_bytes() for p in paths]
    kept = paths[0].stat().st_mtime_ns
    paths[1].rename(paths[1].with_name(paths[1].name + ".part"))  # as if the run had died while writing it
    assert dataset.generate(robot, training) == folder
    assert [p.read_bytes() for p in paths] == before
    assert paths[0].stat().st_mtime_ns == kept
    assert not list(folder.glob("*.part"))


def flipped(raw: bytes) -> bytes:
    middle = len(raw) // 2
    return raw[:middle] + bytes([raw[middle] ^ 1]) + raw[middle + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda raw: raw[: len(raw) // 2],
    "altered": flipped,
    "empty": lambda _: b"",
    "foreign": lambda _: b"timestamp,position_j\n0,0\n",
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_shard_is_said_and_made_again(
    robot: Robot, training: Training, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    training = msgspec.structs.replace(training, windows=16)
    folder = dataset.generate(robot, training)
    held_out, train = (dataset.shard_paths(folder, training, split)[0] for split in ("held_out", "train"))
    whole = train.read_bytes()
    train.write_bytes(DAMAGES[kind](whole))
    with pytest.raises(InputError, match=r"train-0000\.npz: damaged \(.+\); run `gaptrain fit` to make it again"):
        shards.read_shard(train)
    kept = held_out.stat().st_mtime_ns
    capsys.readouterr()
    dataset.generate(robot, training)
    said = capsys.readouterr().out
    assert said.count("; made again") == 1
    assert "train-0000.npz: damaged" in said
    assert train.read_bytes() == whole
    assert held_out.stat().st_mtime_ns == kept


def test_a_shard_of_other_sizes_or_with_nan_is_made_again(robot: Robot, training: Training, tmp_path: Path) -> None:
    path = tmp_path / dataset.data_folder(robot, training).name / "train-0000.npz"
    path.parent.mkdir()
    made = dataset.make_shard(Replay(robot), training, "train", 0)
    for other, said in (
        (replace(made, dropped=1), "it is of other sizes"),
        (replace(made, z=made.z[:, :-1]), "it is of other sizes"),
        (replace(made, features=np.full_like(made.features, np.nan)), "it holds values that are not finite"),
        (made, ""),
    ):
        shards.write_shard(path, other)
        assert shards.damage(path, robot, 16) == said


def test_held_out_windows_are_not_trained_on_under_another_name(
    robot: Robot, training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = dataset.generate(robot, training)
    held_out, train = folder / "held_out-0000.npz", folder / "train-0001.npz"
    own = train.read_bytes()
    shutil.copyfile(held_out, train)
    wrong = f"it holds the windows of {folder.name}/held_out-0000, not of {folder.name}/train-0001"
    with pytest.raises(InputError) as caught:
        shards.read_shard(train)
    assert str(caught.value) == f"{train}: {wrong}; run `gaptrain fit` to make it again"
    capsys.readouterr()
    dataset.generate(robot, training)
    assert f"{train}: damaged ({wrong}); made again\n" in capsys.readouterr().out
    assert train.read_bytes() == own


def test_a_shard_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file; run `gaptrain fit` to make it"):
        shards.read_shard(tmp_path / "train-0000.npz")


def test_more_windows_keep_the_shards_there_are(robot: Robot, training: Training) -> None:
    more = msgspec.structs.replace(training, windows=64, epochs=99)
    assert dataset.data_folder(robot, more) == dataset.data_folder(robot, training)


def test_other_noise_or_seed_means_other_data(robot: Robot, training: Training) -> None:
    other = replace(robot, layout=replace(robot.layout, noise=2 * robot.layout.noise))
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
        point.rollouts.failed[5] = True
        return linear

    monkeypatch.setattr(FiniteDifference, "linearise", broken)
    samples = dataset.make_shard(Replay(robot), training, "train", 0)
    assert (len(samples), samples.dropped) == (14, 2)
    assert np.isfinite(samples.jacobian).all()


def failing(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Let the first motions of every simulation diverge."""

    def broken(*arguments: Any, **named: Any) -> Motion:
        motion = simulate(*arguments, **named)
        motion.failed[: round(share * len(motion.failed))] = True
        return motion

    monkeypatch.setattr(draws, "simulate", broken)


def test_windows_of_motions_that_diverged_are_counted(
    robot: Robot, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draws, "MAX_DROPPED_SHARE", 0.3)
    failing(monkeypatch, 0.25)
    samples = dataset.make_shard(Replay(robot), training, "train", 0)
    assert (len(samples), samples.dropped) == (12, 4)


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_too_many_motions_that_diverge_are_refused_with_a_remedy(
    robot: Robot, training: Training, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    failing(monkeypatch, share)
    message = rf"{round(16 * share)} of 16 simulated recordings diverge, allowed 20%: narrow the bounds .* timestep"
    with pytest.raises(ConfigError, match=message):
        dataset.make_shard(Replay(robot), training, "train", 0)


def test_a_window_without_derivatives_is_dropped_and_the_others_are_kept(
    robot: Robot, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = dataset.make_shard(Replay(robot), training, "train", 0)
    exact, edge = FiniteDifference.linearise, float(whole.z[5, 0])

    def broken(self: FiniteDifference, point: Point) -> Linearisation:
        if (point.z[:, 0].astype(np.float32) == edge).any():
            raise InputError("the replay diverges when it moves")
        return exact(self, point)

    monkeypatch.setattr(FiniteDifference, "linearise", broken)
    samples = dataset.make_shard(Replay(robot), training, "train", 0)
    assert samples.dropped == 1
    np.testing.assert_array_equal(samples.z, np.delete(whole.z, 5, axis=0))
    np.testing.assert_array_equal(samples.jacobian, np.delete(whole.jacobian, 5, axis=0))


def test_a_switch_is_off_in_a_few_windows_and_then_torque_has_no_effect(robot: Robot, training: Training) -> None:
    rng = np.random.default_rng(0)
    windows, z = draws.draw_windows(robot, training, rng, count=200)
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
    z = draws.draw_replay_parameters(robot, rng, space.to_scaled(space.draw(rng, 300)))
    assert (z >= space.z_min).all()
    assert (z <= space.z_max).all()
    context = draws.draw_context(robot, rng, 300)
    low = np.array([c.low for c in robot.config.context])
    high = np.array([c.high for c in robot.config.context])
    assert (context >= low).all()
    assert (context <= high).all()
