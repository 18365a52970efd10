"""Windows that close as frames come are those of the recording."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gapd.live.live_windows import Closed, LiveWindows
from gapd.measured.frame_rows import Row
from gapd.measured.windows import Frames, cut, window_starts
from gapd.model.robot import Robot


@pytest.fixture(scope="module")
def frames(tiny: Robot, recorded: Any) -> Frames:
    found: Frames = recorded(tiny, tiny.parameters.nominal, 6.0, seed=3).frames
    return found


def rows_of(frames: Frames, keep: slice | list[int] = slice(None)) -> list[Row]:
    index = np.arange(len(frames))[keep]
    return [
        Row(float(frames.timestamp[i]), frames.measured[i], frames.command[i], frames.context[i], False) for i in index
    ]


def closed_by(robot: Robot, rows: list[Row]) -> list[Closed]:
    live = LiveWindows(robot)
    return [closed for row in rows for closed in live.add(row)]


def test_they_are_the_windows_of_the_recording_to_the_bit(tiny: Robot, frames: Frames) -> None:
    closed = closed_by(tiny, rows_of(frames))
    starts = window_starts(frames, tiny.layout)
    whole = cut(frames, tiny.layout, starts)
    assert len(closed) == len(starts)
    for n, live in enumerate(closed):
        assert live.gate.verdict == "ok"
        assert live.window is not None
        for name in ("control", "context", "measured", "qpos0", "qvel0", "x0_sd"):
            np.testing.assert_array_equal(getattr(live.window, name)[0], getattr(whole, name)[n])
        assert live.window.start_s[0] == pytest.approx(starts[n], abs=1e-9)


def test_frames_may_be_much_faster_than_the_steps(tiny: Robot, frames: Frames) -> None:
    time = np.arange(frames.timestamp[0], frames.timestamp[0] + 2.0, 1e-4)
    measured = np.stack([np.interp(time, frames.timestamp, c) for c in frames.measured.T], axis=1)
    measured += tiny.layout.noise * np.random.default_rng(0).normal(size=measured.shape)
    command = frames.command[np.searchsorted(frames.timestamp, time, side="right") - 1]
    fast = Frames(time, measured, command, np.zeros((len(time), 0)))
    assert [closed.gate.verdict for closed in closed_by(tiny, rows_of(fast))] == ["ok"] * 10


def test_their_frames_are_all_frames_once(tiny: Robot, frames: Frames) -> None:
    closed = closed_by(tiny, rows_of(frames))
    times = np.concatenate([live.frames.timestamp for live in closed])
    np.testing.assert_array_equal(times, frames.timestamp[: len(times)])


def test_a_hole_is_missing_and_sets_a_new_grid(tiny: Robot, frames: Frames) -> None:
    period = tiny.config.timing.window_s
    rows = [r for r in rows_of(frames) if not 1.05 <= r.timestamp < 2.33]
    closed = closed_by(tiny, rows)
    verdicts = {round(live.gate.start_s, 3): live.gate.verdict for live in closed}
    assert verdicts[1.0] == "missing"
    assert sum(v != "ok" for v in verdicts.values()) <= 2
    after = [live.gate.start_s for live in closed if live.gate.start_s > 1.5]
    assert after[0] == pytest.approx(2.33, abs=0.01)
    np.testing.assert_allclose(np.diff(after), period, atol=1e-9)


def test_a_clock_that_jumps_back_begins_anew(tiny: Robot, frames: Frames) -> None:
    first = rows_of(frames.between(3.0, 4.1))
    second = rows_of(frames.between(0.0, 1.1))
    closed = closed_by(tiny, [*first, second[0]._replace(restarted=True), *second[1:]])
    starts = [live.gate.start_s for live in closed]
    assert starts[:5] == pytest.approx([3.0, 3.2, 3.4, 3.6, 3.8])
    assert starts[5:] == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8])
    assert {live.gate.verdict for live in closed} == {"ok"}
