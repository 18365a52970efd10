"""Training data of the gap model: replayed windows with exact derivatives, in seeded shards."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gapd.errors import InputError
from gapd.gap.jacobian import FiniteDifference, Linearisation, Point
from gapd.gap.replay import Replay
from gapd.model.robot import Robot
from gaptrain.draws import WINDOWS_PER_MOTION, draw_replay_parameters, draw_windows, refuse_many_dropped, take
from gaptrain.fingerprint import robot_facts, short_hash
from gaptrain.settings import Training
from gaptrain.shards import Samples, damage, write_shard

Array = NDArray[np.float64]
Split = Literal["train", "held_out"]

# Part of the hash that names the folder of shards. The hash covers configuration and model, no code: raise this when
# a change here, in gaptrain.draws, gaptrain.simulate or in gapd's replay, windows or derivatives gives other samples
# for the same inputs. Otherwise old and new shards are trained on together; with it, old ones are left alone.
DATA_VERSION = 1
SHARD_WINDOWS = 512


def data_folder(robot: Robot, training: Training) -> Path:
    """Folder of the shards, named after a hash of everything that defines them."""
    drawn = (DATA_VERSION, SHARD_WINDOWS, WINDOWS_PER_MOTION, training.excitation, training.seed)
    return Path(robot.config.folder) / ".data" / short_hash(*drawn, *robot_facts(robot))


def shard_paths(folder: Path, split: Split, windows: int) -> list[Path]:
    """Files that together hold at least `windows` windows (less the dropped ones)."""
    return [folder / f"{split}-{i:04d}.npz" for i in range(-(-windows // SHARD_WINDOWS))]


def generate(robot: Robot, training: Training, threads: int = 2) -> Path:
    """Write the shards that are missing or damaged; return their folder."""
    folder = data_folder(robot, training)
    folder.mkdir(parents=True, exist_ok=True)
    wanted: list[tuple[Split, int, Path]] = []
    # Held-out first: an interrupted run can then already be trained and measured.
    wants: dict[Split, int] = {"held_out": training.held_out, "train": training.windows}
    for split, count in wants.items():
        wanted += [(split, i, p) for i, p in enumerate(shard_paths(folder, split, count))]
    replay = Replay(robot, threads)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task(f"data, seed {training.seed}", total=len(wanted) * SHARD_WINDOWS)
        for split, index, path in wanted:
            wrong = damage(path, robot, SHARD_WINDOWS) if path.exists() else "missing"
            if wrong:
                if path.exists():
                    progress.console.print(f"{path}: damaged ({wrong}); made again", markup=False, soft_wrap=True)
                write_shard(path, make_shard(replay, training, split, index, threads))
            progress.advance(task, SHARD_WINDOWS)
    return folder


def make_shard(replay: Replay, training: Training, split: Split, index: int, threads: int = 2) -> Samples:
    """Windows of one shard, replayed with fresh parameters, with exact derivatives."""
    robot = replay.robot
    rng = np.random.default_rng([training.seed, ("train", "held_out").index(split), index])
    windows, z_robot = draw_windows(robot, training, rng, SHARD_WINDOWS, threads)
    refuse_many_dropped(SHARD_WINDOWS - len(windows), SHARD_WINDOWS, "recordings")
    z = draw_replay_parameters(robot, rng, z_robot)
    rollouts = replay.run(windows, robot.parameters.to_physical(z))
    point = Point(windows, z, windows.qpos0, windows.qvel0, rollouts)
    derivatives = _linearise(FiniteDifference(replay), point)
    jacobian, x0_jacobian = derivatives.jacobian, derivatives.x0_jacobian
    good = ~rollouts.failed & np.isfinite(jacobian).all((1, 2, 3)) & np.isfinite(x0_jacobian).all((1, 2, 3))
    dropped = SHARD_WINDOWS - int(good.sum())
    refuse_many_dropped(dropped, SHARD_WINDOWS, "replays")
    parts = (rollouts.features, windows.context[:, :: robot.layout.substeps], z, jacobian, x0_jacobian)
    features, context, z, jacobian, x0_jacobian = (part[good] for part in parts)
    single = np.float32
    return Samples(
        features.astype(single), context.astype(single), z.astype(single),
        jacobian.astype(single), x0_jacobian.astype(single), dropped=dropped,
        data=f"{data_folder(robot, training).name}/{split}-{index:04d}",
    )  # fmt: skip


def _linearise(source: FiniteDifference, point: Point) -> Linearisation:
    """Derivatives by halves where a window at the edge of stability has none; NaN for such a window."""
    try:
        return source.linearise(point)
    except InputError:
        count = len(point.windows)
        if count == 1:
            knots, channels = point.rollouts.predicted[0, 1:].shape
            columns = (point.z.shape[1], 2 * point.qpos0.shape[1])
            return Linearisation(*(np.full((1, knots, channels, c), np.nan) for c in columns))
    halves = (_linearise(source, take(point, rows)) for rows in (slice(0, count // 2), slice(count // 2, count)))
    one, two = halves
    jacobian = np.concatenate([one.jacobian, two.jacobian])
    return Linearisation(jacobian, np.concatenate([one.x0_jacobian, two.x0_jacobian]))
