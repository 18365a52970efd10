"""What the training data are drawn from: windows of robots with random parameters, parameters to replay them with."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from gapd.config import Context
from gapd.errors import ConfigError
from gapd.gap.jacobian import Point
from gapd.gap.replay import Rollouts
from gapd.measured.windows import Frames, Windows, cut
from gapd.model.robot import Robot
from gaptrain.settings import Training
from gaptrain.simulate import WARM_UP_S, references, simulate

Array = NDArray[np.float64]

# Share of the windows that may be lost because a simulation diverged. More than that, and the model would learn
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


def refuse_many_dropped(dropped: int, count: int, kind: str) -> None:
    """Raise ConfigError where too many of `count` windows were lost."""
    if dropped > MAX_DROPPED_SHARE * count:
        raise ConfigError(
            f"{dropped} of {count} simulated {kind} diverge, allowed {MAX_DROPPED_SHARE:.0%}: narrow the "
            "bounds in parameters.toml, lower amplitude or high_hz in train.toml, or use a smaller timestep"
        )


def take(point: Point, rows: slice | NDArray[np.intp]) -> Point:
    """Some windows of a point."""
    rollouts = Rollouts(*(getattr(point.rollouts, f.name)[rows] for f in fields(Rollouts)))
    return Point(point.windows.take(rows), point.z[rows], point.qpos0[rows], point.qvel0[rows], rollouts)


def draw_windows(
    robot: Robot, training: Training, rng: np.random.Generator, count: int, threads: int = 2, known: Array | None = None
) -> tuple[Windows, Array]:
    """Windows as a robot with random parameters would record them, and those parameters z (windows, P).

    All have the physical values `known` (P,) instead, if given. There are `count` windows less those of motions that
    diverged; ConfigError if all did.
    """
    layout, space = robot.layout, robot.parameters
    motions = -(-count // WINDOWS_PER_MOTION)
    physical = space.draw(rng, motions) if known is None else np.tile(known, (motions, 1))
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
        refuse_many_dropped(count, count, "recordings")
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
