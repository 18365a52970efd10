"""TOML files decoded into typed structs, with messages that name the file, the key and the nearest known key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gapd.errors import ConfigError, nearest

T = TypeVar("T")

# Of a configuration file: far more than the largest robot needs.
MAX_BYTES = 2**22


def decode_toml(path: Path, kind: type[T], extra: Iterable[Path] = ()) -> T:
    """Decode a TOML file, with `extra` files merged over it, into a typed struct.

    Raises ConfigError naming the file, the key and the nearest known key.
    """
    data, blamed = _read(path), path
    decoded: T | msgspec.ValidationError = _convert(data, kind)
    for file in extra:
        # What an earlier file lacks a later one may give; every other fault is of the file that brings it.
        if _missing(decoded) or not isinstance(decoded, msgspec.ValidationError):
            data, blamed = _merge(data, _without_lists(file, _read(file))), file
            decoded = _convert(data, kind)
    if isinstance(decoded, msgspec.ValidationError):
        raise ConfigError(f"{path if _missing(decoded) else blamed}: {_explain(str(decoded), kind)}")
    return decoded


def _missing(decoded: object) -> bool:
    return isinstance(decoded, msgspec.ValidationError) and "missing required field" in str(decoded)


def _convert(data: dict[str, Any], kind: type[T]) -> T | msgspec.ValidationError:
    try:
        return msgspec.convert(data, kind, strict=True)
    except msgspec.ValidationError as error:
        return error


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ConfigError(f"{path}: has more than {MAX_BYTES} bytes; is it the right file?")
        return tomllib.loads(raw.decode("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; write it, or correct the path") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); check path and permissions") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 ({error.reason}); check path and encoding") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, and numbers or nesting beyond reason
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _without_lists(path: Path, data: dict[str, Any], place: str = "") -> dict[str, Any]:
    """The data, if there is no list in them: it would replace the one it means to add to."""
    for key, value in data.items():
        if isinstance(value, list):
            raise ConfigError(f"{path}: {place}{key} is a list and would replace all of it; move it to robot.toml")
        if isinstance(value, dict):
            _without_lists(path, value, f"{place}{key}.")
    return data


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
