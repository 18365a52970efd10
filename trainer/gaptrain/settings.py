"""train.toml: the motions, the amount of data, the size of the network and of its training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from gapd.errors import ConfigError
from gapd.typed_toml import decode_toml

# Smallest and largest value of each number in train.toml; those of a list hold for each item. More windows, epochs or
# hidden units than that are a slip of the finger, as are motions beyond a kilometre or 159 turns.
LIMITS = {
    "windows": (1, 10_000_000),
    "held_out": (1, 1_000_000),
    "graph_windows": (8, 1_000_000),
    "shard_windows": (8, 4096),
    "hidden": (1, 1024),
    "epochs": (1, 100_000),
    "batch": (1, 65_536),
    "seed": (0, 2**32 - 1),
    "excitation.home": (-1e3, 1e3),
    "excitation.amplitude": (0.0, 1e3),
    "excitation.low_hz": (1e-3, 1e3),
    "excitation.high_hz": (1e-3, 1e3),
    "excitation.gain": (0.0, 1e9),
    "excitation.damping": (0.0, 1e9),
}


class Excitation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How training motions are commanded: `position` sends the reference, `tracking` a force from a PD law on it.

    `home` and `amplitude` are in rad (hinge) or m (slide), one each for the first actuators of the model; further
    actuators get command 0. `gain` is command per position error, N·m/rad or N/m where the command is a torque or
    force; `damping` is command per velocity error, N·m·s/rad or N·s/m. Both count with `tracking` only.
    """

    home: tuple[float, ...]
    amplitude: tuple[float, ...]  # the reference stays within home - amplitude .. home + amplitude
    kind: Literal["position", "tracking"] = "position"
    low_hz: float = 0.2
    high_hz: float = 1.2
    gain: float = 0.0
    damping: float = 0.0


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """train.toml of a model: motions, amount of data, size of the network and of its training.

    Data are made and kept in shards of `shard_windows` windows; fewer need less memory at a time. Another number means
    other random numbers, and so other data.
    """

    excitation: Excitation
    windows: int = 10240
    held_out: int = 512
    graph_windows: int = 1024  # on which the causal graph is measured
    shard_windows: int = 512
    hidden: int = 256
    epochs: int = 20
    batch: int = 64
    seed: int = 1


def load_training(path: Path) -> Training:
    """Read train.toml; ConfigError names file, key, value and limits."""
    training = decode_toml(path, Training)
    check_training(training, str(path))
    return training


def check_training(training: Training, source: str) -> None:
    """Raise ConfigError where a number is outside LIMITS or contradicts another; `source` says where it stands."""
    for key, value in _numbers(training):
        low, high = LIMITS[key.partition("[")[0]]
        if not low <= value <= high:  # NaN is not
            raise ConfigError(f"{source}: {key} = {value}: must be within {low:,} .. {high:,}".replace(",", "_"))
    motion = training.excitation
    if not motion.home:
        raise ConfigError(f"{source}: excitation.home = []: give the first actuators a home each, in rad or m")
    if len(motion.amplitude) != len(motion.home):
        raise ConfigError(
            f"{source}: excitation.amplitude has {len(motion.amplitude)} values: must have {len(motion.home)}, one for "
            "each of excitation.home"
        )
    if motion.low_hz > motion.high_hz:
        raise ConfigError(
            f"{source}: excitation.low_hz = {motion.low_hz}: must be at most excitation.high_hz = {motion.high_hz}"
        )
    if motion.kind == "tracking" and not motion.gain:
        raise ConfigError(f'{source}: excitation.gain = 0: must be positive for kind = "tracking"')
    if training.batch > training.windows:
        raise ConfigError(f"{source}: batch = {training.batch}: must be at most windows = {training.windows}")


def _numbers(training: Training) -> Iterator[tuple[str, float]]:
    """Keys as in LIMITS, with [index] in lists, and values of all numbers."""
    motion = training.excitation
    for prefix, struct in (("", training), ("excitation.", motion)):
        for name in struct.__struct_fields__:
            value = getattr(struct, name)
            if isinstance(value, tuple):
                yield from ((f"{prefix}{name}[{i}]", v) for i, v in enumerate(value))
            elif isinstance(value, int | float):
                yield prefix + name, value
