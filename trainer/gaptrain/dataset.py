"""Training data of the gap model: replayed windows with exact derivatives, in seeded shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
from gaptrain.executor import Executor
from gaptrain.fingerprint import robot_facts, short_hash
from gaptrain.local_plan import local
from gaptrain.settings import Training
from gaptrain.shard_folder import only_maker
from gaptrain.shards import Samples, damage, encode, put_shard
from gaptrain.shipment import Shipment, replay_of, ship

Array = NDArray[np.float64]
Split = Literal["train", "held_out"]

# Part of the hash that names the folder of shards. The hash covers configuration and model, no code: raise this when
# a change here, in gaptrain.draws, gaptrain.simulate or in gapd's replay, windows or derivatives gives other samples
# for the same inputs. Otherwise old and new shards are trained on together; with it, old ones are left alone.
DATA_VERSION = 1


@dataclass(frozen=True)
class Shard:
    """Which shard; also the job of whoever makes it."""

    split: Split
    index: int

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{self.split}-{self.index:04d}.npz"

    def __str__(self) -> str:
        """Return what messages call it."""
        return self.file


def data_folder(robot: Robot, training: Training) -> Path:
    """Folder of the shards, named after a hash of everything that defines them."""
    drawn = (DATA_VERSION, training.shard_windows, WINDOWS_PER_MOTION, training.excitation, training.seed)
    return Path(robot.config.folder) / ".data" / short_hash(*drawn, *robot_facts(robot))


def shards_of(training: Training, split: Split) -> list[Shard]:
    """Shards that together hold all windows of a split (less the dropped ones)."""
    windows = {"train": training.windows, "held_out": training.held_out}[split]
    return [Shard(split, i) for i in range(-(-windows // training.shard_windows))]


def shard_paths(folder: Path, training: Training, split: Split) -> list[Path]:
    """Their files."""
    return [folder / shard.file for shard in shards_of(training, split)]


def generate(robot: Robot, training: Training, threads: int = 2, executor: Executor | None = None) -> Path:
    """Write the shards that are missing or damaged; return their folder.

    They are made on `threads` cores of this computer, or by the executor. The files are the same in each case.
    """
    folder = data_folder(robot, training)
    # Held-out first: an interrupted run can then already be trained and measured.
    wanted = shards_of(training, "held_out") + shards_of(training, "train")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with only_maker(folder), Progress(*columns) as progress:
        executor = executor or local(robot, training, sum(not (folder / s.file).exists() for s in wanted), threads)
        size = training.shard_windows
        task = progress.add_task(f"data, seed {training.seed}", total=len(wanted) * size)

        def missing() -> Iterator[Shard]:
            for shard in wanted:
                path = folder / shard.file
                wrong = damage(path, robot, size) if path.exists() else "missing"
                if wrong and path.exists():
                    progress.console.print(f"{path}: damaged ({wrong}); made again", markup=False, soft_wrap=True)
                if wrong:
                    yield shard
                else:
                    progress.advance(task, size)

        for shard, raw in executor.map(shard_bytes, ship(robot, training, executor.threads), missing()):
            put_shard(folder / shard.file, raw)
            progress.advance(task, size)
    return folder


def shard_bytes(shipment: Shipment, shard: Shard) -> bytes:
    """The file of one shard: what a worker does."""
    replay = replay_of(shipment)
    return encode(make_shard(replay, shipment.training, shard.split, shard.index, shipment.threads))


def make_shard(replay: Replay, training: Training, split: Split, index: int, threads: int = 2) -> Samples:
    """Windows of one shard, replayed with fresh parameters, with exact derivatives."""
    robot = replay.robot
    rng = np.random.default_rng([training.seed, ("train", "held_out").index(split), index])
    windows, z_robot = draw_windows(robot, training, rng, training.shard_windows, threads)
    refuse_many_dropped(training.shard_windows - len(windows), training.shard_windows, "recordings")
    z = draw_replay_parameters(robot, rng, z_robot)
    rollouts = replay.run(windows, robot.parameters.to_physical(z))
    point = Point(windows, z, windows.qpos0, windows.qvel0, rollouts)
    derivatives = _linearise(FiniteDifference(replay), point)
    jacobian, x0_jacobian = derivatives.jacobian, derivatives.x0_jacobian
    good = ~rollouts.failed & np.isfinite(jacobian).all((1, 2, 3)) & np.isfinite(x0_jacobian).all((1, 2, 3))
    dropped = training.shard_windows - int(good.sum())
    refuse_many_dropped(dropped, training.shard_windows, "replays")
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
