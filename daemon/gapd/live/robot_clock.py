"""The robot's time, continued where its clock begins anew. Pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gapd.measured.windows import Windows


class RobotClock:
    """Tells windows of before and after a restart of the robot's clock apart, and gives a time that only rises."""

    def __init__(self) -> None:
        """Begin with what the robot's clock says."""
        self._restarts = 0
        self._offset_s = [0.0]
        self._last_s = 0.0

    def restart(self) -> None:
        """The clock has jumped: windows from now on belong to another run of it."""
        self._restarts += 1

    def stamp(self, window: Windows) -> Windows:
        """The window with the number of the clock's run as its source."""
        return replace(window, source=np.full(len(window), self._restarts, np.intp))

    def running_s(self, window: Windows) -> float:
        """Start of a stamped window; windows are asked for in their order."""
        start_s, run = float(window.start_s[0]), int(window.source[0])
        while len(self._offset_s) <= run:
            self._offset_s.append(self._last_s - start_s)
        self._last_s = start_s + self._offset_s[run]
        return self._last_s
