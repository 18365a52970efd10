"""A machine whose friction grows with load, simulated step by step and fitted with scipy: to judge a finding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from mujoco import batch
from numpy.typing import NDArray
from scipy.optimize import least_squares

from gapd.measured.windows import Windows
from gapd.model.robot import Robot

Array = NDArray[np.float64]

# Step of the forward differences, scaled parameters and share alike.
STEP = 1e-4


@dataclass(frozen=True)
class LoadFrictionFit:
    """Scaled parameters and then the share (P + 1,), squared residual in noise, rollouts used."""

    x: Array
    cost: float
    rollouts: int


def with_load_friction(robot: Robot, windows: Windows, points: Array, threads: int) -> Array:
    """Replay (n, W, K+1, C) of a robot with one joint, at points (n, P + 1): scaled parameters and a share.

    In each step the frictionloss is that of the parameters plus `share` of the absolute actuator force.
    """
    layout, binding, n = robot.layout, robot.binding, len(points)
    windows = windows.take(np.tile(np.arange(len(windows)), n))
    rows = len(windows) // n
    physical = np.repeat(robot.parameters.to_physical(points[:, :-1]), rows, axis=0)
    share = np.repeat(points[:, -1], rows)
    sims = batch.Batch(robot.model, len(windows), threads)
    sims.bind("qpos")[:], sims.bind("qvel")[:] = windows.qpos0, windows.qvel0
    control, force, sensors = sims.bind("ctrl"), sims.bind("qfrc_actuator"), sims.bind("sensordata")
    friction = sims.expand("dof_frictionloss")
    changed = np.append(True, (np.diff(windows.context, axis=1) != 0).any(axis=(0, 2)))
    predicted, base = np.empty((len(windows), layout.steps + 1, len(layout.channels))), friction[:, 0].copy()
    for step in range(layout.steps + 1):
        if changed[step]:
            for cells in binding.cells:
                field = sims.expand(cells.field).reshape(len(windows), -1)
                field[:, cells.flat] = binding.values(cells, physical, windows.context[:, step])
            base = friction[:, 0].copy()
        friction[:, 0] = base + share * np.abs(force[:, 0])
        control[:] = windows.control[:, step]
        sims.step()
        predicted[:, step] = sensors[:, layout.sensor]
    return predicted[:, :: layout.substeps].reshape(n, rows, layout.knots + 1, -1)


def fit_load_friction(robot: Robot, windows: Windows, starts: Array, threads: int) -> LoadFrictionFit:
    """Best of bounded `least_squares` from each start (S, P), by its own cost; the share starts at 0.3."""
    space, used = robot.parameters, 0

    def replay(points: Array) -> Array:
        nonlocal used
        used += len(points) * len(windows)
        return with_load_friction(robot, windows, points, threads)

    def residual(x: Array) -> Array:
        gap = (windows.measured - replay(x[None])[0])[:, 1:] / robot.layout.noise
        return np.asarray(np.nan_to_num(gap).ravel())

    def jacobian(x: Array) -> Array:
        predicted = replay(np.concatenate([x[None], x + STEP * np.eye(len(x))]))
        slope = -(predicted[1:] - predicted[:1])[:, :, 1:] / (STEP * robot.layout.noise)
        return np.asarray(slope.reshape(len(x), -1).T)

    lower, upper = np.append(space.z_min, 0.0), np.append(space.z_max, 1.0)
    fits = []
    for start in starts:
        inside = np.clip(np.append(start, 0.3), lower + 1e-3, upper - 1e-3)
        fits.append(least_squares(residual, inside, jacobian, (lower, upper), x_scale="jac", max_nfev=40))
    best = min(fits, key=lambda fit: float(fit.cost))
    return LoadFrictionFit(best.x, 2.0 * float(best.cost), used)
