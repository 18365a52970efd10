"""The moving part of a stand-in robot: one simulation with hidden parameters and soft stops on an endless motion."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from gapd.errors import InputError
from gapd.model.robot import Robot
from gaptrain.settings import Excitation
from gaptrain.simulate import SINES, WARM_UP_S, driven_joints

Array = NDArray[np.float64]

# Share of a step by which a change may be given late and still act in that step: times are sums of rounded steps.
LATE_SHARE = 1e-6


@dataclass(frozen=True)
class Motion:
    """A reference that never ends, repeats or rests: a sum of sines for each of the first actuators (homes,)."""

    home: Array  # (homes,) rad or m
    size: Array  # (SINES, homes) rad or m
    rate: Array  # (SINES, homes) rad/s
    phase: Array  # (SINES, homes) rad

    @classmethod
    def draw(cls, excitation: Excitation, rng: np.random.Generator) -> Motion:
        """Draw a motion within the amplitude. Each joint gets slow and fast sines: all its parameters must show."""
        homes = len(excitation.home)
        low, high = np.log(excitation.low_hz), np.log(excitation.high_hz)
        place = (np.arange(SINES)[:, None] + rng.random((SINES, homes))) / SINES
        share = rng.uniform(0.5, 1.0, (SINES, homes))
        return cls(
            home=np.array(excitation.home),
            size=np.array(excitation.amplitude) * share / share.sum(axis=0),
            rate=2 * np.pi * np.exp(low + (high - low) * place),
            phase=rng.uniform(0, 2 * np.pi, (SINES, homes)),
        )

    def at(self, time_s: float) -> tuple[Array, Array]:
        """Reference (homes,) and its velocity (homes,) at a time."""
        angle = self.rate * time_s + self.phase
        reference = self.home + (self.size * np.sin(angle)).sum(axis=0)
        return np.asarray(reference), np.asarray((self.size * self.rate * np.cos(angle)).sum(axis=0))


@dataclass(frozen=True)
class Stop:
    """A spring and damper that a joint runs into: contact that is not in the model. Beyond the stop it only pushes."""

    joint: str
    at_rad: float  # m on a slide, as below
    stiffness: float  # N·m/rad
    damping: float  # N·m·s/rad
    side: Literal["upper", "lower"] = "upper"

    @property
    def _sign(self) -> float:
        return 1.0 if self.side == "upper" else -1.0

    def depth(self, position: Array) -> Array:
        """How far positions (...) are beyond the stop, 0 where they are not."""
        return np.asarray(np.maximum(self._sign * (position - self.at_rad), 0.0))

    def force(self, position: float, velocity: float) -> float:
        """Force on the joint in N·m, or N on a slide."""
        depth = max(self._sign * (position - self.at_rad), 0.0)
        if not depth:
            return 0.0
        return -self._sign * max(self.stiffness * depth + self.damping * self._sign * velocity, 0.0)


@dataclass(frozen=True)
class Scene:
    """What is true of the robot from start_s on."""

    start_s: float
    physical: Array  # (P,) parameters, SI units
    stops: tuple[Stop, ...] = ()
    changed: tuple[str, ...] = ()  # parameters that are not what they were in the scene before


@dataclass(frozen=True)
class Setup:
    """A robot, how it is driven, and how many simulation steps lie between two frames."""

    robot: Robot
    excitation: Excitation
    motion: Motion
    substeps: int = 1

    @property
    def period_s(self) -> float:
        """Time from frame to frame, s."""
        return self.substeps * self.robot.layout.step_s


class Sample(NamedTuple):
    """The robot at an instant without noise: its state, the command that acts from there on, what sensors read."""

    time_s: float
    qpos: Array  # (nv,)
    load: Array  # (nv,) force of the actuators at the joints, N·m or N
    command: Array  # (nu,)
    measured: Array  # (C,)


class Plant:
    """A simulation that goes through scenes, a frame period with each sample."""

    def __init__(self, setup: Setup, scenes: Sequence[Scene], begin_s: float = 0.0) -> None:
        """Start on the motion a little before begin_s, so that the first sample is not that of a start from rest."""
        self._setup, self._scenes, self._begin_s = setup, list(scenes), begin_s
        self._model = copy.copy(setup.robot.model)
        self._data = mujoco.MjData(self._model)
        self._joints = driven_joints(setup.robot, setup.excitation)
        self._stops: list[tuple[int, Stop]] = []
        mujoco.set_mju_user_warning(_quiet)
        periods = round(WARM_UP_S / setup.period_s)
        self._step = -periods * setup.substeps
        self._data.qpos[self._joints], self._data.qvel[self._joints] = setup.motion.at(self._time_s)
        self._enter(self._scenes.pop(0))
        for _ in range(periods):
            self.sample()

    def sample(self) -> Sample:
        """The robot now; then one frame period is simulated. InputError if the simulation diverges."""
        time_s, qpos = self._time_s, self._data.qpos.copy()
        self._data.ctrl[: len(self._joints)] = self._command()
        command = self._data.ctrl.copy()
        self._advance()
        # A step computes sensors and forces for the state before it.
        measured = self._data.sensordata[self._setup.robot.layout.sensor]
        load = self._data.qfrc_actuator.copy()
        for _ in range(self._setup.substeps - 1):
            self._advance()
        if self._data.warning.number.any() or not np.isfinite(measured).all():
            raise InputError(
                f"the stand-in {self._setup.robot.config.robot} diverges at {time_s:.3f} s; use another seed, or "
                "smaller factors and stiffnesses in the scene"
            )
        return Sample(time_s, qpos, load, command, measured)

    @property
    def _time_s(self) -> float:
        return self._begin_s + self._step * self._setup.robot.layout.step_s

    def _command(self) -> Array:
        reference, velocity = self._setup.motion.at(self._time_s)
        law = self._setup.excitation
        if law.kind == "position":
            return reference
        error = reference - self._data.qpos[self._joints]
        return np.asarray(law.gain * error + law.damping * (velocity - self._data.qvel[self._joints]))

    def _advance(self) -> None:
        due_s = self._time_s + LATE_SHARE * self._setup.robot.layout.step_s
        while self._scenes and self._scenes[0].start_s <= due_s:
            self._enter(self._scenes.pop(0))
        if self._stops:
            self._data.qfrc_applied[:] = 0.0
            for dof, stop in self._stops:
                force = stop.force(float(self._data.qpos[dof]), float(self._data.qvel[dof]))
                self._data.qfrc_applied[dof] += force
        mujoco.mj_step(self._model, self._data)
        self._step += 1

    def _enter(self, scene: Scene) -> None:
        robot = self._setup.robot
        robot.binding.write(self._model, scene.physical, robot.context_nominal)
        self._stops = [(int(robot.model.joint(s.joint).dofadr[0]), s) for s in scene.stops]


def _quiet(message: str) -> None:
    """Take MuJoCo's warning, which it would print and append to a file: `sample` raises."""
