"""Training data of the gap model: replayed windows with exact derivatives, in seeded shards."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import mujoco
import numpy as np
from numpy.typing import NDArray
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gapd.config import Context
from gapd.jacobian import FiniteDifference, Point
from gapd.replay import Replay
from gapd.robot import Robot
from gapd.windows import Frames, Windows, cut
from gaptrain.simulate import WARM_UP_S, Training, references, simulate

Array = NDArray[np.float64]
Single = NDArray[np.float32]
Split = Literal["train", "held_out"]

# Raise when the code draws other data from the same inputs: old shards are then left alone, not mixed in.
DATA_VERSION = 1
SHARD_WINDOWS = 512
WINDOWS_PER_MOTION = 4
# Half the replays use parameters near those of the robot, where fits end; spread as a share of the bounds.
NEAR_SHARE, NEAR_LOW, NEAR_HIGH = 0.5, 0.01, 0.3
# An on/off context changes inside this share of the windows, at one of a few steps per shard: each
# different step costs a rewrite of the model in every replay.
SWITCH_SHARE, OFF_SHARE, SWITCH_STEPS = 0.10, 0.04, 3
# A positive context whose range spans more than this ratio is drawn uniformly in its logarithm.
LOG_RATIO = 5.0


@dataclass(frozen=True)
class Samples:
    """n replayed windows with derivatives in units of channel noise, at the K knots after the initial one."""

    features: Single  # (n, K+1, F)
    context: Single  # (n, K+1, X)
    z: Single  # (n, P)
    jacobian: Single  # (n, K, C, P)
    x0_jacobian: Single  # (n, K, C, 2 nv)
    dropped: int  # windows left out because a replay failed

    def __len__(self) -> int:
        """Return n."""
        return len(self.z)


def data_folder(robot: Robot, training: Training) -> Path:
    """Folder of the shards, named after a hash of everything that defines them."""
    config = robot.config
    defined_by = (
        DATA_VERSION, mujoco.__version__, config.channel, config.timing, config.context, training.excitation,
        training.seed, robot.parameters.free, robot.parameters.frozen, SHARD_WINDOWS, WINDOWS_PER_MOTION,
        config.path(config.model).read_bytes(),
    )  # fmt: skip
    name = hashlib.sha256(msgspec.json.encode(defined_by)).hexdigest()[:12]
    return Path(config.folder) / ".data" / name


def shard_paths(folder: Path, split: Split, windows: int) -> list[Path]:
    """Files that together hold at least `windows` windows (less the dropped ones)."""
    return [folder / f"{split}-{i:04d}.npz" for i in range(-(-windows // SHARD_WINDOWS))]


def generate(robot: Robot, training: Training, threads: int = 2, quiet: bool = False) -> Path:
    """Write the shards that are missing; return their folder."""
    folder = data_folder(robot, training)
    folder.mkdir(parents=True, exist_ok=True)
    wanted: list[tuple[Split, int, Path]] = []
    # Held-out first: an interrupted run can then already be trained and measured.
    wants: dict[Split, int] = {"held_out": training.held_out, "train": training.windows}
    for split, count in wants.items():
        wanted += [(split, i, p) for i, p in enumerate(shard_paths(folder, split, count))]
    replay = Replay(robot, threads)
    with _progress(quiet) as progress:
        task = progress.add_task(f"data, seed {training.seed}", total=len(wanted) * SHARD_WINDOWS)
        for split, index, path in wanted:
            if not path.exists():
                write_shard(path, make_shard(replay, training, split, index, threads))
            progress.advance(task, SHARD_WINDOWS)
    return folder


def _progress(quiet: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, disable=quiet)


def make_shard(replay: Replay, training: Training, split: Split, index: int, threads: int = 2) -> Samples:
    """Windows of one shard, replayed with fresh parameters, with exact derivatives."""
    robot = replay.robot
    rng = np.random.default_rng([training.seed, ("train", "held_out").index(split), index])
    windows, z_robot = draw_windows(robot, training, rng, SHARD_WINDOWS, threads)
    z = draw_replay_parameters(robot, rng, z_robot)
    rollouts = replay.run(windows, robot.parameters.to_physical(z))
    point = Point(windows, z, windows.qpos0, windows.qvel0, rollouts)
    derivatives = FiniteDifference(replay).linearise(point)
    jacobian, x0_jacobian = derivatives.jacobian, derivatives.x0_jacobian
    good = ~rollouts.failed & np.isfinite(jacobian).all((1, 2, 3)) & np.isfinite(x0_jacobian).all((1, 2, 3))
    parts = (rollouts.features, windows.context[:, :: robot.layout.substeps], z, jacobian, x0_jacobian)
    features, context, z, jacobian, x0_jacobian = (part[good] for part in parts)
    single = np.float32
    return Samples(
        features.astype(single), context.astype(single), z.astype(single),
        jacobian.astype(single), x0_jacobian.astype(single), dropped=int((~good).sum()),
    )  # fmt: skip


def draw_windows(
    robot: Robot, training: Training, rng: np.random.Generator, count: int, threads: int = 2
) -> tuple[Windows, Array]:
    """Windows (count) as a robot with random parameters would record them, and those parameters z (count, P)."""
    layout, space = robot.layout, robot.parameters
    motions = -(-count // WINDOWS_PER_MOTION)
    physical = space.draw(rng, motions)
    context = draw_context(robot, rng, motions)
    warm_up = round(WARM_UP_S / layout.step_s)
    # One window more than is cut: local velocity fits reach beyond the last start.
    steps = warm_up + WINDOWS_PER_MOTION * layout.steps + 1
    reference = references(training.excitation, rng, motions, steps, layout.step_s)
    motion = simulate(robot, training.excitation, physical, reference, context, threads=threads)
    noisy = motion.measured + rng.normal(size=motion.measured.shape) * layout.noise
    time = (np.arange(steps) * layout.step_s).astype(float)
    starts = time[warm_up] + np.arange(WINDOWS_PER_MOTION) * layout.knots * layout.knot_s
    kept = np.flatnonzero(~motion.failed)
    parts = []
    for i in kept.tolist():
        frames = Frames(time, noisy[i], motion.command[i], np.repeat(context[i : i + 1], steps, axis=0))
        parts.append(cut(frames, layout, starts, source=i))
    windows = Windows.concatenate(parts)
    z = np.repeat(space.to_scaled(physical[kept]), WINDOWS_PER_MOTION, axis=0)
    windows, z = windows.take(slice(count)), z[:count]
    _switch(robot, rng, windows.context)
    return windows, z


def draw_replay_parameters(robot: Robot, rng: np.random.Generator, z_robot: Array) -> Array:
    """Scaled parameters (n, P) to replay with: some anywhere within the bounds, some near the robot's own."""
    space, n = robot.parameters, len(z_robot)
    span = space.z_max - space.z_min
    anywhere = rng.uniform(space.z_min, space.z_max, z_robot.shape)
    spread = np.exp(rng.uniform(np.log(NEAR_LOW), np.log(NEAR_HIGH), (n, 1)))
    near = np.clip(z_robot + spread * span * rng.normal(size=z_robot.shape), space.z_min, space.z_max)
    return np.where(rng.random((n, 1)) < NEAR_SHARE, near, anywhere)


