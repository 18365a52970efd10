"""Frames from recordings: CSV files whose columns robot.toml maps to channels, commands and context."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gapd.config import Column
from gapd.errors import InputError
from gapd.measured.windows import Frames
from gapd.model.robot import Robot
from gapd.sources.csv_table import read_columns, require_columns

Array = NDArray[np.float64]

# Two recordings are told apart by this many frames; shorter ones give no window anyway.
MIN_FRAMES = 20


def frames(paths: Iterable[Path], robot: Robot) -> Iterator[Frames]:
    """Frames of each recording, in the order given. InputError names the file and what is wrong with it.

    Of two recordings none may hold the other: a copy would be fitted and then confirm the fit as held-out data.
    """
    seen: list[tuple[Path, bytes]] = []
    for path in paths:
        recording = read_csv(path, robot)
        content = _fingerprint(recording)
        for other, theirs in seen:
            if _holds(theirs, content) or _holds(content, theirs):
                raise InputError(f"{other} and {path}: hold the same frames; give each recording once")
        if content:
            seen.append((path, content))
        yield recording


def _fingerprint(recording: Frames) -> bytes:
    """Eight bytes for each frame, whatever its time stamp; nothing for a recording in which nothing happens."""
    values = np.column_stack([recording.measured, recording.command]) + 0.0  # -0.0 is 0.0
    bits = np.ascontiguousarray(values).view(np.uint64)
    weights = np.random.default_rng(0).integers(2**64, size=bits.shape[1], dtype=np.uint64) | np.uint64(1)
    hashes = (bits ^ (bits >> np.uint64(29))) @ weights
    changes = len(hashes) >= MIN_FRAMES and bool((hashes != hashes[0]).any())
    return hashes.tobytes() if changes else b""


def _holds(whole: bytes, part: bytes) -> bool:
    """Whether the frames of `part` are a stretch of those of `whole`."""
    at = whole.find(part) if part else -1
    while at > 0 and at % 8:  # between two frames
        at = whole.find(part, at + 1)
    return at >= 0


def require_mapped(path: Path, robot: Robot) -> int:
    """Number of columns that robot.toml maps; InputError where the file's header lacks one. Rows are not read."""
    columns = _Mapping.of(robot, path).columns
    require_columns(path, columns)
    return len(columns)


def read_csv(path: Path, robot: Robot) -> Frames:
    """Read one recording through the mapping in [log] of robot.toml; the file's order of frames is kept.

    Channels without a mapping are NaN, actuators without one get the command 0, context without one comes
    from [[log.per_file]] or is nominal. Empty, `nan` and `inf` cells become NaN and inf, which the gates
    judge; timestamps must be finite. InputError names file, line, column, value and remedy.
    """
    mapping = _Mapping.of(robot, path)
    table = read_columns(path, mapping.columns)
    rows = len(table)
    return Frames(
        timestamp=table[:, mapping.columns.index(robot.config.log.timestamp)],
        measured=mapping.fill(np.full((rows, len(robot.layout.channels)), np.nan), table, mapping.channels),
        command=mapping.fill(np.zeros((rows, len(robot.layout.actuators))), table, mapping.commands),
        context=mapping.fill(np.tile(_file_context(path, robot), (rows, 1)), table, mapping.context),
        name=path.name,
    )


def write_csv(frames: Frames, path: Path, robot: Robot) -> None:
    """Write a recording that `read_csv` reads back exactly up to rounding of factor and offset.

    InputError where robot.toml has no column for something that the frames contain.
    """
    mapping = _Mapping.of(robot, path)
    _require_kept(frames, path, robot, mapping)
    columns = {robot.config.log.timestamp: frames.timestamp}
    for part, values in (
        (mapping.channels, frames.measured),
        (mapping.commands, frames.command),
        (mapping.context, frames.context),
    ):
        for index, column in part.items():
            columns[column.column] = (values[:, index] - column.offset) / column.factor
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(np.column_stack(list(columns.values())).tolist())


@dataclass(frozen=True)
class _Mapping:
    """[log] with positions for names: index of the channel, actuator or context -> column of the file."""

    columns: tuple[str, ...]  # every column that is read, once
    channels: Mapping[int, Column]
    commands: Mapping[int, Column]
    context: Mapping[int, Column]

    @classmethod
    def of(cls, robot: Robot, path: Path) -> _Mapping:
        log, layout = robot.config.log, robot.layout
        if not log.channels:
            raise InputError(f"{path}: robot.toml maps no column; name the file's columns in [log.channels]")
        parts = (
            _by_index(log.table("channels"), layout.channels),
            _by_index(log.table("commands"), layout.actuators),
            _by_index(log.table("context"), robot.config.context_names),
        )
        names = [log.timestamp, *(column.column for part in parts for column in part.values())]
        return cls(tuple(dict.fromkeys(names)), *parts)

    def fill(self, target: Array, table: Array, part: Mapping[int, Column]) -> Array:
        """Write the mapped columns of the file's table, converted, over `target` (T, ...)."""
        for index, column in part.items():
            target[:, index] = table[:, self.columns.index(column.column)] * column.factor + column.offset
        return target


def _by_index(mapped: Mapping[str, Column], names: tuple[str, ...]) -> dict[int, Column]:
    return {names.index(name): column for name, column in mapped.items()}


def _file_context(path: Path, robot: Robot) -> Array:
    """Context (X,) of a file: nominal, then each matching rule of [[log.per_file]], later over earlier."""
    values = robot.context_nominal
    for rule in robot.config.log.per_file:
        if fnmatchcase(path.name, rule.pattern):
            for name, value in rule.context.items():
                values[robot.config.context_names.index(name)] = value
    return values


def _require_kept(frames: Frames, path: Path, robot: Robot, mapping: _Mapping) -> None:
    """Raise InputError for values that would be lost, because robot.toml has no column for them."""
    lost = [
        ("channels", name, bool(np.isfinite(frames.measured[:, i]).any()))
        for i, name in enumerate(robot.layout.channels)
        if i not in mapping.channels
    ]
    lost += [
        ("commands", name, bool((frames.command[:, i] != 0).any()))
        for i, name in enumerate(robot.layout.actuators)
        if i not in mapping.commands
    ]
    known = _file_context(path, robot)
    lost += [
        ("context", name, bool((frames.context[:, i] != known[i]).any()))
        for i, name in enumerate(robot.config.context_names)
        if i not in mapping.context
    ]
    for table, name, present in lost:
        if present:
            raise InputError(f"{path}: '{name}' would be lost; give it a column in [log.{table}] of robot.toml")
