"""Frames from recordings: CSV files whose columns robot.toml maps to channels, commands and context."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from gapd.config import Column
from gapd.errors import InputError, nearest
from gapd.robot import Robot
from gapd.windows import Frames

Array = NDArray[np.float64]

# Rows converted at a time: as text they need about 20 times the memory of their numbers.
CHUNK_ROWS = 8192


def frames(paths: Iterable[Path], robot: Robot) -> Iterator[Frames]:
    """Frames of each recording, in the order given. InputError names the file and what is wrong with it."""
    for path in paths:
        yield read_csv(path, robot)


def read_csv(path: Path, robot: Robot) -> Frames:
    """Read one recording through the mapping in [log] of robot.toml; the file's order of frames is kept.

    Channels without a mapping are NaN, actuators without one get the command 0, context without one comes
    from [[log.per_file]] or is nominal. Empty, `nan` and `inf` cells become NaN and inf, which the gates
    judge; timestamps must be finite. InputError names file, line, column, value and remedy.
    """
    mapping = _Mapping.of(robot, path)
    table = _read_columns(path, mapping.columns)
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
    _require_columns(frames, path, robot, mapping)
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
            _by_index(log.channels, layout.channels, "channels", "[[channel]] of robot.toml"),
            _by_index(log.commands, layout.actuators, "commands", "actuator of the model"),
            _by_index(log.context, robot.config.context_names, "context", "[[context]] of robot.toml"),
        )
        names = [log.timestamp, *(column.column for part in parts for column in part.values())]
        return cls(tuple(dict.fromkeys(names)), *parts)

    def fill(self, target: Array, table: Array, part: Mapping[int, Column]) -> Array:
        """Write the mapped columns of the file's table, converted, over `target` (T, ...)."""
        for index, column in part.items():
            target[:, index] = table[:, self.columns.index(column.column)] * column.factor + column.offset
        return target


def _by_index(mapped: Mapping[str, str | Column], names: tuple[str, ...], table: str, kind: str) -> dict[int, Column]:
    result = {}
    for name, column in mapped.items():
        if name not in names:
            raise InputError(f"log.{table} '{name}': no such {kind}{nearest(name, names)}")
        result[names.index(name)] = Column(column) if isinstance(column, str) else column
    return result


def _file_context(path: Path, robot: Robot) -> Array:
    """Context (X,) of a file: nominal, then each matching rule of [[log.per_file]], later over earlier."""
    values = robot.context_nominal
    for rule in robot.config.log.per_file:
        if fnmatchcase(path.name, rule.pattern):
            for name, value in rule.context.items():
                values[robot.config.context_names.index(name)] = value
    return values


def _require_columns(frames: Frames, path: Path, robot: Robot, mapping: _Mapping) -> None:
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


def _read_columns(path: Path, columns: tuple[str, ...]) -> Array:
    """Table (T, len(columns)) of the named columns; the first is the timestamp."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _parse(path, file, columns)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; check the path") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); export it as CSV") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check path and permissions") from None


def _parse(path: Path, file: TextIO, columns: tuple[str, ...]) -> Array:
    reader = csv.reader(file, skipinitialspace=True)
    parts: list[Array] = []
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        header = [name.strip() for name in next(reader, [])]
        wanted = _positions(path, header, columns)
        for row in reader:
            if not row:  # blank line, usually the last
                continue
            rows.append(row)
            lines.append(reader.line_num)
            if len(rows) == CHUNK_ROWS:
                parts.append(_numbers(path, header, wanted, rows, lines))
                rows, lines = [], []
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num}: {error}; export it as plain CSV") from None
    if rows:
        parts.append(_numbers(path, header, wanted, rows, lines))
    if not parts:
        raise InputError(f"{path}: only a header, no frames; check that the recorder ran")
    return np.concatenate(parts)


def _positions(path: Path, header: list[str], columns: tuple[str, ...]) -> list[int]:
    """Place of each wanted column in the header."""
    if not any(header):
        raise InputError(f"{path}: empty, no header line; check that the recorder ran")
    for column in columns:
        if column not in header:
            hint = nearest(column, header)
            near = hint if "did you mean" in hint else ""
            raise InputError(
                f"{path}: no column '{column}'{near}; the file has {', '.join(header)}; "
                "correct [log] of robot.toml or the header"
            )
        if header.count(column) > 1:
            raise InputError(f"{path}: column '{column}' appears {header.count(column)} times; keep one")
    return [header.index(column) for column in columns]


def _numbers(path: Path, header: list[str], wanted: list[int], rows: list[list[str]], lines: list[int]) -> Array:
    """Numbers (n, len(wanted)) of rows of text; InputError names the first bad line, column and value."""
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(header):
            raise InputError(
                f"{path}: line {line}: {len(row)} cells where the header has {len(header)}; mend or remove it"
            )
    table = np.empty((len(rows), len(wanted)))
    for place, column in enumerate(wanted):
        cells = [row[column] for row in rows]
        try:
            table[:, place] = np.fromiter(map(float, cells), float, len(cells))
        except ValueError:
            table[:, place] = _one_by_one(path, header[column], cells, lines)
    bad = np.flatnonzero(~np.isfinite(table[:, 0]))
    if len(bad):
        cell = rows[bad[0]][wanted[0]]
        raise InputError(
            f"{path}: line {lines[bad[0]]}, column '{header[wanted[0]]}': '{cell}' is no finite time; "
            "give seconds, or remove the line"
        )
    return table


def _one_by_one(path: Path, column: str, cells: list[str], lines: list[int]) -> list[float]:
    """Numbers of one column with empty cells as NaN."""
    result = []
    for cell, line in zip(cells, lines, strict=True):
        try:
            result.append(float(cell) if cell.strip() else np.nan)
        except ValueError:
            raise InputError(
                f"{path}: line {line}, column '{column}': '{cell}' is no number; correct or empty the cell"
            ) from None
    return result
