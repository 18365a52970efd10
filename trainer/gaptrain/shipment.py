"""A robot and its training settings as plain bytes and values, to make its data in another process or computer."""

from __future__ import annotations

import functools
import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np

import gapd
from gapd.config import Config
from gapd.errors import ConfigError
from gapd.gap.replay import Replay
from gapd.model.parameters import Parameter, ParameterSet
from gapd.model.robot import Robot, assemble
from gaptrain.fingerprint import robot_facts, short_hash
from gaptrain.settings import Training

_MODEL = "shipped.mjb"


@dataclass(frozen=True)
class Shipment:
    """What a worker needs to make shards of a robot; no folder of the model.

    The compiled model travels, not the MJCF: no meshes and no included files, and what was changed in memory, such as
    the parameters that are left, travels with it.
    """

    config: Config
    model: bytes  # as MuJoCo saves it
    parameters: tuple[Parameter, ...]
    training: Training
    threads: int  # of each shard
    facts: str  # hash of the robot, as training data depend on it
    code: str  # what computes: gapd, MuJoCo, numpy


def ship(robot: Robot, training: Training, threads: int) -> Shipment:
    """Pack the robot as it is in memory."""
    model = np.empty(mujoco.mj_sizeModel(robot.model), np.uint8)
    mujoco.mj_saveModel(robot.model, None, model)
    facts = short_hash(*robot_facts(robot))
    return Shipment(robot.config, model.tobytes(), robot.parameters.every, training, threads, facts, code())


_open: dict[str, Replay] = {}


def replay_of(shipment: Shipment) -> Replay:
    """Unpack the robot, once in each process; ConfigError where this computer would not make the same data."""
    key = hashlib.sha256(shipment.model + repr((shipment.parameters, shipment.threads)).encode()).hexdigest()
    if key not in _open:
        _open.clear()  # one at a time: its batches hold memory
        _open[key] = Replay(_unpacked(shipment), shipment.threads)
    return _open[key]


def _unpacked(shipment: Shipment) -> Robot:
    here = code()
    if here != shipment.code:
        raise ConfigError(
            f"{platform.node()} has {here}, where the data are asked for is {shipment.code}: they would not be the "
            "same data; install the same on both"
        )
    model = mujoco.MjModel.from_binary_path(_MODEL, {_MODEL: shipment.model})
    robot = assemble(shipment.config, model, ParameterSet(shipment.parameters))
    if short_hash(*robot_facts(robot)) != shipment.facts:
        raise ConfigError(f"{platform.node()}: the robot is not the same after it was sent; install the same gapd")
    return robot


@functools.cache
def code() -> str:
    """Versions of what computes the data, with a hash of the source of gapd and gaptrain."""
    digest = hashlib.sha256()
    for root in (Path(gapd.__file__).parent, Path(__file__).parent):
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{path.relative_to(root)} ".encode() + path.read_bytes())
    versions = f"gapd {gapd.__version__} ({digest.hexdigest()[:8]}), mujoco {mujoco.__version__}"
    return f"{versions}, numpy {np.__version__}, {platform.machine()}"
