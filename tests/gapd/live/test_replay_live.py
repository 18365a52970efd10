"""Recordings through the live pipeline: what they tell besides frames counts, and what is wrong is said."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from live_robot import KEEPER

from gapd.errors import InputError
from gapd.live import replay_live
from gapd.live.memory import Memory
from gapd.live.recorder import Recorder
from gapd.live.replay_live import ReplayLive
from gapd.measured import frame_rows
from gapd.messages.frames import Frame
from gapd.model.robot import Robot

Write = Callable[[Sequence[Frame | tuple[str, dict[str, Any]]]], Path]


@pytest.fixture(scope="module")
def robot(make_robot: Any, tiny_toml: str, tmp_path_factory: pytest.TempPathFactory) -> Robot:
    found: Robot = make_robot(tmp_path_factory.mktemp("replay"), robot=tiny_toml + KEEPER)
    return found


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes frames, as fast as they can be written, and events into a recording."""
    monkeypatch.setattr(frame_rows, "CLOCK_LIMIT_S", math.inf)

    def make(items: Sequence[Frame | tuple[str, dict[str, Any]]]) -> Path:
        recorder = Recorder(tmp_path, "tiny")
        for item in items:
            if isinstance(item, Frame):
                recorder.frame(item)
            else:
                recorder.event(1.0, *item)
        recorder.close()
        return recorder.finished[-1]

    return make


def replayed(robot: Robot, *paths: Path) -> ReplayLive:
    replay = ReplayLive(robot, None)
    for path in paths:
        replay.add(path)
    return replay


def started(robot: Robot, z: Any = None) -> tuple[str, dict[str, Any]]:
    memory = Memory(tuple((robot.parameters.z_nominal if z is None else z).tolist()))
    return "started", {"parameters": robot.parameters.fingerprint, "memory": memory}


def test_a_recording_of_frames_alone_is_commissioned_anew(
    robot: Robot, write: Write, commissioning: list[Frame]
) -> None:
    half = len(commissioning) // 2
    replay = replayed(robot, write(commissioning[:half]), write(commissioning[half:]))
    assert [line.what for line in replay.lines] == ["correct"]
    status = replay.status()
    assert (status.state, status.counters["frames"]) == ("watching", len(commissioning))
    (plain,) = replay_live.plain(replay.lines, robot)
    assert plain["values"]["actuator/servo/kp"] == pytest.approx(6.0, rel=0.02)
    assert replay_live.text(replay.lines).count("\n") == 0


def test_a_fit_ends_where_it_did_and_begins_from_what_was_known(
    robot: Robot, write: Write, commissioning: list[Frame]
) -> None:
    z = robot.parameters.to_scaled(robot.parameters.nominal * 1.2)
    ended = ("fit_ended", {"failed": False})
    replay = replayed(robot, write([started(robot, z), *commissioning[:2800], ended, *commissioning[2800:]]))
    assert [line.what for line in replay.lines] == ["correct"]
    assert replay.lines[0].time_s == commissioning[2799].timestamp
    assert "actuator/servo/kp 4.8" in replay.lines[0].text


def test_a_fit_that_had_not_ended_or_had_failed_decides_nothing(
    robot: Robot, write: Write, commissioning: list[Frame]
) -> None:
    unfinished = replayed(robot, write([started(robot), *commissioning]))
    assert (unfinished.lines, unfinished.pipeline.keeper.state) == ([], "fitting")
    failed = replayed(robot, write([started(robot), *commissioning[:2500], ("fit_ended", {"failed": True})]))
    assert (failed.lines, failed.pipeline.keeper.state) == ([], "commissioning")


def test_values_of_the_host_count(robot: Robot, write: Write, commissioning: list[Frame]) -> None:
    z = robot.parameters.to_scaled(robot.parameters.nominal * 1.1)
    replay = replayed(robot, write([started(robot), *commissioning[:100], ("adopted", {"z": tuple(z.tolist())})]))
    np.testing.assert_array_equal(replay.pipeline.keeper.z, z)


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        ("started", {"parameters": "another robot", "memory": {}}),
        ("started", {}),
        ("adopted", {}),
        ("offered", {"candidate": "c1"}),
    ],
)
def test_what_does_not_belong_to_it_is_said(
    robot: Robot, write: Write, commissioning: list[Frame], event: str, fields: dict[str, Any]
) -> None:
    path = write([*commissioning[:10], (event, fields)])
    with pytest.raises(InputError, match=rf"^{re.escape(str(path))}: '{event}' is not as .*; replay it with the gapd"):
        replayed(robot, path)


def test_no_frames_and_no_recording(robot: Robot, write: Write, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no frames; give a recording"):
        replayed(robot, write([started(robot)]))
    (tmp_path / "x.mcap").write_bytes(b"no recording")
    with pytest.raises(InputError, match=r"x\.mcap: "):
        replayed(robot, tmp_path / "x.mcap")


def test_events_of_others_are_nothing(robot: Robot, write: Write, commissioning: list[Frame]) -> None:
    replay = replayed(robot, write([*commissioning[:10], ("lunch", {"minutes": 30})]))
    assert replay.status().counters["frames"] == 10
    assert msgspec.json.encode(replay.status())
