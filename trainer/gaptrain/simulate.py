"""Stand-in robots and training motions: batched simulation with hidden parameters and, if asked, hidden structure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mujoco
import numpy as np
from mujoco import batch
from numpy.typing import NDArray

from gapd.errors import ConfigError, InputError
from gapd.measured.windows import Frames
from gapd.model.robot import ABSENT, Index, Robot
from gaptrain.settings import Excitation

Array = NDArray[np.float64]

# Time a stand-in moves before its recording starts, so that it begins on the trajectory and not at rest.
WARM_UP_S = 0.3
# Share of motions made of moves with pauses; the others are sums of sines.
PAUSED_SHARE = 0.3
SINES = 4


@dataclass(frozen=True)
class Motion:
    """n simulated motions of T steps: state before each step, the command in it, and what the sensors then read."""

    qpos: Array  # (n, T, nv)
    qvel: Array  # (n, T, nv)
    command: Array  # (n, T, nu)
    measured: Array  # (n, T, C) without noise
    failed: NDArray[np.bool_]  # (n,)


# Is bound once to simulations (n) with all parameters written, before their first step; what it returns is called
# before each step and changes what the parameters cannot express.
Structure = Callable[[batch.Batch], Callable[[], None]]


def driven_joints(robot: Robot, excitation: Excitation) -> Index:
    """Joint coordinates (homes,) that the first actuators drive; ConfigError where there is none to drive."""
    homes, layout = len(excitation.home), robot.layout
    if homes > len(layout.actuators):
        raise ConfigError(
            f"train.toml: excitation.home has {homes} values: at most {len(layout.actuators)}, the model's actuators"
        )
    joints = layout.actuator_joint[:homes]
    if (joints == ABSENT).any():
        number = int(np.argmax(joints == ABSENT))
        raise ConfigError(
            f"train.toml: excitation.home[{number}] = {excitation.home[number]}: actuator {layout.actuators[number]} "
            "is not on a joint; list actuators on joints first in the MJCF and give homes to those only"
        )
    return joints


def references(excitation: Excitation, rng: np.random.Generator, n: int, steps: int, step_s: float) -> Array:
    """Random reference motions (n, steps, nu) around home, within the amplitude."""
    sines = _sines(excitation, rng, n, steps, step_s)
    paused = _moves_with_pauses(rng, n, steps, step_s, len(excitation.home))
    chosen = rng.random(n) < PAUSED_SHARE
    shape = np.where(chosen[:, None, None], paused, sines)
    return np.asarray(np.array(excitation.home) + np.array(excitation.amplitude) * shape)


def _sines(excitation: Excitation, rng: np.random.Generator, n: int, steps: int, step_s: float) -> Array:
    time = np.arange(steps) * step_s
    size = (n, SINES, len(excitation.home))
    hz = np.exp(rng.uniform(np.log(excitation.low_hz), np.log(excitation.high_hz), size))
    share = rng.dirichlet(np.ones(SINES), (n, len(excitation.home))).swapaxes(1, 2)
    phase = rng.uniform(0, 2 * np.pi, size)
    angle = 2 * np.pi * hz[:, :, None] * time[:, None] + phase[:, :, None]
    return np.asarray((share[:, :, None] * np.sin(angle)).sum(axis=1))


def _moves_with_pauses(rng: np.random.Generator, n: int, steps: int, step_s: float, nu: int) -> Array:
    """Minimum-jerk moves between random targets within +-1, with a pause after each."""
    result = np.empty((n, steps, nu))
    for row in range(n):
        here, at = rng.uniform(-1, 1, nu), 0
        while at < steps:
            move, pause = (max(1, int(rng.uniform(*span) / step_s)) for span in ((0.3, 1.2), (0.05, 0.4)))
            target = rng.uniform(-1, 1, nu)
            s = np.linspace(0, 1, move)[:, None]
            path = here + (target - here) * (10 * s**3 - 15 * s**4 + 6 * s**5)
            piece = np.concatenate([path, np.repeat(target[None], pause, axis=0)])[: steps - at]
            result[row, at : at + len(piece)] = piece
            here, at = target, at + len(piece)
    return result


def simulate(
    robot: Robot,
    excitation: Excitation,
    physical: Array,
    reference: Array,
    context: Array,
    structure: Structure | None = None,
    threads: int = 2,
) -> Motion:
    """Simulate n robots with parameters (n, P) and context (n, X) along reference motions (n, T, nu)."""
    n, steps, homes = reference.shape
    joints = driven_joints(robot, excitation)
    sims = _batch(robot, physical, context, threads)
    qpos, qvel, ctrl, sensors = (sims.bind(name) for name in ("qpos", "qvel", "ctrl", "sensordata"))
    qpos[:, joints] = reference[:, 0]
    apply = structure(sims) if structure is not None else _nothing
    nv, nu, c = robot.model.nv, robot.model.nu, len(robot.layout.channels)
    out = Motion(
        np.empty((n, steps, nv)), np.empty((n, steps, nv)), np.empty((n, steps, nu)), np.empty((n, steps, c)),
        np.zeros(n, bool),
    )  # fmt: skip
    for step in range(steps):
        out.qpos[:, step], out.qvel[:, step] = qpos, qvel
        ctrl[:] = 0.0
        ctrl[:, :homes] = _command(excitation, reference, step, qpos[:, joints], qvel[:, joints], robot)
        out.command[:, step] = ctrl
        apply()
        sims.step()
        out.measured[:, step] = sensors[:, robot.layout.sensor]
    out.failed[:] = (sims.warning[:, :, 1].sum(axis=1) > 0) | ~np.isfinite(out.measured).all(axis=(1, 2))
    return out


def _batch(robot: Robot, physical: Array, context: Array, threads: int) -> batch.Batch:
    """Simulations at rest with parameters (n, P) and context (n, X) written."""
    mujoco.set_mju_user_warning(_quiet)
    n = len(physical)
    sims = batch.Batch(robot.model, n, threads)
    for cells in robot.binding.cells:
        field = sims.expand(cells.field).reshape(n, -1)
        field[:, cells.flat] = robot.binding.values(cells, physical, context)
    if robot.binding.needs_set_const:
        sims.set_const()
    data = mujoco.MjData(robot.model)
    rest = np.empty(mujoco.mj_stateSize(robot.model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(robot.model, data, rest, mujoco.mjtState.mjSTATE_INTEGRATION)
    sims.state[:] = rest
    return sims


def _nothing() -> None:
    """Change nothing: a robot without hidden structure."""


def _quiet(message: str) -> None:
    """Take MuJoCo's warning, which it would print and append to a file: Motion.failed tells."""


