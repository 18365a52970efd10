"""robot.toml: what is measured, how it is timed, where the model is. Errors name the key and the nearest match."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gapd.errors import ConfigError
from gapd.limits import LARGEST, factor_fault, name_fault, number_fault, path_fault, text_fault
from gapd.live_config import Fault, Live, live_faults
from gapd.typed_toml import decode_toml

LARGEST_SEED = 2**63 - 1
LARGEST_KNOTS = 10_000


class Timing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time grid of a window: `knots` intervals of `knot_s` seconds after the initial knot."""

    knot_s: float = 0.01
    knots: int = 30
    command_offset_s: float = 0.0

    @property
    def window_s(self) -> float:
        """Length of a window in seconds."""
        return self.knot_s * self.knots


class Channel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One scalar measured signal; `noise` is its standard deviation in `unit`."""

    name: str
    unit: str
    noise: float
    sensor: str = ""

    @property
    def sensor_name(self) -> str:
        """Name of the MJCF sensor that predicts it."""
        return self.sensor or self.name


class Context(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A known input; `nominal` holds where no frame says otherwise, min .. max is the range of training."""

    name: str
    nominal: float
    unit: str = ""
    min: float | None = None
    max: float | None = None

    @property
    def low(self) -> float:
        """Smallest value in training."""
        return self.nominal if self.min is None else self.min

    @property
    def high(self) -> float:
        """Largest value in training."""
        return self.nominal if self.max is None else self.max


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column of a log and its conversion: value = column x factor + offset."""

    column: str
    factor: float = 1.0
    offset: float = 0.0


class PerFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Context known for all logs whose file name matches `pattern` (as in a shell)."""

    pattern: str
    context: dict[str, float]


class LogMapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the columns of a CSV log map to channels, commands (by actuator) and context."""

    timestamp: str = "timestamp"
    channels: dict[str, str | Column] = {}
    commands: dict[str, str | Column] = {}
    context: dict[str, str | Column] = {}
    per_file: tuple[PerFile, ...] = ()

    def table(self, name: str) -> dict[str, Column]:
        """The mapping `channels`, `commands` or `context`, each column with its conversion."""
        mapped: dict[str, str | Column] = getattr(self, name)
        return {ours: Column(theirs) if isinstance(theirs, str) else theirs for ours, theirs in mapped.items()}


class _Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of robot.toml."""

    robot: str
    model: str
    parameters: str
    channel: tuple[Channel, ...]
    bundle: str = ""
    bundle_sha256: str = ""
    seed: int = 0
    timing: Timing = Timing()
    context: tuple[Context, ...] = ()
    log: LogMapping = LogMapping()
    live: Live = Live()


class Config(_Declared, frozen=True):
    """Everything in robot.toml, and the folder it is in: paths are relative to it."""

    folder: str = "."

    def path(self, name: str) -> Path:
        """A path of the file, from the folder the file is in."""
        return (Path(self.folder) / name).absolute()

    @property
    def channel_names(self) -> tuple[str, ...]:
        """Names of the channels, in order."""
        return tuple(c.name for c in self.channel)

    @property
    def context_names(self) -> tuple[str, ...]:
        """Names of the context values, in order."""
        return tuple(c.name for c in self.context)


def load_config(path: Path) -> Config:
    """Read robot.toml and the TOML files in conf.d beside it, later names over earlier ones."""
    declared = decode_toml(path, _Declared, _conf_d(path))
    config = Config(**msgspec.structs.asdict(declared), folder=str(path.resolve().parent))
    for key, value, fault in faults(config):
        if fault:
            raise ConfigError(f"{path}: {key} = {value!r}: {fault}")
    return config


def _conf_d(path: Path) -> Iterator[Path]:
    """Files of conf.d, found only once robot.toml itself could be read."""
    yield from sorted((path.parent / "conf.d").glob("*.toml"))


