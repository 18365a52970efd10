"""From frames to decisions, the same for a live stream and for a recording of one. No I/O, no clock.

Whoever drives it runs the keeper's jobs: the daemon in a thread, a replay at once.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass

from gapd.live.events import Event
from gapd.live.keeper import Keeper
from gapd.live.live_windows import Closed, LiveWindows
from gapd.live.memory import Memory
from gapd.live_config import KeeperSettings
from gapd.measured.frame_rows import FrameRows, Refusal, Row
from gapd.measured.verdicts import Gate
from gapd.measured.windows import Frames
from gapd.messages.frames import Frame
from gapd.model.robot import Robot

# Evidence of an escalation: what was seen before it, s.
EVIDENCE_S = 60.0
EVIDENCE_BYTES = 32 * 2**20
# Windows that may wait for a fit before whole windows are dropped: minutes of them, so that a slow computer loses none.
MOST_WAITING = 600


@dataclass(frozen=True)
class Gated:
    """The verdict on windows has changed, which is news; each one is counted."""

    gate: Gate


@dataclass(frozen=True)
class Dropped:
    """The fit takes too long: windows are dropped from here on."""

    start_s: float


Happening = Event | Gated | Refusal | Dropped


class Pipeline:
    """One robot's frames, windows and keeper, with everything that is counted on the way."""

    def __init__(self, robot: Robot, settings: KeeperSettings, memory: Memory | None = None) -> None:
        """Start with what is remembered."""
        self.rows = FrameRows(robot, robot.config.live.frames.ignore)
        self.keeper = Keeper(robot, settings, memory)
        self.verdicts: Counter[str] = Counter()
        self.dropped = 0
        self.row: Row | None = None  # of the newest frame, if it was one
        self.robot_s = 0.0  # the robot's clock, by the newest frame that could be used
        self._windows = LiveWindows(robot)
        self.gate: Gate | None = None  # of the newest window
        length = max(1, round(EVIDENCE_S / robot.config.timing.window_s))
        self._evidence: deque[Frames] = deque(maxlen=length)

    def add(self, frame: Frame, arrival_s: float = math.nan) -> list[Happening]:
        """Take in one frame; arrival_s is monotonic, nan in a replay."""
        row = self.rows.row(frame, arrival_s)
        self.row = None if isinstance(row, Refusal) else row
        if isinstance(row, Refusal):
            return [row] if row.new else []
        self.robot_s = row.timestamp
        if row.restarted:
            self._evidence.clear()
            self.keeper.restart()
        happened: list[Happening] = []
        for closed in self._windows.add(row):
            happened += self._closed(closed)
        return happened

    def evidence(self, since_s: float) -> Frames | None:
        """The newest frames from since_s on (NaN: all), at most EVIDENCE_S and EVIDENCE_BYTES; None if there are none.

        What was before a change would only blur what the host fits to it.
        """
        every = [f for f in self._evidence if len(f)]
        # The robot's clock may have begun anew since the change.
        parts = [f for f in every if not f.timestamp[-1] < since_s] or every
        if not parts:
            return None
        frames = Frames.concatenate(parts)
        row = 8 * (1 + frames.measured.shape[1] + frames.command.shape[1] + frames.context.shape[1])
        first = max(len(frames) - EVIDENCE_BYTES // row, 0)
        return frames.between(float(frames.timestamp[first]), float(frames.timestamp[-1]))

    def _closed(self, closed: Closed) -> list[Happening]:
        gate = closed.gate
        self.verdicts[gate.verdict] += 1
        self._evidence.append(closed.frames)
        happened: list[Happening] = []
        before = self.gate.verdict if self.gate is not None else "ok"
        if gate.verdict != before:
            happened.append(Gated(gate))
        self.gate = gate
        if closed.window is None:
            return happened
        if self.keeper.waiting >= MOST_WAITING:
            self.dropped += 1
            return [*happened, Dropped(gate.start_s)] if self.dropped == 1 else happened
        return [*happened, *self.keeper.add(closed.window)]
