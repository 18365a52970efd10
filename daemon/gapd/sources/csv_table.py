"""Columns of numbers from CSV files, and one clear line for every file that is none."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gapd.errors import InputError, nearest

Array = NDArray[np.float64]
T = TypeVar("T")

# Rows converted at a time: as text they need about 20 times the memory of their numbers.
CHUNK_ROWS = 8192
# Longer lines are no rows of numbers, and a file without line ends has no end of its own.
MAX_LINE = 1_000_000
# Five hours at 1 kHz. What goes on for longer is a pipe that nobody closes, or more than memory holds.
MAX_ROWS = 20_000_000
# How files begin that are often taken for CSV, and what to do with them.
_KINDS = {
    b"\x1f\x8b": "compressed; gunzip it first",
    b"PK\x03\x04": "a zip archive or a spreadsheet; unpack it, or export it as CSV",
    b"\xfd7zXZ": "compressed; unxz it first",
    b"\x28\xb5\x2f\xfd": "compressed; unzstd it first",
    b"BZh": "compressed; bunzip2 it first",
    b"\x89MCAP": "an MCAP recording; export it as CSV",
    b"\xff\xfe": "UTF-16 text, not UTF-8 text; export it as CSV in UTF-8",
    b"\xfe\xff": "UTF-16 text, not UTF-8 text; export it as CSV in UTF-8",
}


def read_columns(path: Path, columns: tuple[str, ...]) -> Array:
    """Table (T, len(columns)) of the named columns; the first is the timestamp, which must be finite."""
    return _opened(path, lambda rows: rows.table(columns))


def require_columns(path: Path, columns: tuple[str, ...]) -> None:
    """InputError where the header lacks one of the columns. Rows are not read."""
    _opened(path, lambda rows: rows.places(columns))


def _opened(path: Path, use: Callable[[_Rows], T]) -> T:
    try:
        with path.open("rb") as file:
            _require_text(path, file)
            with TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
                return use(_Rows(path, text))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; check the path") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); export it as CSV") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check path and permissions") from None


def _require_text(path: Path, file: BufferedReader) -> None:
    start = file.peek(4096)[:4096]
    for magic, what in _KINDS.items():
        if start.startswith(magic):
            raise InputError(f"{path}: {what}")
    if b"\0" in start:
        raise InputError(f"{path}: contains NUL bytes, so it is UTF-16 or no text at all; export it as CSV in UTF-8")


class _Rows:
    """Header and rows of one file."""

    def __init__(self, path: Path, text: TextIOWrapper) -> None:
        """Read up to the header: the first line that is not blank."""
        self.path = path
        self._reader = csv.reader(self._lines(text), skipinitialspace=True)
        self.header: list[str] = []
        for row in self._rows():
            self.header = [name.strip() for name in row]
            if any(self.header):
                break

    def _lines(self, text: TextIOWrapper) -> Iterator[str]:
        number = 0
        while line := text.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE:
                raise InputError(
                    f"{self.path}: line {number} has more than {MAX_LINE} characters; export it as plain CSV"
                )
            if number > MAX_ROWS:
                raise InputError(f"{self.path}: has more than {MAX_ROWS} lines; split it into recordings")
            yield line

    def _rows(self) -> Iterator[list[str]]:
        try:
            yield from self._reader
        except csv.Error as error:
            raise InputError(f"{self.path}: line {self._reader.line_num}: {error}; export it as plain CSV") from None

    def places(self, columns: tuple[str, ...]) -> list[int]:
        """Place of each wanted column in the header."""
        path, header = self.path, self.header
        if not any(header):
            raise InputError(f"{path}: empty, no header line; check that the recorder ran")
        if all(_is_number(name) for name in header):
            raise InputError(f"{path}: the first line looks like numbers: no header? Put the columns' names there")
        for column in columns:
            if column not in header:
                hint = nearest(column, header)
                near = hint if "did you mean" in hint else ""
                raise InputError(
                    f"{path}: no column '{column}'{near}; the file has {_listed(header)}; "
                    "correct [log] of robot.toml or the header"
                )
            if header.count(column) > 1:
                raise InputError(f"{path}: column '{column}' appears {header.count(column)} times; keep one")
        return [header.index(column) for column in columns]

    def table(self, columns: tuple[str, ...]) -> Array:
        """Numbers (T, len(columns)) of all rows."""
        wanted = self.places(columns)
        parts: list[Array] = []
        rows: list[list[str]] = []
        lines: list[int] = []
        for row in self._rows():
            if not row:  # blank line, usually the last
                continue
            rows.append(row)
            lines.append(self._reader.line_num)
            if len(rows) == CHUNK_ROWS:
                parts.append(self._numbers(wanted, rows, lines))
                rows, lines = [], []
        if rows:
            parts.append(self._numbers(wanted, rows, lines))
        if not parts:
            raise InputError(f"{self.path}: only a header, no frames; check that the recorder ran")
        return np.concatenate(parts)

    def _numbers(self, wanted: list[int], rows: list[list[str]], lines: list[int]) -> Array:
        """Numbers (n, len(wanted)) of rows of text; InputError names the first bad line, column and value."""
        for row, line in zip(rows, lines, strict=True):
            if len(row) != len(self.header):
                found = f"{len(row)} cells where the header has {len(self.header)}"
                raise InputError(f"{self.path}: line {line}: {found}; mend or remove it")
        table = np.empty((len(rows), len(wanted)))
        for place, column in enumerate(wanted):
            cells = [row[column] for row in rows]
            try:
                table[:, place] = np.fromiter(map(float, cells), float, len(cells))
            except ValueError:
                table[:, place] = self._one_by_one(column, cells, lines)
        bad = np.flatnonzero(~np.isfinite(table[:, 0]))
        if len(bad):
            cell = rows[bad[0]][wanted[0]]
            place_of = f"line {lines[bad[0]]}, column '{self.header[wanted[0]]}'"
            raise InputError(
                f"{self.path}: {place_of}: '{_short(cell)}' is no finite time; give seconds, or remove the line"
            )
        return table

    def _one_by_one(self, column: int, cells: list[str], lines: list[int]) -> list[float]:
        """Numbers of one column with empty cells as NaN."""
        result = []
        for cell, line in zip(cells, lines, strict=True):
            try:
                result.append(float(cell) if cell.strip() else np.nan)
            except ValueError:
                place = f"line {line}, column '{self.header[column]}'"
                raise InputError(
                    f"{self.path}: {place}: '{_short(cell)}' is no number; correct or empty the cell"
                ) from None
        return result


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _short(cell: str) -> str:
    """A cell as a message can quote it."""
    return cell if len(cell) <= 60 else f"{cell[:60]}..."


def _listed(names: list[str]) -> str:
    """Names as a message can list them."""
    shown = ", ".join(_short(n) for n in names[:60])
    return shown if len(names) <= 60 else f"{shown}, ... ({len(names)} columns)"
