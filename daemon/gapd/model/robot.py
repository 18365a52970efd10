"""One robot as gapd sees it: configuration, MJCF, parameters, and where each signal sits in MuJoCo's arrays."""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np
from numpy.typing import NDArray

from gapd.config import Config, load_config
from gapd.errors import ConfigError, nearest
from gapd.model.binding import Binding
from gapd.model.mjcf import load_model
from gapd.model.parameters import ParameterSet

Index = NDArray[np.intp]

# Contract of Layout.position / velocity: this joint has no such channel.
ABSENT = -1

# Types of sensors that measure a joint.
_POSITION = (int(mujoco.mjtSensor.mjSENS_JOINTPOS),)
_VELOCITY = (int(mujoco.mjtSensor.mjSENS_JOINTVEL),)
_EFFORT = (int(mujoco.mjtSensor.mjSENS_JOINTACTFRC), int(mujoco.mjtSensor.mjSENS_ACTUATORFRC))


@dataclass(frozen=True)
class Layout:
    """Positions of signals: C channels, nv joint coordinates, nu actuators, K knots of S steps."""

    channels: tuple[str, ...]
    noise: NDArray[np.float64]  # (C,) standard deviation, channel units
    sensor: Index  # (C,) address in sensordata
    position: Index  # (nv,) channel that measures the joint's position, or ABSENT
    velocity: Index  # (nv,) channel that measures the joint's velocity, or ABSENT
    effort: Index  # (nv,) channel that measures the joint's effort, or ABSENT
    joint_of: Index  # (C,) joint coordinate that the channel belongs to, or ABSENT
    actuator_joint: Index  # (nu,) joint coordinate that the actuator drives, or ABSENT: tendons, sites
    actuator_gear: NDArray[np.float64]  # (nu,) force at the joint per actuator force
    slides: NDArray[np.bool_]  # (nv,) whether the joint is a slide: m and N, else rad and N·m
    joints: tuple[str, ...]
    actuators: tuple[str, ...]
    knots: int
    substeps: int
    knot_s: float
    step_s: float

    @property
    def steps(self) -> int:
        """N, simulation steps in a window."""
        return self.knots * self.substeps


@dataclass(frozen=True)
class Robot:
    """Configuration, compiled model, parameters and layout of one robot."""

    config: Config
    model: mujoco.MjModel
    parameters: ParameterSet
    binding: Binding
    layout: Layout

    @property
    def context_nominal(self) -> NDArray[np.float64]:
        """Context values (X,) where no frame says otherwise."""
        return np.array([c.nominal for c in self.config.context], float)

    def holding(self, names: Collection[str]) -> Robot:
        """The same robot with the parameters of these names frozen at their nominal."""
        return assemble(self.config, self.model, self.parameters.holding(names)) if names else self

    @property
    def uncommanded(self) -> tuple[str, ...]:
        """Actuators that a command moves, but that no column of recordings gives one."""
        if not self.config.log.channels:
            return ()
        moved = self.model.actuator_gainprm.any(axis=1)
        for cells in self.binding.cells:
            if cells.field == "actuator_gainprm":
                moved[cells.flat // self.model.actuator_gainprm.shape[1]] = True
        return tuple(
            a for a, m in zip(self.layout.actuators, moved, strict=True) if m and a not in self.config.log.commands
        )


def open_robot(path: Path) -> Robot:
    """Read robot.toml and what it names. ConfigError says what does not fit."""
    config = load_config(path)
    model = load_model(config.path(config.model))
    parameters = ParameterSet.from_toml(config.path(config.parameters))
    return assemble(config, model, parameters)


def assemble(config: Config, model: mujoco.MjModel, parameters: ParameterSet) -> Robot:
    """Resolve configuration and parameters against the model."""
    binding = Binding(model, parameters, config.context_names)
    layout = _layout(config, model)
    _require_mapping(config, layout)
    robot = Robot(config, model, parameters, binding, layout)
    _require_bounds(robot)
    return robot


def _require_bounds(robot: Robot) -> None:
    """ConfigError where MuJoCo does not take a model with the parameters at their bounds."""
    for bound in ("min", "max"):
        values = getattr(robot.parameters, bound)
        try:
            robot.binding.write(copy.copy(robot.model), values, robot.context_nominal)
        except (mujoco.FatalError, mujoco.UnexpectedError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"parameters at their {bound}: {reason}; correct bounds, targets or the MJCF") from None


def _require_mapping(config: Config, layout: Layout) -> None:
    """ConfigError where [log] names what is not there, or leaves out what every replay needs."""
    log = config.log
    for table, names, known, kind in (
        ("channels", log.channels, config.channel_names, "[[channel]]"),
        ("commands", log.commands, layout.actuators, "actuator of the model"),
        ("context", log.context, config.context_names, "[[context]]"),
        ("per_file", [n for rule in log.per_file for n in rule.context], config.context_names, "[[context]]"),
    ):
        for name in names:
            if name not in known:
                raise ConfigError(f"log.{table} {name!r}: no such {kind}{nearest(name, known)}")
    for joint, channel in enumerate(layout.position):
        name = layout.channels[channel]
        if log.channels and name not in log.channels:
            raise ConfigError(
                f"log.channels has no column for {name!r}, the position of joint {layout.joints[joint]}; name it"
            )


def _layout(config: Config, model: mujoco.MjModel) -> Layout:
    timing = config.timing
    sensors = _sensors(config, model)
    joints = tuple(mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_JOINT, j) or str(j) for j in range(model.njnt))
    joint_of = np.array([_joint_of(model, s) for s in sensors], np.intp)
    types = model.sensor_type[sensors]
    position, velocity, effort = (
        _by_joint(model, joint_of, np.isin(types, kinds)) for kinds in (_POSITION, _VELOCITY, _EFFORT)
    )
    for joint, channel in enumerate(position):
        own = (joint_of == joint) & np.isin(types, _POSITION)
        if channel == ABSENT:
            raise ConfigError(f"joint {joints[joint]} has no position channel; add a [[channel]] on a jointpos sensor")
        if own.sum() > 1:
            both = " and ".join(np.array(config.channel_names)[own])
            raise ConfigError(f"channels {both}: all are the position of joint {joints[joint]}; keep one")
    return Layout(
        channels=config.channel_names,
        noise=np.array([c.noise for c in config.channel]),
        sensor=np.array(model.sensor_adr[sensors], np.intp),
        position=position,
        velocity=velocity,
        effort=effort,
        joint_of=joint_of,
        actuator_joint=np.array([_driven(model, a) for a in range(model.nu)], np.intp),
        actuator_gear=model.actuator_gear[:, 0].copy(),
        slides=np.asarray(model.jnt_type == int(mujoco.mjtJoint.mjJNT_SLIDE)),
        joints=joints,
        actuators=tuple(mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_ACTUATOR, a) or str(a) for a in range(model.nu)),
        knots=timing.knots,
        substeps=_substeps(timing.knot_s, float(model.opt.timestep)),
        knot_s=timing.knot_s,
        step_s=float(model.opt.timestep),
    )


