"""Replay: MuJoCo from a window's initial state, under its commands, with given parameter values."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import mujoco
import numpy as np
from mujoco import batch
from numpy.typing import NDArray

from gapd.measured.windows import Windows
from gapd.model.robot import Robot

Array = NDArray[np.float64]

# Rollouts in one call of the batch: bounds memory (about 60 MB for a 7-joint arm), no effect on results.
CHUNK = 512
_RECORD = ("qpos", "qvel", "sensordata", "actuator_force")


@dataclass(frozen=True)
class Rollouts:
    """What MuJoCo predicts for n windows. A failed row's prediction is NaN: a replay that diverged never looks good."""

    predicted: Array  # (n, K+1, C) channel units
    features: Array  # (n, K+1, F): qpos, qvel, command, actuator force at the knots
    failed: NDArray[np.bool_]  # (n,)


@dataclass(frozen=True)
class Unmodelled:
    """What no parameter writes, in n windows: the hypothesis of a structure test. None is nothing of a kind."""

    force: Array | None = None  # (n, N+1, nv) added at the joints in each step, N·m or N
    command: Array | None = None  # (n, N+1, nu) added to the commands in each step
    rotation: Array | None = None  # (nbody, 3) rotation vectors of body frames, in those frames, rad

    def __add__(self, other: Unmodelled) -> Unmodelled:
        """Both at once. Rotations add up as vectors: they are small."""
        return Unmodelled(
            _sum(self.force, other.force), _sum(self.command, other.command), _sum(self.rotation, other.rotation)
        )

    def __rmul__(self, size: float) -> Unmodelled:
        """So much of it."""
        force, command, rotation = (None if a is None else size * a for a in (self.force, self.command, self.rotation))
        return Unmodelled(force, command, rotation)

    def take(self, rows: slice | NDArray[np.intp]) -> Unmodelled:
        """The same in some of the windows."""
        force, command = (None if a is None else a[rows] for a in (self.force, self.command))
        return Unmodelled(force, command, self.rotation)


def _sum(a: Array | None, b: Array | None) -> Array | None:
    if a is None or b is None:
        return b if a is None else a
    return np.asarray(a + b)


NOTHING = Unmodelled()


