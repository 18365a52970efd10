"""Training data alone: made here or on a cluster, for a training that may be somewhere else. No torch."""

from __future__ import annotations

from pathlib import Path

import msgspec
from click import echo

from gapd.model.robot import Robot, open_robot
from gaptrain.dataset import generate
from gaptrain.pruning import prune
from gaptrain.ray_cluster import RayCluster
from gaptrain.settings import Training, check_training, load_training
from gaptrain.simulate import driven_joints


def open_training(model_dir: Path, **given: int | None) -> tuple[Robot, Training]:
    """The robot of a model folder and its train.toml with the given values in place of its own; ConfigError."""
    robot = open_robot(model_dir / "robot.toml")
    training = load_training(model_dir / "train.toml")
    training = msgspec.structs.replace(training, **{k: v for k, v in given.items() if v is not None})
    check_training(training, "command line")
    driven_joints(robot, training.excitation)
    return robot, training


def make_data(robot: Robot, training: Training, threads: int | None = None, ray: str | None = None) -> Path:
    """Make what is missing, of a robot that is pruned: on `threads` cores here, or of a Ray cluster for each shard."""
    if ray is None:
        return generate(robot, training, threads or 2)
    return generate(robot, training, executor=RayCluster(ray, threads or 1))


def data(
    model_dir: Path,
    windows: int | None = None,
    seed: int | None = None,
    threads: int | None = None,
    ray: str | None = None,
) -> Path:
    """Make the data that `gaptrain fit` with the same arguments would train on. Return their folder."""
    robot, training = open_training(model_dir, windows=windows, seed=seed)
    echo(f"{robot.config.robot}: seed {training.seed}, {training.windows} windows and {training.held_out} held out")
    folder = make_data(prune(robot, training, threads or 2).robot, training, threads, ray)
    echo(f"{folder}: complete; `gaptrain fit` with the same options trains on it, here or in a copy of {model_dir}")
    return folder
