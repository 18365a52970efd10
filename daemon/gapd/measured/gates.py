"""Gates: one verdict per candidate window, from the raw frames. Pure.

Only `ok` windows go on. Every other one is counted, and says which channel, which number, and what to do.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from gapd.measured.verdicts import (
    EDGE_FRAMES,
    Bench,
    Gate,
    Verdict,
    frame_period,
    order_gate,
    present_channels,
    time_breaks,
)
from gapd.measured.windows import Frames, window_starts
from gapd.model.robot import Robot

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """Frames in strictly increasing time, with the windows that start in them."""

    frames: Frames
    starts: Array  # (W,) s
    gates: tuple[Gate, ...]  # (W,), one for each start

    @property
    def usable(self) -> Array:
        """Starts of the ok windows, to be cut from `frames`."""
        return self.starts[[gate.verdict == "ok" for gate in self.gates]]


def count(gates: Sequence[Gate]) -> dict[Verdict, int]:
    """Windows per verdict, all verdicts named."""
    counts = Counter(gate.verdict for gate in gates)
    return {verdict: counts[verdict] for verdict in get_args(Verdict)}


def usable_starts(frames: Frames, robot: Robot) -> list[Run]:
    """Candidate windows in every strictly increasing run of the frames, each with a verdict.

    Where time breaks, a frame on each side is dropped, and the window that would have gone on is
    out_of_order; breaks within a window's number of frames count once.
    """
    edges = time_breaks(frames.timestamp)
    present = present_channels(frames)
    length = robot.config.timing.window_s
    period = frame_period(frames.timestamp)
    per_window = length / max(period, 1e-9)
    runs, lost_row = [], -np.inf
    for first, end in itertools.pairwise(edges):
        left = first + (EDGE_FRAMES if first > 0 else 0)
        right = end - (EDGE_FRAMES if end < len(frames) else 0)
        part = _rows(frames, slice(left, max(left, right)))
        starts = np.empty(0)
        if len(part) >= 2 and period <= length:
            starts = window_starts(part, robot.layout, robot.config.timing.command_offset_s)
        gates = judge(part, starts, robot, present)
        row = left if not len(starts) else left + int(np.searchsorted(part.timestamp, starts[-1] + length))
        if end < len(frames) and row >= lost_row + per_window:
            gates.append(order_gate(frames, end, float(frames.timestamp[min(row, end - 1)])))
            lost_row = row
        elif end == len(frames) and not gates and len(edges) == 2:
            gates.append(_no_window(frames, length, period))
        if gates:
            runs.append(Run(part, np.array([gate.start_s for gate in gates]), tuple(gates)))
    return runs


def judge(frames: Frames, starts: Array, robot: Robot, present: NDArray[np.bool_] | None = None) -> list[Gate]:
    """One gate per start (W,). `present` (C,): channels of the whole recording; default: of these frames."""
    if not len(starts):
        return []
    bench = Bench.of(frames, robot, present_channels(frames) if present is None else present)
    return [bench.judge(float(start)) for start in starts]


def _rows(frames: Frames, rows: slice) -> Frames:
    return Frames(
        frames.timestamp[rows], frames.measured[rows], frames.command[rows], frames.context[rows], frames.name
    )


def _no_window(frames: Frames, length: float, period: float) -> Gate:
    start = float(frames.timestamp[0]) if len(frames) else 0.0
    lasts = float(frames.timestamp[-1]) - start if len(frames) else 0.0
    if period > length:
        reason, remedy = f"a frame each {period:.3g} s", "give timestamps in seconds, or record faster"
    else:
        reason, remedy = f"{lasts:.3g} s recorded", "record longer"
    return Gate("missing", start, "", lasts, f"{reason}, a window lasts {length:g} s", remedy)