class Replay:
    """Replays windows of one robot. `rollouts` counts every window replayed since it was made."""

    def __init__(self, robot: Robot, threads: int = 1) -> None:
        """Keep the model; batches are made once per size and reused."""
        self.robot = robot
        self.rollouts = 0
        self._threads = threads
        self._batches: dict[tuple[int, bool], batch.Batch] = {}
        data = mujoco.MjData(robot.model)
        mujoco.mj_resetData(robot.model, data)
        self._rest = np.empty(mujoco.mj_stateSize(robot.model, mujoco.mjtState.mjSTATE_INTEGRATION))
        mujoco.mj_getState(robot.model, data, self._rest, mujoco.mjtState.mjSTATE_INTEGRATION)
        # MuJoCo would print each divergence to stderr and append to a file; failed rows say it here.
        mujoco.set_mju_user_warning(_quiet)

    def run(
        self,
        windows: Windows,
        physical: Array,
        qpos0: Array | None = None,
        qvel0: Array | None = None,
        unmodelled: Unmodelled = NOTHING,
    ) -> Rollouts:
        """Replay each window with physical (P,) or (n, P), from its measured or the given initial state (n, nv).

        `unmodelled` acts besides, in this run only.
        """
        n = len(windows)
        physical = np.broadcast_to(physical, (n, len(self.robot.parameters)))
        qpos0 = windows.qpos0 if qpos0 is None else qpos0
        qvel0 = windows.qvel0 if qvel0 is None else qvel0
        parts = []
        for start in range(0, n, CHUNK):
            rows = slice(start, min(start + CHUNK, n))
            beside = unmodelled.take(rows)
            parts.append(self._chunk(windows.take(rows), physical[rows], qpos0[rows], qvel0[rows], beside))
        self.rollouts += n
        return Rollouts(
            np.concatenate([p.predicted for p in parts]),
            np.concatenate([p.features for p in parts]),
            np.concatenate([p.failed for p in parts]),
        )

    def _chunk(self, windows: Windows, physical: Array, qpos0: Array, qvel0: Array, unmodelled: Unmodelled) -> Rollouts:
        n, layout = len(windows), self.robot.layout
        sims = self._batch(n, unmodelled.rotation is not None)
        sims.state[:] = self._rest
        sims.warning[:] = 0
        sims.bind("qpos")[:] = qpos0
        sims.bind("qvel")[:] = qvel0
        self._remember(sims, windows.control)
        control, spec = windows.control, mujoco.mjtState.mjSTATE_CTRL.value
        if unmodelled.command is not None:
            control = control + unmodelled.command
        if unmodelled.force is not None:
            control = np.concatenate([control, unmodelled.force], axis=2)
            spec |= mujoco.mjtState.mjSTATE_QFRC_APPLIED.value
        pieces: list[dict[batch.RecordItem, NDArray[np.float64]]] = []
        for first, last in _constant_context(windows.context, self.robot.binding.context_used):
            if unmodelled.rotation is not None and first == 0:
                sims.expand("body_quat")[:] = self.robot.model.body_quat  # an earlier run turned others
            self._write(sims, physical, windows.context[:, first], first > 0)
            if unmodelled.rotation is not None and first == 0:
                _rotate(sims, unmodelled.rotation)
            pieces.append(sims.rollout(last - first, control[:, first:last], spec, _RECORD))
        one = len(pieces) == 1  # as nearly always: nothing is copied
        rows = pieces[0] if one else {name: np.concatenate([p[name] for p in pieces], axis=1) for name in _RECORD}
        knots = np.arange(layout.knots + 1) * layout.substeps
        # Row k of qpos is the state after step k, row k of sensordata the measurement before it.
        before = np.maximum(knots - 1, 0)
        position, velocity = rows["qpos"][:, before], rows["qvel"][:, before]
        position[:, 0], velocity[:, 0] = qpos0, qvel0
        features = [position, velocity, windows.control[:, knots], rows["actuator_force"][:, knots]]
        predicted = rows["sensordata"][:, knots][:, :, layout.sensor]
        failed = sims.warning[:, :, 1].sum(axis=1) > 0
        failed |= ~np.isfinite(predicted).all(axis=(1, 2))
        predicted[failed] = np.nan
        return Rollouts(predicted, np.concatenate(features, axis=2), failed)

    def _batch(self, n: int, rotated: bool) -> batch.Batch:
        if (n, rotated) not in self._batches:
            if len(self._batches) >= 4:  # bounds memory; sizes repeat within a fit
                self._batches.clear()
            self._batches[n, rotated] = batch.Batch(self.robot.model, n, self._threads)
        return self._batches[n, rotated]

    def _write(self, sims: batch.Batch, physical: Array, context: Array, running: bool) -> None:
        """Write all cells; while running, only those that the context changes."""
        cells = [c for c in self.robot.binding.cells if not running or any(c.context)]
        for group in cells:
            field = sims.expand(group.field).reshape(sims.nsim, -1)
            field[:, group.flat] = self.robot.binding.values(group, physical, context)
        if any(group.needs_set_const for group in cells):
            sims.set_const()

    def _remember(self, sims: batch.Batch, control: Array) -> None:
        """Fill the histories of delayed actuators, which act on commands from before the window: (n, N+1, nu).

        What came before is the window's own beginning mirrored at its first command, which keeps rate and value. The
        zeros of a reset would be a kick at the start of each window.
        """
        model = self.robot.model
        for actuator in np.flatnonzero(model.actuator_history[:, 0]):
            samples = int(model.actuator_history[actuator, 0])
            # Two numbers, then the times of the samples in ascending order, then their values.
            first = int(model.actuator_historyadr[actuator]) + 2 + samples
            back = np.minimum(np.arange(samples, 0, -1), control.shape[1] - 1)
            values = 2.0 * control[:, :1, actuator] - control[:, back, actuator]
            sims.bind("history")[:, first : first + samples] = values


def _rotate(sims: batch.Batch, rotation: Array) -> None:
    """Rotate body frames by vectors (nbody, 3), after the parameters are written."""
    quat, turn, turned = sims.expand("body_quat"), np.empty(4), np.empty(4)
    for body in np.flatnonzero(rotation.any(axis=1)):
        angle = float(np.linalg.norm(rotation[body]))
        mujoco.mju_axisAngle2Quat(turn, rotation[body] / angle, angle)
        for row in quat[:, body]:
            mujoco.mju_mulQuat(turned, row, turn)
            row[:] = turned
    sims.set_const()


def _quiet(message: str) -> None:
    """Take MuJoCo's warning: the batch counts it per simulation."""


def _constant_context(context: Array, used: tuple[int, ...]) -> list[tuple[int, int]]:
    """Step ranges [first, last) within which no context value that a parameter uses changes in any window."""
    steps = context.shape[1]
    if not used:
        return [(0, steps)]
    changed = np.flatnonzero((np.diff(context[:, :, list(used)], axis=1) != 0).any(axis=(0, 2))) + 1
    edges = [0, *changed.tolist(), steps]
    return list(itertools.pairwise(edges))


def squared_gap(g: Array) -> Array:
    """Mean squared gap (n, C) from gaps (n, K, C); NaN where nothing was measured or predicted."""
    present = np.isfinite(g)
    mean = np.sum(np.where(present, g, 0.0) ** 2, axis=1) / np.maximum(present.sum(axis=1), 1)
    return np.asarray(np.where(present.any(axis=1), mean, np.nan))


def gap(windows: Windows, rollouts: Rollouts, noise: Array) -> Array:
    """Gap (n, K, C) at the knots after the initial one, in units of `noise` (C,); NaN where nothing was measured."""
    return np.asarray((windows.measured[:, 1:] - rollouts.predicted[:, 1:]) / noise)
