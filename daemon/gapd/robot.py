"""One robot as gapd sees it: configuration, MJCF, parameters, and where each signal sits in MuJoCo's arrays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np
from numpy.typing import NDArray

from gapd.config import Config, load_config
from gapd.errors import ConfigError, InputError, nearest
from gapd.parameters import Binding, ParameterSet

Index = NDArray[np.intp]

# Contract of Layout.position / velocity: this joint has no such channel.
ABSENT = -1


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

    @property
    def actuator_joint(self) -> Index:
        """Joint coordinate (nu,) that each actuator drives."""
        return np.asarray(self.model.jnt_dofadr[self.model.actuator_trnid[: self.model.nu, 0]], np.intp)


def open_robot(path: Path) -> Robot:
    """Read robot.toml and what it names. ConfigError or InputError say what does not fit."""
    config = load_config(path)
    model = load_model(config.path(config.model))
    parameters = ParameterSet.from_toml(config.path(config.parameters))
    return assemble(config, model, parameters)


def assemble(config: Config, model: mujoco.MjModel, parameters: ParameterSet) -> Robot:
    """Resolve configuration and parameters against the model."""
    binding = Binding(model, parameters, config.context_names)
    return Robot(config, model, parameters, binding, _layout(config, model))


def load_model(path: Path) -> mujoco.MjModel:
    """Compile an MJCF; InputError with MuJoCo's reason if it does not."""
    if not path.is_file():
        raise InputError(f"model {path}: no such file; correct `model` in robot.toml")
    try:
        return mujoco.MjModel.from_xml_path(str(path))
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"model {path}: does not compile: {reason}; mend the MJCF") from None


def _layout(config: Config, model: mujoco.MjModel) -> Layout:
    timing, step = config.timing, float(model.opt.timestep)
    substeps = round(timing.knot_s / step)
    if substeps < 1 or abs(substeps * step - timing.knot_s) > 1e-9:
        wanted = max(substeps, 1) * step
        raise ConfigError(
            f"timing.knot_s = {timing.knot_s}: not a multiple of the model's timestep {step}; use {wanted:g}"
        )
    _require_scalar_joints(model)
    sensors = [_sensor(model, c.name, c.sensor_name) for c in config.channel]
    kinds = [int(model.sensor_type[s]) for s in sensors]
    joint_of = np.array([_joint_of(model, s) for s in sensors], np.intp)
    found = {kind: np.full(model.nv, ABSENT, np.intp) for kind in ("position", "velocity", "effort")}
    by_type = {
        int(mujoco.mjtSensor.mjSENS_JOINTPOS): "position",
        int(mujoco.mjtSensor.mjSENS_JOINTVEL): "velocity",
        int(mujoco.mjtSensor.mjSENS_JOINTACTFRC): "effort",
        int(mujoco.mjtSensor.mjSENS_ACTUATORFRC): "effort",
    }
    for channel, (kind, joint) in enumerate(zip(kinds, joint_of, strict=True)):
        if joint != ABSENT and kind in by_type:
            found[by_type[kind]][joint] = channel
    joints = tuple(mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_JOINT, j) or str(j) for j in range(model.njnt))
    for joint, channel in enumerate(found["position"]):
        if channel == ABSENT:
            raise ConfigError(f"joint {joints[joint]} has no position channel; add a [[channel]] on a jointpos sensor")
    return Layout(
        channels=config.channel_names,
        noise=np.array([c.noise for c in config.channel]),
        sensor=np.array([model.sensor_adr[s] for s in sensors], np.intp),
        position=found["position"],
        velocity=found["velocity"],
        effort=found["effort"],
        joint_of=joint_of,
        joints=joints,
        actuators=tuple(mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_ACTUATOR, a) or str(a) for a in range(model.nu)),
        knots=timing.knots,
        substeps=substeps,
        knot_s=timing.knot_s,
        step_s=step,
    )


def _require_scalar_joints(model: mujoco.MjModel) -> None:
    if model.nq != model.nv:
        raise ConfigError(
            f"model has {model.nq - model.nv} free or ball joints; only hinge and slide joints are supported"
        )


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
    if kind == mujoco.mjtObj.mjOBJ_ACTUATOR and model.actuator_trntype[owner] == mujoco.mjtTrn.mjTRN_JOINT:
        return int(model.jnt_dofadr[model.actuator_trnid[owner, 0]])
    return ABSENT
