"""What the tasks share: an arm that is sent joint velocities at 20 Hz, objects, and a camera that sees them."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import mujoco
import numpy as np
from mujoco import batch
from numpy.typing import NDArray

from gapd.model.parameters import ParameterSet
from gaptrain.tasks.kinematics import Arm
from gaptrain.tasks.simulator import Flags, Rollouts
from gaptrain.tasks.task_parameters import TaskParameters

Array = NDArray[np.float64]

JOINTS = 7
CONTROL_S = 0.05  # 20 Hz
OWN = (
    "velocity_lag", "camera_x", "camera_y", "camera_z",
    "action_gain_x", "action_gain_y", "action_gain_z", "action_gain_yaw",
)  # fmt: skip
# Free bodies settle in the nominal model before the first rollout; soft contacts would let them sink during it.
SETTLE_S = 2.0
# Half turn about x: the tool, whose z axis points out of the flange, points down.
DOWN = np.diag([1.0, -1.0, -1.0])


@dataclass(frozen=True)
class Plan:
    """What an action asks of the arm at nominal: where it starts, and its joint velocities."""

    start: Array  # (n, 7) rad
    velocity: Array  # (n, T, 7) rad/s


class ArmTask(abc.ABC):
    """A task with one arm. See `Simulator` for what methods use; a task says how actions move the arm and what counts.

    The velocity lag d is the task's own parameter: the arm obeys v <- d v + (1 - d) command, once per control step.
    What the paper calls velocity delay has the same range; its exact form is our reading.
    """

    name: ClassVar[str]
    steps: ClassVar[int]
    action_low: Array
    action_high: Array
    channels: tuple[str, ...]
    objects: tuple[tuple[int, ...], ...]
    real: ClassVar[dict[str, float]]  # values of the robot that differ from nominal, hidden from methods

    def __init__(self, folder: Path, threads: int = 2, space: ParameterSet | None = None) -> None:
        """Open models/NAME with the parameters given, else those of parameters.toml; ConfigError if they do not fit."""
        mujoco.set_mju_user_warning(_quiet)
        self.model = mujoco.MjModel.from_xml_path(str(folder / "model.xml"))
        self.parameters = TaskParameters(self.model, space or ParameterSet.from_toml(folder / "parameters.toml"), OWN)
        self.space = self.parameters.space
        self.arm = Arm(self.model)
        self._threads = threads
        self._substeps = round(CONTROL_S / self.model.opt.timestep)
        self._rest = self._settled()

    @abc.abstractmethod
    def plan(self, actions: Array, physical: Array) -> Plan:
        """Joint motion for actions (n, A); physical (n, P) for the task's own parameters only."""

    @abc.abstractmethod
    def place(self, qpos: Array, actions: Array) -> None:
        """Put objects where they start, into qpos (n, nq)."""

    @abc.abstractmethod
    def look(self, qpos: Array) -> Array:
        """Channels (n, C) at qpos (n, nq), before the camera's shift."""

    @abc.abstractmethod
    def judge(self, seen: Array) -> tuple[Flags, Array]:
        """Success and reward (n,) of unshifted trajectories (n, T, C)."""

    def draw(self, rng: np.random.Generator, n: int) -> Array:
        """See `Simulator.draw`: uniform."""
        return np.asarray(rng.uniform(self.action_low, self.action_high, (n, len(self.action_low))))

    def real_values(self) -> Array:
        """Parameters (P,) of the robot."""
        return self.space.vector(self.real)

    def rollout(self, physical: Array, actions: Array) -> Rollouts:
        """See `Simulator.rollout`."""
        plan = self.plan(actions, physical)
        sims = self._start(physical, actions, plan.start)
        lag = self.parameters.own("velocity_lag", physical, 0.0)[:, None]
        qpos, ctrl = sims.bind("qpos"), sims.bind("ctrl")
        velocity = np.zeros_like(plan.start)
        seen = np.empty((len(actions), self.steps, len(self.channels)))
        for step in range(self.steps):
            velocity = lag * velocity + (1 - lag) * plan.velocity[:, step]
            ctrl[:] = velocity
            sims.step(nstep=self._substeps)
            seen[:, step] = self.look(qpos)
        failed = (sims.warning[:, :, 1].sum(axis=1) > 0) | ~np.isfinite(seen).all(axis=(1, 2))
        seen[failed] = np.nan
        success, reward = self.judge(seen)
        return Rollouts(seen + self._camera(physical)[:, None], success & ~failed, reward, failed)

    def _camera(self, physical: Array) -> Array:
        """Shift (n, C) of what is seen: of positions only."""
        shift = np.zeros((len(physical), len(self.channels)))
        for column, channel in enumerate(self.channels):
            axis = channel.rsplit("/", 1)[1]
            if axis in "xyz":
                shift[:, column] = self.parameters.own(f"camera_{axis}", physical, 0.0)
        return shift

    def _start(self, physical: Array, actions: Array, joints: Array) -> batch.Batch:
        sims = batch.Batch(self.model, len(physical), self._threads)
        self.parameters.write(sims, physical)
        sims.state[:] = self._state()
        qpos = sims.bind("qpos")
        qpos[:, JOINTS:] = self._rest[JOINTS:]
        qpos[:, :JOINTS] = sims.bind("act")[:] = joints
        self.place(qpos, actions)
        return sims

    def _state(self) -> Array:
        data, spec = mujoco.MjData(self.model), mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.empty(mujoco.mj_stateSize(self.model, spec))
        mujoco.mj_getState(self.model, data, state, spec)
        return state

    def _settled(self) -> Array:
        """Coordinates (nq,) with objects as in the MJCF, but at the height where they come to rest."""
        data, rest = mujoco.MjData(self.model), np.array(self.model.qpos0, float)
        for _ in range(round(SETTLE_S / self.model.opt.timestep)):
            mujoco.mj_step(self.model, data)
        for joint in np.flatnonzero(self.model.jnt_type == int(mujoco.mjtJoint.mjJNT_FREE)):
            height = self.model.jnt_qposadr[joint] + 2
            rest[height] = data.qpos[height]
        return rest

    def cartesian_plan(self, position: Array, start: Array, rotation: Array | None) -> Plan:
        """Plan along positions (n, T + 1, 3) of the tool in m; start (n, 7) is at the first of them."""
        q, velocity = start, np.empty((len(start), self.steps, JOINTS))
        for step in range(self.steps):
            following = self.arm.step(q, position[:, step + 1], rotation)
            velocity[:, step] = (following - q) / CONTROL_S
            q = following
        return Plan(start, velocity)


def _quiet(message: str) -> None:
    """Take MuJoCo's warning, which it would print and append to a file: Rollouts.failed tells."""
