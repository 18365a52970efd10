"""Frames to rows: every value at its place, every refusal with a reason, and a clock that may jump."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gapd.measured.frame_rows import CLOCK_LIMIT_S, MOST_NAMED, FrameRows, Refusal, Row
from gapd.messages.frames import DECODER, ENCODER, Frame
from gapd.model.robot import Robot, open_robot

VOLTAGE = '[[context]]\nname = "supply_voltage"\nunit = "V"\nnominal = 12\nmin = 10\nmax = 14\n'


def edited(tiny_folder: Path, folder: Path, *changes: tuple[str, str]) -> Robot:
    """The tiny robot with changes to its robot.toml."""
    for name in ("model.xml", "parameters.toml", "robot.toml"):
        text = (tiny_folder / name).read_text(encoding="utf-8")
        for old, new in changes if name == "robot.toml" else ():
            assert old in text
            text = text.replace(old, new)
        (folder / name).write_text(text, encoding="utf-8")
    return open_robot(folder / "robot.toml")


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Robot:
    """The tiny robot, with a supply voltage."""
    return edited(tiny_folder, tmp_path_factory.mktemp("voltage"), ("[log.channels]", VOLTAGE + "[log.channels]"))


def frame(timestamp: float = 0.0, **fields: Any) -> Frame:
    given: dict[str, Any] = {"name": ("j",), "position": (0.1,), "velocity": (0.2,), "command": (0.3,)}
    return Frame(timestamp, **(given | fields))


def taken(row: Row | Refusal) -> Row:
    assert isinstance(row, Row), row
    return row


def refused(row: Row | Refusal) -> Refusal:
    assert isinstance(row, Refusal), row
    return row


def test_nouns_sensors_command_and_context_find_their_places(robot: Robot) -> None:
    rows = FrameRows(robot)
    row = taken(rows.row(frame(1.5, effort=(0.4,), context={"supply_voltage": 11.0})))
    assert row.timestamp == 1.5
    assert row.measured.tolist() == [0.1, 0.2, 0.4]
    assert (row.command.tolist(), row.context.tolist()) == ([0.3], [11.0])
    row = taken(rows.row(frame(1.6, velocity=(), sensors={"j/effort": 0.7, "j/position": 0.8})))
    np.testing.assert_equal(row.measured, [0.8, np.nan, 0.7])
    assert row.context.tolist() == [11.0], "held"
    assert (rows.accepted, sum(rows.refused.values()), rows.not_finite, rows.lost) == (2, 0, 0, None)


def test_context_is_nominal_until_a_frame_says_otherwise_and_rows_keep_theirs(robot: Robot) -> None:
    rows = FrameRows(robot)
    first = taken(rows.row(frame(0.0)))
    second = taken(rows.row(frame(0.1, context={"supply_voltage": 13.0})))
    assert (first.context.tolist(), second.context.tolist()) == ([12.0], [13.0])
    assert isinstance(rows.row(frame(0.2, name=("nobody",), context={"supply_voltage": 10.0})), Refusal)
    assert taken(rows.row(frame(0.3))).context.tolist() == [13.0], "a refused frame says nothing"


def test_rows_in_the_order_of_another_robot(arm: Robot) -> None:
    joints = arm.layout.joints[::-1]
    values = tuple(float(i) for i in range(7))
    row = taken(FrameRows(arm).row(Frame(0.0, joints, values, values, values, (0.0,) * 7)))
    expected = values[::-1]
    for channel, name in enumerate(arm.layout.channels):
        assert row.measured[channel] == expected[arm.layout.joints.index(name.split("/")[0])]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"position": (1.0, 2.0)}, "2 position values for 1 names"),
        ({"velocity": (1.0, 2.0)}, "2 velocity values for 1 names"),
        ({"effort": (1.0, 2.0, 3.0)}, "3 effort values for 1 names"),
        ({"name": ()}, "1 position values for 0 names"),
        ({"command": ()}, "0 command values for 1 actuators"),
        ({"command": (1.0, 2.0)}, "2 command values for 1 actuators"),
    ],
)
def test_wrong_lengths(robot: Robot, fields: dict[str, Any], text: str) -> None:
    rows = FrameRows(robot)
    refusal = refused(rows.row(frame(**fields)))
    assert (refusal.reason, refusal.text, refusal.new) == ("wrong_length", text, True)
    assert "send one" in refusal.remedy
    assert not refused(rows.row(frame(**fields))).new
    assert rows.refused["wrong_length"] == 2


def test_lengths_that_only_add_up_are_wrong(robot: Robot) -> None:
    shifted = frame(name=("j", "k"), position=(1.0,), velocity=(1.0, 2.0, 3.0))
    assert refused(FrameRows(robot, ("k",)).row(shifted)).reason == "wrong_length"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"name": ("jj",)}, "name 'jj': no joint of the model; did you mean 'j'?"),
        ({"sensors": {"j/effrt": 0.0}}, "sensors 'j/effrt': no [[channel]]; did you mean 'j/effort'?"),
        ({"context": {"voltage": 0.0}}, "context 'voltage': no [[context]]; did you mean 'supply_voltage'?"),
    ],
)
def test_unknown_names_are_named_once_then_counted(robot: Robot, fields: dict[str, Any], text: str) -> None:
    rows = FrameRows(robot)
    first, again = (refused(rows.row(frame(t, **fields))) for t in (0.0, 0.1))
    assert (first.reason, first.text) == ("unknown_name", text)
    assert (first.new, again.new) == (True, False)
    assert refused(rows.row(frame(0.2, name=("other",)))).new, "another unknown name is named too"
    assert rows.refused["unknown_name"] == 3


def test_ignored_names_are_left_out_but_never_context(robot: Robot) -> None:
    rows = FrameRows(robot, ("gripper", "voltage"))
    row = taken(rows.row(frame(name=("gripper", "j"), position=(9.0, 0.1), velocity=(9.0, 0.2))))
    np.testing.assert_equal(row.measured, [0.1, 0.2, np.nan])
    assert refused(rows.row(frame(0.1, context={"voltage": 1.0}))).reason == "unknown_name"


def test_a_name_that_is_there_twice(robot: Robot) -> None:
    twice = frame(name=("j", "j"), position=(1.0, 2.0), velocity=(1.0, 2.0))
    assert refused(FrameRows(robot).row(twice)).reason == "repeated_name"


def test_made_up_names_stay_cheap_and_printable(robot: Robot) -> None:
    rows = FrameRows(robot)
    refusals = [refused(rows.row(frame(float(i), name=(f"\x1b[31m{i}" + "x" * 5000,)))) for i in range(500)]
    assert sum(r.new for r in refusals) == MOST_NAMED
    assert max(len(r.text) for r in refusals) < 300
    assert "\x1b" not in refusals[0].text
    assert len(rows._plans) < 50
    assert rows.refused["unknown_name"] == 500


def test_values_that_are_not_finite_go_on_and_are_counted(robot: Robot) -> None:
    rows = FrameRows(robot)
    row = taken(rows.row(frame(position=(math.nan,), velocity=(math.inf,), command=(-math.inf,))))
    np.testing.assert_equal(row.measured, [np.nan, np.inf, np.nan])
    assert row.command.tolist() == [-math.inf]
    assert rows.not_finite == 3
    assert math.isnan(taken(rows.row(frame(0.1, context={"supply_voltage": math.nan}))).context[0])
    assert rows.not_finite == 4


@pytest.mark.parametrize("timestamp", [math.nan, math.inf, -math.inf])
def test_a_time_that_is_not_finite(robot: Robot, timestamp: float) -> None:
    rows = FrameRows(robot)
    assert refused(rows.row(frame(timestamp), 0.0)).reason == "not_finite_time"
    taken(rows.row(frame(1.0), 1.0))


def test_loss_is_told_from_the_sequence_or_not_at_all(robot: Robot) -> None:
    rows = FrameRows(robot)
    rows.row(frame(0.0))
    assert rows.lost is None
    for i, sequence in enumerate((10, 11, 14, 15, 0, 1, 3)):  # two lost, the source begins anew, one lost
        taken(rows.row(frame(1.0 + i / 100, sequence=sequence)))
    assert rows.lost == 3


def test_repeated_and_late_frames_are_backwards(robot: Robot) -> None:
    rows = FrameRows(robot)
    taken(rows.row(frame(1.0), 1.0))
    for late in (1.0, 0.99, 1.0 - CLOCK_LIMIT_S * 0.99):
        assert refused(rows.row(frame(late), 1.001)).reason == "backwards"
    assert not taken(rows.row(frame(1.001), 1.002)).restarted
    assert rows.refused["backwards"] == 3


@pytest.mark.parametrize("jump_s", [3600.0, 0.6, -0.6, -3600.0, 1e9])
def test_a_clock_jump_costs_one_frame_and_begins_anew(robot: Robot, jump_s: float) -> None:
    rows = FrameRows(robot)
    got = [rows.row(frame(5e3 + i / 100 + (jump_s if i >= 50 else 0)), 70 + i / 100) for i in range(100)]
    assert [i for i, row in enumerate(got) if isinstance(row, Refusal)] == [50]
    assert refused(got[50]).reason == "clock_jump"
    assert [i for i, row in enumerate(got) if isinstance(row, Row) and row.restarted] == [51]


def test_one_wild_timestamp_does_not_begin_anew(robot: Robot) -> None:
    rows = FrameRows(robot)
    got = [rows.row(frame(0.0 if i == 5 else 100 + i / 100), i / 100) for i in range(10)]
    assert [isinstance(row, Refusal) for row in got].count(True) == 1
    assert not any(row.restarted for row in got if isinstance(row, Row))


def test_two_sources_with_different_clocks_keep_the_first(robot: Robot) -> None:
    rows = FrameRows(robot)
    for i in range(100):
        taken(rows.row(frame(100 + i / 100), i / 100))
        assert refused(rows.row(frame(5 + i / 100), i / 100)).reason == "clock_jump"


@pytest.mark.parametrize("unit", [1e3, 1e6, 1e9])
def test_timestamps_that_are_no_seconds_jump_all_the_time(robot: Robot, unit: float) -> None:
    rows = FrameRows(robot)
    got = [rows.row(frame(unit * (1e6 + i / 1000)), i / 1000) for i in range(100)]
    assert sum(isinstance(row, Row) for row in got) <= 1
    assert "seconds" in refused(got[-1]).remedy


def test_a_busy_reader_a_pause_and_drift_are_no_jumps(robot: Robot) -> None:
    """Frames read 4 s late, then all at once; the robot off for an hour; clocks 500 ppm apart for a day."""
    rows = FrameRows(robot)
    late = [(i / 100, max(i / 100, 4.0) if i >= 50 else i / 100) for i in range(50, 400)]
    off = [(3600 + i / 100, 3600 + i / 100) for i in range(100)]
    drift = [(4000 + 20 * i * (1 + ppm), 4000.0 + 20 * i) for ppm in (5e-4,) for i in range(4320)]
    slow = [(95000 + 20 * i * (1 - 5e-4), 95000.0 + 20 * i) for i in range(4320)]
    for timestamp, arrival in [(i / 100, i / 100) for i in range(50)] + late + off + drift:
        assert not taken(rows.row(frame(timestamp), arrival)).restarted
    rows = FrameRows(robot)
    for timestamp, arrival in slow:
        assert not taken(rows.row(frame(timestamp), arrival)).restarted


def test_without_arrivals_only_jumps_back_are_seen(robot: Robot) -> None:
    rows = FrameRows(robot)
    times = (1.0, 1.01, 50.0, 50.01, 2.0, 2.01)
    got = [rows.row(frame(t)) for t in times]
    assert [isinstance(row, Row) for row in got] == [True, True, True, True, False, True]
    assert taken(got[-1]).restarted


def test_a_million_losses_and_the_largest_integers_are_only_numbers(robot: Robot) -> None:
    rows = FrameRows(robot)
    for i, sequence in enumerate((-(2**63), 2**63 - 1, 2**63 - 1)):
        row = rows.row(DECODER.decode(ENCODER.encode(frame(i / 10, sequence=sequence))), i / 10)
        taken(row)
    assert rows.lost == 2**64 - 2


def test_channels_by_other_names(tmp_path: Path, tiny_folder: Path) -> None:
    named = ('"j/position"\nunit', '"angle"\nsensor = "j/position"\nunit')
    robot = edited(tiny_folder, tmp_path, named, ('"j/position" = ', '"angle" = '))
    row = taken(FrameRows(robot).row(frame()))
    assert row.measured[robot.layout.channels.index("angle")] == 0.1
