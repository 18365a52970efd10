"""mujoco.sysid on gapd's windows: its optimiser and intervals, gapd's replay, measured initial states."""

from __future__ import annotations

import importlib
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gapd.errors import InputError
from gapd.fit.gauss_newton import residuals
from gapd.gap.replay import Replay, gap, squared_gap
from gapd.measured.windows import Windows
from gapd.model.robot import Robot

Array = NDArray[np.float64]

MOST_ITERATIONS = 100
# Residual of a diverged replay in noise standard deviations: far above what a replay within the bounds gives.
DIVERGED = 1e4


def fit(robot: Robot, windows: Windows, before: Array, threads: int) -> tuple[Array, Array]:
    """Scaled values (P,) and their standard deviations (P,) from windows, starting at `before` (P,)."""
    # Not by `import`: it ships types, the package around it does not.
    sysid: Any = importlib.import_module("mujoco.sysid")
    if not hasattr(sysid, "optimize"):
        raise InputError("mujoco.sysid is not installed; install gapd[host], or use --engine gapd")
    space, replay = robot.parameters, Replay(robot, threads)
    margin = 1e-3 * (space.z_max - space.z_min)  # it may stall at a bound that it starts on
    start = np.clip(before, space.z_min + margin, space.z_max - margin)
    table = zip(space.names, start, space.z_min, space.z_max, strict=True)
    parameters = sysid.ParameterDict({name: sysid.Parameter(name, *values) for name, *values in table})

    def residual(x: Array, _parameters: Any) -> tuple[list[Array], None, None]:
        columns = [_residual(replay, windows, z) for z in x.reshape(len(space), -1).T]
        return [np.stack(columns, axis=1)], None, None

    fitted, result = sysid.optimize(
        parameters, residual, verbose=False, max_iters=MOST_ITERATIONS, output=io.StringIO()
    )
    z = np.clip(fitted.as_vector(), space.z_min, space.z_max)
    covariance, _ = sysid.calculate_intervals([_residual(replay, windows, z)], np.asarray(result.jac))
    # What the data do not tell is as uncertain as the bounds.
    largest = (space.z_max - space.z_min) / 4
    variance = np.nan_to_num(np.diag(covariance), nan=np.inf)
    return z, np.sqrt(np.clip(variance, 0.0, largest**2))


def _residual(replay: Replay, windows: Windows, z: Array) -> Array:
    robot = replay.robot
    rollouts = replay.run(windows, robot.parameters.to_physical(z))
    noise = robot.layout.noise
    flat = residuals(gap(windows, rollouts, noise), np.ones(len(noise)))
    flat[rollouts.failed] = DIVERGED
    return np.asarray(flat.ravel())


def held_out_gaps(robot: Robot, held: Windows, points: tuple[Array, Array], threads: int) -> tuple[Array, Array]:
    """Mean squared gap (H, C) of the windows at each of the scaled points (P,); NaN where unknown."""
    replay = Replay(robot, threads)
    runs = (replay.run(held, robot.parameters.to_physical(z)) for z in points)
    before, after = (squared_gap(gap(held, rollouts, robot.layout.noise)) for rollouts in runs)
    return before, after