def is_switch(context: Context) -> bool:
    """Whether a context is an on/off signal: normally 1, sometimes 0."""
    return (context.low, context.high, context.nominal) == (0.0, 1.0, 1.0)


def draw_context(robot: Robot, rng: np.random.Generator, n: int) -> Array:
    """Context values (n, X), constant over a motion. Switches are on here; see `_switch`."""
    columns = []
    for context in robot.config.context:
        share = rng.random(n)
        low, high = context.low, context.high
        if is_switch(context):
            columns.append(np.ones(n))
        elif low > 0 and high / low > LOG_RATIO:
            columns.append(low * (high / low) ** share)
        else:
            columns.append(low + (high - low) * share)
    return np.stack(columns, axis=1) if columns else np.zeros((n, 0))


def _switch(robot: Robot, rng: np.random.Generator, context: Array) -> None:
    """Turn switches off in some windows of context (n, N+1, X), in place: throughout, or for a part."""
    n, steps, _ = context.shape
    for column, declared in enumerate(robot.config.context):
        if not is_switch(declared):
            continue
        kind = rng.random((n, 1))
        at = rng.choice(rng.integers(1, steps, SWITCH_STEPS), n)
        later = np.arange(steps) >= at[:, None]
        off = np.where(rng.random((n, 1)) < 0.5, later, ~later)  # off from `at` on, or up to it
        off = (off | (kind >= SWITCH_SHARE)) & (kind < SWITCH_SHARE + OFF_SHARE)
        context[:, :, column] = 1.0 - off


def write_shard(path: Path, samples: Samples) -> None:
    """Write a shard whole or not at all. Derivatives are kept in half precision, scaled per column."""
    arrays: dict[str, NDArray[np.generic]] = {
        "features": samples.features, "context": samples.context, "z": samples.z,
        "dropped": np.array(samples.dropped),
    }  # fmt: skip
    for name in ("jacobian", "x0_jacobian"):
        value: Single = getattr(samples, name)
        scale = np.maximum(np.abs(value).max((0, 1)), np.float32(1e-30))
        arrays[name], arrays[name + "_scale"] = (value / scale).astype(np.float16), scale
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read_shard(path: Path) -> Samples:
    """Read what `write_shard` wrote."""
    with np.load(path, allow_pickle=False) as file:
        jacobian, x0_jacobian = (
            file[name].astype(np.float32) * file[name + "_scale"] for name in ("jacobian", "x0_jacobian")
        )
        return Samples(file["features"], file["context"], file["z"], jacobian, x0_jacobian, int(file["dropped"]))


def read_shards(paths: Sequence[Path]) -> Iterator[Samples]:
    """Read shards one after the other: only one is held in full precision."""
    return (read_shard(path) for path in paths)
