"""robot.toml: what is measured, how it is timed, where the model is. Errors name the key and the nearest match."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gapd.errors import ConfigError, nearest

T = TypeVar("T")


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


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything in robot.toml. Paths are relative to the file."""

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
    folder: str = "."

    def path(self, name: str) -> Path:
        """A path of the file, resolved against the folder the file is in."""
        return (Path(self.folder) / name).resolve()

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
    extra = sorted((path.parent / "conf.d").glob("*.toml"))
    config = decode_toml(path, Config, extra)
    config = msgspec.structs.replace(config, folder=str(path.resolve().parent))
    _check(path, config)
    return config


def _check(path: Path, config: Config) -> None:
    """Refuse what the types cannot: values that make no sense together."""
    if config.timing.knot_s <= 0:
        _refuse(path, "timing.knot_s", config.timing.knot_s, "must be a positive time in seconds")
    if config.timing.knots < 2:
        _refuse(path, "timing.knots", config.timing.knots, "a window needs at least 2 knots")
    if not config.channel:
        _refuse(path, "channel", [], "declare at least one [[channel]]")
    for channel in config.channel:
        if not channel.noise > 0:
            _refuse(path, f"channel {channel.name} noise", channel.noise, "must be a positive standard deviation")
    for kind, names in (("channel", config.channel_names), ("context", config.context_names)):
        doubled = {n for n in names if names.count(n) > 1}
        if doubled:
            _refuse(path, kind, min(doubled), f"declared twice; keep one [[{kind}]]")
    _check_log(path, config)


def _check_log(path: Path, config: Config) -> None:
    log = config.log
    for name in log.channels:
        if name not in config.channel_names:
            _refuse(path, "log.channels", name, f"no such [[channel]]{nearest(name, config.channel_names)}")
    for name in (*log.context, *(n for rule in log.per_file for n in rule.context)):
        if name not in config.context_names:
            _refuse(path, "log context", name, f"no such [[context]]{nearest(name, config.context_names)}")


def _refuse(path: Path, key: str, value: object, remedy: str) -> None:
    raise ConfigError(f"{path}: {key} = {value!r}: {remedy}")


def decode_toml(path: Path, kind: type[T], extra: list[Path] | None = None) -> T:
    """Decode a TOML file, with `extra` files merged over it, into a typed struct.

    Raises ConfigError naming the file, the key and the nearest known key.
    """
    data: dict[str, Any] = {}
    for file in [path, *(extra or [])]:
        data = _merge(data, _read(file))
    try:
        return msgspec.convert(data, kind, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_explain(str(error), kind)}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; correct the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); check path and permissions") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _explain(message: str, kind: type) -> str:
    unknown = re.search(r"unknown field `([^`]+)`(?: - at `\$\.?(.*)`)?", message)
    if unknown is None:
        return message.replace("`$.", "`") + "; correct the key"
    place = unknown.group(2) or ""
    fields = _fields_at(kind, place)
    where = f" in [{place}]" if place else ""
    return f"unknown key '{unknown.group(1)}'{where}{nearest(unknown.group(1), fields)}"


def _fields_at(kind: Any, place: str) -> list[str]:
    """Known keys of the struct at a path like `timing` or `parameter[...].targets[...]`."""
    for step in re.findall(r"[A-Za-z_]\w*", place):
        inside = {f.name: f.type for f in msgspec.structs.fields(kind)}
        if step not in inside:
            return []
        kind = _struct_in(inside[step])
        if kind is None:
            return []
    return [f.encode_name for f in msgspec.structs.fields(kind)]


def _struct_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = _struct_in(inner)
        if found is not None:
            return found
    return None
