"""Whether frames come, can be used, and make windows that can be used."""

from __future__ import annotations

import time

from gapd.live.edges import Edges
from gapd.live.pipeline import Happening, Pipeline
from gapd.live.problems import Problems
from gapd.live.status import Level
from gapd.live.telemetry import canonical
from gapd.measured.frame_rows import Refusal

# A source that has been silent for this long is stale.
STALE_S = 2.0
# So long without a usable window, though the robot moves, is no accident.
UNUSABLE_S = 60.0
# Windows of a robot at rest, or switched off, say nothing, and nothing is wrong.
AT_REST = ("ok", "not_excited", "disabled")


class SourceWatch:
    """Notes what is wrong with the source among the problems, and its changes in the log."""

    def __init__(self, edges: Edges, pipeline: Pipeline, problems: Problems) -> None:
        """Watch the edges' source and what the pipeline makes of it."""
        self._edges, self._pipeline, self._problems = edges, pipeline, problems
        self._accepted_s = self._usable_s = time.monotonic()
        self._usable = 0
        self._refusal: Refusal | None = None

    def accepted(self, now_s: float) -> None:
        """A frame could be used; monotonic."""
        self._accepted_s, self._refusal = now_s, None

    def heard(self, event: Happening) -> None:
        """What the pipeline says of a frame."""
        if isinstance(event, Refusal):
            self._refusal = event

    def look(self, now_s: float) -> None:
        """Tell what is wrong now; monotonic."""
        stale = self._silence(now_s)
        refused = self._refusal is not None and not stale and now_s - self._accepted_s > STALE_S
        told = f"no frame can be used: {self._refusal.text}; {self._refusal.remedy}" if self._refusal else ""
        self._problems.note("frames", Level.ERROR, told if refused else "")
        self._windows(now_s, frames=not stale and not refused)
        if self._edges.frames.last_fault:
            fault, self._edges.frames.last_fault = self._edges.frames.last_fault, ""
            canonical(self._edges.log, "frame_refused", level="warning", key="malformed", every_s=60.0, reason=fault)

    def _silence(self, now_s: float) -> bool:
        """Whether the source is stale."""
        silent_s = self._edges.frames.silent_s(now_s)
        stale = silent_s > STALE_S
        if stale and "source" not in self._problems:
            canonical(self._edges.log, "source_silent", level="warning", remedy="look at the robot and live.frames")
        elif not stale and "source" in self._problems:
            canonical(self._edges.log, "source_back")
        text = f"no frames for {silent_s:.0f} s: look at the robot and live.frames.endpoint" if stale else ""
        self._problems.note("source", Level.STALE, text)
        return stale

    def _windows(self, now_s: float, *, frames: bool) -> None:
        """Frames come, but none of their windows can be used."""
        usable, gate = self._pipeline.verdicts["ok"], self._pipeline.gate
        if usable != self._usable or not frames or gate is None or gate.verdict in AT_REST:
            self._usable, self._usable_s = usable, now_s
        lost_s = now_s - self._usable_s
        told = f"no usable window for {lost_s:.0f} s: {gate.sentence}" if gate and lost_s > UNUSABLE_S else ""
        if told and "windows" not in self._problems:
            canonical(self._edges.log, "windows_unusable", level="warning", reason=told)
        self._problems.note("windows", Level.WARN, told)