def _substeps(knot_s: float, step_s: float) -> int:
    substeps = round(knot_s / step_s)
    if substeps < 1 or abs(substeps * step_s - knot_s) > 1e-9:
        wanted = max(substeps, 1) * step_s
        raise ConfigError(f"timing.knot_s = {knot_s}: not a multiple of the model's timestep {step_s}; use {wanted:g}")
    return substeps


def _by_joint(model: mujoco.MjModel, joint_of: Index, kind: NDArray[np.bool_]) -> Index:
    """Channel (nv,) of the given kind (C,) for each joint coordinate, or ABSENT."""
    found = np.full(model.nv, ABSENT, np.intp)
    for channel in np.flatnonzero(kind & (joint_of != ABSENT)):
        found[joint_of[channel]] = channel
    return found


def _sensors(config: Config, model: mujoco.MjModel) -> list[int]:
    """Sensor (C,) that predicts each channel, a different one for each."""
    channel_of: dict[int, str] = {}
    for channel in config.channel:
        sensor = _sensor(model, channel.name, channel.sensor_name)
        other = channel_of.setdefault(sensor, channel.name)
        if other != channel.name:
            raise ConfigError(f"channels {other} and {channel.name}: both are sensor {channel.sensor_name}; keep one")
    return list(channel_of)


def _sensor(model: mujoco.MjModel, channel: str, name: str) -> int:
    number = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SENSOR, name)
    if number < 0:
        known = [mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_SENSOR, i) for i in range(model.nsensor)]
        raise ConfigError(
            f"channel {channel}: sensor '{name}' is not in the model{nearest(name, [k for k in known if k])}"
        )
    if model.sensor_dim[number] != 1:
        size = int(model.sensor_dim[number])
        raise ConfigError(f"channel {channel}: sensor '{name}' has {size} values; a channel is scalar")
    return int(number)


def _joint_of(model: mujoco.MjModel, sensor: int) -> int:
    kind, owner = int(model.sensor_objtype[sensor]), int(model.sensor_objid[sensor])
    if kind == mujoco.mjtObj.mjOBJ_JOINT:
        return int(model.jnt_dofadr[owner])
    return _driven(model, owner) if kind == mujoco.mjtObj.mjOBJ_ACTUATOR else ABSENT


def _driven(model: mujoco.MjModel, actuator: int) -> int:
    """Joint coordinate that the actuator drives, or ABSENT where it acts on something else."""
    kinds = (int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT))
    on_joint = int(model.actuator_trntype[actuator]) in kinds
    return int(model.jnt_dofadr[model.actuator_trnid[actuator, 0]]) if on_joint else ABSENT