def faults(config: Config) -> Iterator[Fault]:
    """Key, value and fault (empty if fine) of everything that the types cannot tell."""
    yield "robot", config.robot, name_fault(config.robot)
    for key in ("model", "parameters", "bundle"):
        value: str = getattr(config, key)
        yield key, value, path_fault(value) if value or key != "bundle" else ""
    yield "bundle_sha256", config.bundle_sha256, _pin_fault(config)
    yield "seed", config.seed, number_fault(config.seed, 0, LARGEST_SEED, "a whole number")
    yield from _timing_faults(config.timing)
    yield "channel", [], "" if config.channel else "declare at least one [[channel]]"
    for channel in config.channel:
        yield from _channel_faults(channel)
    for context in config.context:
        yield from _context_faults(context)
    for kind, names in (("channel", config.channel_names), ("context", config.context_names)):
        for name in names:
            yield kind, name, f"declared twice; keep one [[{kind}]]" if names.count(name) > 1 else ""
    yield from _log_faults(config.log)
    for key, setting, fault in live_faults(config.live):
        yield f"live.{key}", setting, fault


def _pin_fault(config: Config) -> str:
    if config.bundle_sha256 and not config.bundle:
        return "pins a bundle, but none is named; set `bundle`, or remove this line"
    pinned = re.fullmatch("([0-9a-f]{64})?", config.bundle_sha256)
    return "" if pinned else "must be the 64 hexadecimal digits of a sha256"


def _timing_faults(timing: Timing) -> Iterator[Fault]:
    yield "timing.knot_s", timing.knot_s, number_fault(timing.knot_s, 1e-5, 10, "a time in seconds")
    few = "a window needs at least 2 knots" if timing.knots < 2 else ""
    yield "timing.knots", timing.knots, few or number_fault(timing.knots, 2, LARGEST_KNOTS)
    offset = timing.command_offset_s
    yield "timing.command_offset_s", offset, number_fault(offset, -1, 1, "a delay in seconds")


def _channel_faults(channel: Channel) -> Iterator[Fault]:
    place = f"channel {channel.name}"
    yield "channel name", channel.name, name_fault(channel.name)
    yield f"{place} unit", channel.unit, text_fault(channel.unit)
    yield f"{place} sensor", channel.sensor, text_fault(channel.sensor)
    yield f"{place} noise", channel.noise, number_fault(channel.noise, 1e-12, 1e9, "a standard deviation")


def _context_faults(context: Context) -> Iterator[Fault]:
    place = f"context {context.name}"
    yield "context name", context.name, name_fault(context.name)
    yield f"{place} unit", context.unit, text_fault(context.unit)
    for key, value in (("min", context.low), ("max", context.high), ("nominal", context.nominal)):
        yield f"{place} {key}", value, number_fault(value, -LARGEST, LARGEST)
    crossed = f"is above max = {context.high}; swap them" if context.low > context.high else ""
    yield f"{place} min", context.low, crossed
    outside = "" if context.low <= context.nominal <= context.high else f"is outside {context.low} .. {context.high}"
    yield f"{place} nominal", context.nominal, outside


def _log_faults(log: LogMapping) -> Iterator[Fault]:
    yield "log.timestamp", log.timestamp, name_fault(log.timestamp)
    for table in ("channels", "commands", "context"):
        for name, column in log.table(table).items():
            place = f"log.{table} {name}"
            yield f"{place} column", column.column, name_fault(column.column)
            yield f"{place} factor", column.factor, factor_fault(column.factor)
            yield f"{place} offset", column.offset, number_fault(column.offset, -LARGEST, LARGEST)
    used = [log.timestamp, *(c.column for c in log.table("channels").values())]
    for name in used:
        twice = "is the column of two channels, or of the timestamp too" if used.count(name) > 1 else ""
        yield "log.channels", name, twice and f"{twice}; give each its own"
    for rule in log.per_file:
        yield "log.per_file pattern", rule.pattern, name_fault(rule.pattern)
        for name, value in rule.context.items():
            yield f"log.per_file context {name}", value, number_fault(value, -LARGEST, LARGEST)