def _command(excitation: Excitation, reference: Array, step: int, qpos: Array, qvel: Array, robot: Robot) -> Array:
    if excitation.kind == "position":
        return np.asarray(reference[:, step])
    following = reference[:, min(step + 1, reference.shape[1] - 1)]
    wanted = (following - reference[:, step]) / robot.layout.step_s
    return np.asarray(excitation.gain * (reference[:, step] - qpos) + excitation.damping * (wanted - qvel))


@dataclass(frozen=True)
class Recording:
    """What a stand-in robot's sensors said, and the truth behind it: state (T, nv) and noise-free channels (T, C)."""

    frames: Frames
    qpos: Array
    qvel: Array
    clean: Array


def record(
    robot: Robot,
    excitation: Excitation,
    physical: Array,
    seconds: float,
    seed: int,
    structure: Structure | None = None,
    noise: Array | None = None,
) -> Recording:
    """A recording of a stand-in robot with hidden parameters (P,): a frame per step, channel noise (C,) added."""
    rng = np.random.default_rng(seed)
    step_s = robot.layout.step_s
    warm_up, steps = round(WARM_UP_S / step_s), round(seconds / step_s)
    reference = references(excitation, rng, 1, warm_up + steps + 1, step_s)
    known = robot.context_nominal
    motion = simulate(robot, excitation, physical[None], reference, known[None], structure, threads=1)
    if motion.failed[0]:
        raise InputError(f"{robot.config.robot} simulated, seed {seed}: the motion diverges; use other parameters")
    clean = motion.measured[0, warm_up:]
    sd = robot.layout.noise if noise is None else noise
    frames = Frames(
        timestamp=np.arange(len(clean), dtype=float) * step_s,
        measured=clean + rng.normal(size=clean.shape) * sd,
        command=motion.command[0, warm_up:],
        context=np.repeat(known[None], len(clean), axis=0),
        name=f"{robot.config.robot} simulated, seed {seed}",
    )
    return Recording(frames, motion.qpos[0, warm_up:], motion.qvel[0, warm_up:], clean)
