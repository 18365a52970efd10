"""Frames as they come to windows as they close, each judged by the gates with a little history around it. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gapd.frame_rows import Row
from gapd.gates import judge
from gapd.robot import Robot
from gapd.verdicts import Gate
from gapd.windows import LATE_SHARE, Frames, Windows, cut

Array = NDArray[np.float64]

# Frames kept before a window: what a stuck sensor or a spike is told by.
HISTORY_S = 2.0


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
        self._rows: deque[Row] = deque()
        self._present = np.zeros(len(robot.layout.channels), bool)
        self._start_s = np.nan
        timing = robot.config.timing
        self._tail_s = timing.window_s - min(timing.command_offset_s, 0.0) - LATE_SHARE * robot.layout.step_s

    def add(self, row: Row) -> list[Closed]:
        """Take in one row; the windows that it closes, at most one unless there was a hole."""
        now_s = row.timestamp
        if row.restarted:
            self._rows.clear()
            self._start_s = np.nan
        if not np.isfinite(self._start_s):
            self._start_s = now_s + max(self._robot.config.timing.command_offset_s, 0.0)
        self._rows.append(row)
        self._present |= ~np.isnan(row.measured)
        closed = []
        if now_s >= self._start_s + self._tail_s:
            closed.append(self._close())
            self._start_s += self._robot.config.timing.window_s
            if now_s > self._start_s + self._tail_s:
                self._restart(now_s)
        return closed

    def _close(self) -> Closed:
        frames, length = self._frames(), self._robot.config.timing.window_s
        start = np.array([self._start_s])
        gate = judge(frames, start, self._robot, self._present)[0]
        own = frames.between(self._start_s, np.nextafter(self._start_s + length, 0.0))
        window = None
        if gate.verdict == "ok":
            window = cut(frames, self._robot.layout, start, self._robot.config.timing.command_offset_s)
        while self._rows and self._rows[0].timestamp < self._start_s + length - HISTORY_S:
            self._rows.popleft()
        return Closed(gate, window, own)

    def _restart(self, now_s: float) -> None:
        """After a hole there is no use in the windows inside it."""
        last = self._rows[-1]
        self._rows.clear()
        self._rows.append(last)
        self._start_s = now_s + max(self._robot.config.timing.command_offset_s, 0.0)

    def _frames(self) -> Frames:
        time, measured, command, context, _ = zip(*self._rows, strict=True)
        return Frames(np.array(time), np.stack(measured), np.stack(command), np.stack(context))
