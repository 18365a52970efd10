"""Training data of the gap model: replayed windows with exact derivatives, in seeded shards."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gapd.config import Context
from gapd.errors import ConfigError, InputError
from gapd.gap.jacobian import FiniteDifference, Linearisation, Point
from gapd.gap.replay import Replay, Rollouts
from gapd.measured.windows import Frames, Windows, cut
from gapd.model.robot import Robot
from gaptrain.fingerprint import robot_facts, short_hash
from gaptrain.settings import Training
from gaptrain.shards import Samples, damage, write_shard
from gaptrain.simulate import WARM_UP_S, references, simulate

Array = NDArray[np.float64]
Split = Literal["train", "held_out"]

# Part of the hash that names the folder of shards. The hash covers configuration and model, no code: raise this when
# a change here, in gaptrain.simulate or in gapd's replay, windows or derivatives gives other samples for the same
# inputs. Otherwise old and new shards are trained on together; with it, old ones are left alone.
DATA_VERSION = 1
SHARD_WINDOWS = 512
# Share of a shard's windows that may be lost because a simulation diverged. More than that, and the model would learn
# from the calm part of the bounds only.
MAX_DROPPED_SHARE = 0.2
WINDOWS_PER_MOTION = 4
# Half the replays use parameters near those of the robot, where fits end; spread as a share of the bounds.
NEAR_SHARE, NEAR_LOW, NEAR_HIGH = 0.5, 0.01, 0.3
# An on/off context changes inside this share of the windows, at one of a few steps per shard: each
# different step costs a rewrite of the model in every replay.
SWITCH_SHARE, OFF_SHARE, SWITCH_STEPS = 0.10, 0.04, 3
# A positive context whose range spans more than this ratio is drawn uniformly in its logarithm.
LOG_RATIO = 5.0


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
    _refuse_many_dropped(SHARD_WINDOWS - len(windows), "recordings")
    z = draw_replay_parameters(robot, rng, z_robot)
    rollouts = replay.run(windows, robot.parameters.to_physical(z))
    point = Point(windows, z, windows.qpos0, windows.qvel0, rollouts)
    derivatives = _linearise(FiniteDifference(replay), point)
    jacobian, x0_jacobian = derivatives.jacobian, derivatives.x0_jacobian
    good = ~rollouts.failed & np.isfinite(jacobian).all((1, 2, 3)) & np.isfinite(x0_jacobian).all((1, 2, 3))
    dropped = SHARD_WINDOWS - int(good.sum())
    _refuse_many_dropped(dropped, "replays")
    parts = (rollouts.features, windows.context[:, :: robot.layout.substeps], z, jacobian, x0_jacobian)
    features, context, z, jacobian, x0_jacobian = (part[good] for part in parts)
    single = np.float32
    return Samples(
        features.astype(single), context.astype(single), z.astype(single),
        jacobian.astype(single), x0_jacobian.astype(single), dropped=dropped,
    )  # fmt: skip


def _refuse_many_dropped(dropped: int, kind: str) -> None:
    if dropped > MAX_DROPPED_SHARE * SHARD_WINDOWS:
        raise ConfigError(
            f"{dropped} of {SHARD_WINDOWS} simulated {kind} diverge, allowed {MAX_DROPPED_SHARE:.0%}: narrow the "
            "bounds in parameters.toml, lower amplitude or high_hz in train.toml, or use a smaller timestep"
        )


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


def take(point: Point, rows: slice | NDArray[np.intp]) -> Point:
    """Some windows of a point."""
    rollouts = Rollouts(*(getattr(point.rollouts, f.name)[rows] for f in fields(Rollouts)))
    return Point(point.windows.take(rows), point.z[rows], point.qpos0[rows], point.qvel0[rows], rollouts)


def draw_windows(
    robot: Robot, training: Training, rng: np.random.Generator, count: int, threads: int = 2
) -> tuple[Windows, Array]:
    """Windows as a robot with random parameters would record them, and those parameters z (windows, P).

    There are `count` windows less those of motions that diverged; ConfigError if all did.
    """
    layout, space = robot.layout, robot.parameters
    motions = -(-count // WINDOWS_PER_MOTION)
    physical = space.draw(rng, motions)
    context = draw_context(robot, rng, motions)
    warm_up = round(WARM_UP_S / layout.step_s)
    # The windows lie back to back; the step after them is the last one's final knot.
    steps = warm_up + WINDOWS_PER_MOTION * layout.steps + 1
    reference = references(training.excitation, rng, motions, steps, layout.step_s)
    motion = simulate(robot, training.excitation, physical, reference, context, threads=threads)
    noisy = motion.measured + rng.normal(size=motion.measured.shape) * layout.noise
    time = (np.arange(steps) * layout.step_s).astype(float)
    starts = time[warm_up] + np.arange(WINDOWS_PER_MOTION) * layout.knots * layout.knot_s
    kept = np.flatnonzero(~motion.failed)
    if not len(kept):
        _refuse_many_dropped(SHARD_WINDOWS, "recordings")
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
