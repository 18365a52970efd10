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
    assert unfinished.ending().startswith(
        "the recording ends while a fit was being made (commissioning), whose outcome"
    )
    failed = replayed(robot, write([started(robot), *commissioning[:2500], ("fit_ended", {"failed": True})]))
    assert (failed.lines, failed.pipeline.keeper.state) == ([], "commissioning")


MISSING = re.compile(
    r"the recording ends (.*): at most (\d+) s of usable data are missing; replay it together with what .*"
)


def until(frames: Sequence[Frame], end_s: float) -> list[Frame]:
    return [frame for frame in frames if frame.timestamp <= end_s]


def missing(replay: ReplayLive) -> tuple[str, int]:
    """What the end of the recordings has cut off, and the seconds that are missing."""
    found = MISSING.fullmatch(replay.ending())
    assert found is not None, replay.ending()
    return found[1], int(found[2])


def test_a_recording_that_is_too_short_says_how_much_is_missing(
    robot: Robot, write: Write, commissioning: list[Frame]
) -> None:
    begin_s = commissioning[0].timestamp
    short = replayed(robot, write(until(commissioning, begin_s + 5.0)))
    what, seconds = missing(short)
    assert what == "before the robot is commissioned"
    assert 5 <= seconds <= 15
    enough = replayed(robot, write(until(commissioning, begin_s + 5.0 + seconds + 0.5)))
    assert ([line.what for line in enough.lines], enough.ending()) == (["correct"], "")


def test_a_change_at_the_end_says_how_much_is_missing(robot: Robot, write: Write, story: list[Frame]) -> None:
    first = write(until(story, 121.0))
    cut_off = replayed(robot, first)
    assert [line.what for line in cut_off.lines] == ["correct", "drift"]
    what, seconds = missing(cut_off)
    assert what == "while windows are gathered for a fit"
    cut_off.add(write([frame for frame in until(story, 121.0 + seconds + 1.0) if frame.timestamp > 121.0]))
    assert [line.what for line in cut_off.lines][:3] == ["correct", "drift", "correct"]


def test_the_time_between_fits_may_be_what_is_missing(
    make_robot: Any, tiny_toml: str, tmp_path: Path, write: Write, story: list[Frame]
) -> None:
    keeper = KEEPER.replace("min_interval_s = 10", "min_interval_s = 40")
    replay = replayed(make_robot(tmp_path, robot=tiny_toml + keeper), write(until(story, 131.0)))
    assert [line.what for line in replay.lines] == ["correct", "drift"]
    wanted_s = replay.lines[0].time_s + 40.0 - 131.0
    assert missing(replay)[1] == pytest.approx(wanted_s, abs=1.0)


def test_values_of_the_host_count(robot: Robot, write: Write, commissioning: list[Frame]) -> None:
    z = robot.parameters.to_scaled(robot.parameters.nominal * 1.1)
    replay = replayed(robot, write([started(robot), *commissioning[:100], ("adopted", {"z": tuple(z.tolist())})]))
    np.testing.assert_array_equal(replay.z, z)
    begun = missing(replayed(robot, write([started(robot), *commissioning[:800]])))[1]
    anew = replayed(robot, write([started(robot), *commissioning[:800], ("adopted", {"z": tuple(z.tolist())})]))
    assert missing(anew)[1] == pytest.approx(begun + 4.0, abs=1.0)  # what was gathered before counts no more


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


def test_recordings_come_in_their_order(robot: Robot, write: Write, commissioning: list[Frame]) -> None:
    first, second = write(commissioning[:100]), write(commissioning[100:200])
    assert replayed(robot, first, second).notes == []
    with pytest.raises(InputError, match=rf"{re.escape(str(first))}: was recorded before .*; give"):
        replayed(robot, second, first)


def test_a_recording_from_the_middle_of_a_run_is_named(robot: Robot, write: Write, commissioning: list[Frame]) -> None:
    middle = write([*commissioning[:100], ("fit_ended", {"failed": True}), *commissioning[100:200]])
    assert replayed(robot, middle).notes == [
        f"{middle}: begins in the middle of a run; give the recordings before it, too"
    ]


def test_a_recording_that_is_cut_short_is_named(
    robot: Robot, write: Write, commissioning: list[Frame], tmp_path: Path
) -> None:
    whole = write([started(robot), *commissioning[:2000]])
    cut = tmp_path / "cut.mcap"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    assert replayed(robot, whole).notes == []
    assert replayed(robot, cut).notes == [f"{cut}: is cut short; what was written last is missing"]


def test_a_daemon_that_began_anew_begins_its_problems_anew(
    robot: Robot, write: Write, commissioning: list[Frame]
) -> None:
    memory = Memory(tuple(robot.parameters.z_nominal.tolist()), verdict=("ERROR", "joint j: look for contact"))
    begun = "started", {"parameters": robot.parameters.fingerprint, "memory": memory}
    assert replayed(robot, write([begun, *commissioning[:100]])).status().problems == ("joint j: look for contact",)
    assert replayed(robot, write([begun, *commissioning[:100], started(robot)])).status().problems == ()


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
