"""Frames as they come to windows as they close, each judged by the gates with a little history around it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gapd.measured.frame_rows import Row
from gapd.measured.gates import judge
from gapd.measured.verdicts import Gate
from gapd.measured.windows import LATE_SHARE, Frames, Windows, cut
from gapd.model.robot import Robot

Array = NDArray[np.float64]

# Frames kept before a window: what a stuck sensor or a spike is told by.
HISTORY_S = 2.0
# Room for rows at first: what a source at 1 kHz needs for some windows.
FIRST_ROWS = 8192


@dataclass(frozen=True)
class Closed:
    """A window that has closed: its verdict, the window itself if it is ok, and the frames inside it."""

    gate: Gate
    window: Windows | None
    frames: Frames


class LiveWindows:
    """Back-to-back windows on the grid that the first row sets; a hole or a jump of the clock sets a new one."""

    def __init__(self, robot: Robot) -> None:
        self._robot = robot
        self._rows = _Rows(robot)
        timing = robot.config.timing
        self._window_s, self._offset_s = timing.window_s, timing.command_offset_s
        self._start_s = self._end_s = math.nan
        self._length_s = timing.window_s - min(timing.command_offset_s, 0.0)
        # A frame this early is the last one of a window: unless there are many more in a step.
        self._late_s = LATE_SHARE * robot.layout.step_s

    def add(self, row: Row) -> list[Closed]:
        """Take in one row; the windows that it closes, at most one unless there was a hole."""
        now_s = row.timestamp
        if row.restarted:
            self._rows.drop(len(self._rows))
            self._start_s = math.nan
        if not math.isfinite(self._start_s):
            self._begin(now_s + max(self._offset_s, 0.0))
        self._rows.append(row)
        if now_s < self._end_s - min(self._late_s, self._rows.period_s):
            return []
        closed = self._close()
        self._begin(self._start_s + self._window_s)
        if now_s > self._end_s:  # there is no use in the windows inside a hole
            self._rows.drop(len(self._rows) - 1)
            self._begin(now_s + max(self._offset_s, 0.0))
        return [closed]

    def _begin(self, start_s: float) -> None:
        self._start_s, self._end_s = start_s, start_s + self._length_s

    def _close(self) -> Closed:
        frames, start = self._rows.frames(), np.array([self._start_s])
        gate = judge(frames, start, self._robot, self._rows.present)[0]
        own = frames.between(self._start_s, np.nextafter(self._start_s + self._window_s, 0.0))
        window = cut(frames, self._robot.layout, start, self._offset_s) if gate.verdict == "ok" else None
        kept = frames.timestamp >= self._start_s + self._window_s - HISTORY_S
        self._rows.drop(int(np.argmax(kept)) if kept.any() else len(frames))
        return Closed(gate, window, own)


class _Rows:
    """The newest rows, side by side in arrays, so that a window that closes need not collect them one by one."""

    def __init__(self, robot: Robot) -> None:
        layout = robot.layout
        self.present = np.zeros(len(layout.channels), bool)  # (C,) channels that were ever measured, up to `frames`
        widths = (len(layout.channels), len(layout.actuators), len(robot.context_nominal))
        self._timestamp: Array = np.empty(FIRST_ROWS)
        self._columns: list[Array] = [np.empty((FIRST_ROWS, width)) for width in widths]
        self._first = self._looked = self._end = 0

    def __len__(self) -> int:
        return self._end - self._first

    @property
    def period_s(self) -> float:
        """Mean time between rows; infinite before there are two."""
        count = len(self)
        return (
            float(self._timestamp[self._end - 1] - self._timestamp[self._first]) / (count - 1)
            if count > 1
            else math.inf
        )

    def append(self, row: Row) -> None:
        """Add a row at the end."""
        if self._end == len(self._timestamp):
            self._make_room()
        end = self._end
        measured, command, context = self._columns
        self._timestamp[end] = row.timestamp
        measured[end], command[end], context[end] = row.measured, row.command, row.context
        self._end = end + 1

    def drop(self, count: int) -> None:
        """Forget the oldest rows."""
        self._look()
        self._first += count

    def frames(self) -> Frames:
        """All rows, until another is added: not copied."""
        self._look()
        rows = slice(self._first, self._end)
        measured, command, context = self._columns
        return Frames(self._timestamp[rows], measured[rows], command[rows], context[rows])

    def _look(self) -> None:
        self.present |= ~np.isnan(self._columns[0][self._looked : self._end]).all(axis=0)
        self._looked = self._end

    def _make_room(self) -> None:
        """Rows move to the front; where they fill more than half, to the front of arrays twice as long."""
        self._look()
        rows = slice(self._first, self._end)
        size = len(self._timestamp) * (2 if 2 * len(self) > self._end else 1)
        self._timestamp, *self._columns = (_moved(a, rows, size) for a in (self._timestamp, *self._columns))
        self._first, self._looked, self._end = 0, len(self), len(self)


def _moved(array: Array, rows: slice, size: int) -> Array:
    """An array of so many rows with these rows in front."""
    moved = np.empty((size, *array.shape[1:]))
    moved[: rows.stop - rows.start] = array[rows]
    return moved
