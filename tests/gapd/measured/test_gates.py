"""Gates: every kind of bad window gets its own verdict, and healthy recordings get through."""

from __future__ import annotations

from dataclasses import replace

import mujoco
import numpy as np
import pytest
from numpy.typing import NDArray

from gapd.measured.gates import Run, count, judge, usable_starts
from gapd.measured.stuck import friction_bound, stuck_stretches
from gapd.measured.verdicts import Gate
from gapd.measured.windows import Frames, cut
from gapd.model.robot import Robot, open_robot

Array = NDArray[np.float64]

# Two position servos; joint a has a frictionloss parameter up to 0.5 N·m, joint b keeps the model's 0.1 N·m.
MODEL = """
<mujoco>
  <compiler angle="radian" autolimits="true"/>
  <option timestep="0.002" integrator="implicitfast"><flag contact="disable"/></option>
  <worldbody>
    <body>
      <joint name="a" axis="0 0 1" frictionloss="0.2" armature="0.1" range="-2 2"/>
      <geom size="0.05" pos="0.2 0 0"/>
      <body pos="0.2 0 0">
        <joint name="b" axis="0 0 1" frictionloss="0.1" armature="0.1"/><geom size="0.05" pos="0.1 0 0"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="a" joint="a" kp="50" kv="2"/><position name="b" joint="b" kp="50" kv="2"/>
  </actuator>
  <sensor>
    <jointpos name="a/position" joint="a"/><jointpos name="b/position" joint="b"/>
    <jointvel name="a/velocity" joint="a"/><jointactuatorfrc name="a/effort" joint="a"/>
  </sensor>
</mujoco>
"""
PARAMETERS = """
[[parameter]]
name = "joint/a/frictionloss"
unit = "N·m"
nominal = 0.2
min = 0.02
max = 0.5
targets = [{ field = "dof_frictionloss", element = "a" }]

[[parameter]]
name = "actuator/a/kp"
unit = "N·m/rad"
nominal = 50
min = 10
max = 250
targets = [
    { field = "actuator_gainprm", element = "a", factor = ["a_enabled"] },
    { field = "actuator_biasprm", element = "a", index = 1, factor = [-1, "a_enabled"] },
]
"""
ROBOT = """
robot = "two"
model = "model.xml"
parameters = "parameters.toml"
timing = { knot_s = 0.01, knots = 30 }
channel = [
    { name = "a/position", unit = "rad", noise = 0.0005 },
    { name = "b/position", unit = "rad", noise = 0.0005 },
    { name = "a/velocity", unit = "rad/s", noise = 0.01 },
    { name = "a/effort", unit = "N·m", noise = 0.1 },
]
context = [{ name = "a_enabled", nominal = 1, min = 0, max = 1 }]
"""
STEP_S = 0.002


def build(tmp_path_factory: pytest.TempPathFactory, parameters: str) -> Robot:
    folder = tmp_path_factory.mktemp("two")
    for name, text in (("model.xml", MODEL), ("parameters.toml", parameters), ("robot.toml", ROBOT)):
        (folder / name).write_text(text, encoding="utf-8")
    return open_robot(folder / "robot.toml")


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Robot:
    return build(tmp_path_factory, PARAMETERS)


@pytest.fixture(scope="module")
def unaware(tmp_path_factory: pytest.TempPathFactory) -> Robot:
    """The same robot with a model that does not know whether the drive is on."""
    return build(tmp_path_factory, PARAMETERS.replace('"a_enabled"', "1.0"))


def record(robot: Robot, command: Array, seed: int = 1) -> Frames:
    """Frames of a healthy robot at 500 Hz under commands (T, 2)."""
    rng, model = np.random.default_rng(seed), robot.model
    data = mujoco.MjData(model)
    measured = np.empty((len(command), 4))
    for step, row in enumerate(command):
        data.ctrl[:] = row
        mujoco.mj_step(model, data)
        measured[step] = data.sensordata
    measured += rng.normal(size=measured.shape) * robot.layout.noise
    context = np.ones((len(command), 1))
    times = np.asarray(np.arange(len(command)) * STEP_S, float)
    return Frames(times, measured, command, context, "test")


@pytest.fixture(scope="module")
def healthy(robot: Robot) -> Frames:
    """3 s of motion of both joints: 10 windows of 0.3 s."""
    time = np.arange(1502) * STEP_S
    return record(robot, np.stack([0.8 * np.sin(4 * time), 0.5 * np.sin(3 * time + 1)], axis=1))


@pytest.fixture(scope="module")
def resting(robot: Robot) -> Frames:
    return record(robot, np.zeros((1502, 2)))


def verdicts(frames: Frames, robot: Robot) -> list[str]:
    return [gate.verdict for run in usable_starts(frames, robot) for gate in run.gates]


def first_bad(frames: Frames, robot: Robot) -> Gate:
    return next(g for run in usable_starts(frames, robot) for g in run.gates if g.verdict != "ok")


def with_measured(frames: Frames, rows: slice, channel: int, value: float) -> Frames:
    measured = frames.measured.copy()
    measured[rows, channel] = value
    return replace(frames, measured=measured)


def frozen(frames: Frames, rows: slice, channel: int) -> Frames:
    return with_measured(frames, rows, channel, float(frames.measured[rows.start, channel]))


def without(frames: Frames, rows: slice | list[int]) -> Frames:
    keep = np.ones(len(frames), bool)
    keep[rows] = False
    return Frames(frames.timestamp[keep], frames.measured[keep], frames.command[keep], frames.context[keep])


def test_healthy_motion_is_ok(healthy: Frames, robot: Robot) -> None:
    assert verdicts(healthy, robot) == ["ok"] * 10


def test_count_names_every_verdict() -> None:
    counts = count([Gate("ok", 0.0), Gate("stuck", 1.0), Gate("ok", 2.0)])
    others = ("not_finite", "spike", "missing", "out_of_order", "not_excited", "disabled")
    assert counts == {"ok": 2, "stuck": 1, **dict.fromkeys(others, 0)}


def test_sentence_names_channel_number_and_remedy(healthy: Frames, robot: Robot) -> None:
    gate = first_bad(with_measured(healthy, slice(700, 702), 2, np.nan), robot)
    assert gate.sentence == (
        "window at 1.200 s not_finite: a/velocity: nan at 1.400 s; mend the source, or take the column out of [log]"
    )
    assert gate.value == 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("channel", range(4))
def test_not_finite_channel(healthy: Frames, robot: Robot, channel: int, bad: float) -> None:
    got = verdicts(with_measured(healthy, slice(310, 311), channel, bad), robot)
    assert got == ["ok"] * 2 + ["not_finite"] + ["ok"] * 7


@pytest.mark.parametrize(
    ("channel", "bad", "limits"),
    [
        (0, 15.0, "-14 .. 14"),  # three ranges beyond the limits of the joint
        (0, 1e11, "-14 .. 14"),
        (1, 1e3, "-5"),
        (2, -1e11, "-"),
        (3, 1e6, "-"),
    ],
)
def test_a_spike_costs_its_window_and_is_named(
    healthy: Frames, robot: Robot, channel: int, bad: float, limits: str
) -> None:
    broken = with_measured(healthy, slice(310, 311), channel, bad)
    assert verdicts(broken, robot) == ["ok"] * 2 + ["spike"] + ["ok"] * 7
    gate = first_bad(broken, robot)
    assert (gate.channel, gate.value) == (robot.layout.channels[channel], bad)
    assert gate.reason.startswith(f"{bad:.6g} at 0.620 s is outside {limits}")


def test_a_spike_in_a_command_or_in_context(healthy: Frames, robot: Robot) -> None:
    command, context = healthy.command.copy(), healthy.context.copy()
    command[310, 1] = 1e11
    context[1000, 0] = 60.0
    broken = replace(healthy, command=command, context=context)
    assert [i for i, v in enumerate(verdicts(broken, robot)) if v == "spike"] == [2, 6]
    assert first_bad(broken, robot).channel == "command b"


def test_a_short_move_after_a_long_rest_is_no_spike(robot: Robot) -> None:
    """Only the last 0.4 % of the recording move, in steps of the command."""
    command = np.zeros((60_000, 2))
    command[-240:] = (1.5, -1.5)
    assert "spike" not in verdicts(record(robot, command), robot)


def test_not_finite_command_and_context(healthy: Frames, robot: Robot) -> None:
    command, context = healthy.command.copy(), healthy.context.copy()
    command[310, 1], context[610, 0] = np.nan, np.inf
    got = verdicts(replace(healthy, command=command, context=context), robot)
    assert got == ["ok", "ok", "not_finite", "ok", "not_finite"] + ["ok"] * 5


@pytest.mark.parametrize("channel", [2, 3])
def test_channel_absent_throughout_is_no_fault(healthy: Frames, robot: Robot, channel: int) -> None:
    assert verdicts(with_measured(healthy, slice(None), channel, np.nan), robot) == ["ok"] * 10


def test_position_absent_throughout_is_missing(healthy: Frames, robot: Robot) -> None:
    gate = first_bad(with_measured(healthy, slice(None), 1, np.nan), robot)
    assert (gate.verdict, gate.channel) == ("missing", "b/position")


def test_everything_nan_raises_nothing(healthy: Frames, robot: Robot) -> None:
    nothing = Frames(
        np.full_like(healthy.timestamp, np.nan),
        np.full_like(healthy.measured, np.nan),
        np.full_like(healthy.command, np.nan),
        np.full_like(healthy.context, np.nan),
    )
    assert set(verdicts(nothing, robot)) == {"out_of_order"}
    assert set(verdicts(replace(nothing, timestamp=healthy.timestamp), robot)) == {"missing"}
    full = replace(nothing, timestamp=healthy.timestamp, measured=healthy.measured)
    assert set(verdicts(full, robot)) == {"not_finite"}


def test_hole_is_missing(healthy: Frames, robot: Robot) -> None:
    frames = without(healthy, slice(310, 320))
    gate = first_bad(frames, robot)
    assert gate.verdict == "missing"
    assert gate.start_s == pytest.approx(0.6)
    assert gate.value == pytest.approx(0.022)
    assert verdicts(frames, robot).count("missing") == 1


def test_one_lost_frame_is_bridged_but_two_are_missing(healthy: Frames, robot: Robot) -> None:
    assert verdicts(without(healthy, [310]), robot) == ["ok"] * 10
    assert verdicts(without(healthy, [310, 311]), robot).count("missing") == 1


def test_too_few_frames_without_a_long_hole(healthy: Frames, robot: Robot) -> None:
    gate = first_bad(without(healthy, list(range(301, 449, 2))), robot)
    assert gate.verdict == "missing"
    assert gate.reason == "77 of 151 frames"


def test_start_outside_the_recording_is_missing(healthy: Frames, robot: Robot) -> None:
    assert [g.verdict for g in judge(healthy, np.array([-0.1, 2.9, 50.0]), robot)] == ["missing"] * 3


@pytest.mark.parametrize("unit", [1e3, 1e6, 1e9])
def test_time_in_other_units_says_so(healthy: Frames, robot: Robot, unit: float) -> None:
    gate = first_bad(replace(healthy, timestamp=1.7e9 * unit + healthy.timestamp * unit), robot)
    assert gate.verdict == "missing"
    assert "give timestamps in seconds" in gate.remedy


@pytest.mark.parametrize("rows", [0, 1, 50])
def test_recording_shorter_than_a_window(healthy: Frames, robot: Robot, rows: int) -> None:
    gate = first_bad(without(healthy, slice(rows, None)), robot)
    assert (gate.verdict, gate.remedy) == ("missing", "record longer")


def test_clock_reset_splits_into_runs(healthy: Frames, robot: Robot) -> None:
    time = healthy.timestamp.copy()
    time[760:] -= time[760]
    runs = usable_starts(replace(healthy, timestamp=time), robot)
    assert [len(run.usable) for run in runs] == [5, 4]
    assert [g.verdict for g in runs[0].gates] == ["ok"] * 5 + ["out_of_order"]
    for run in runs:  # what is usable can be cut
        windows = cut(run.frames, robot.layout, run.usable)
        assert np.isfinite(windows.measured).all()


@pytest.mark.parametrize("shift_s", [-0.003, -0.002, np.nan, np.inf])
def test_one_bad_stamp_costs_one_window(healthy: Frames, robot: Robot, shift_s: float) -> None:
    time = healthy.timestamp.copy()
    time[760] += shift_s
    counts = count([g for run in usable_starts(replace(healthy, timestamp=time), robot) for g in run.gates])
    assert (counts["ok"], counts["out_of_order"]) == (9, 1)


def test_bad_order_next_to_a_window(healthy: Frames, robot: Robot) -> None:
    time = healthy.timestamp.copy()
    time[299] = time[300]
    starts = np.array([0.294, 0.298, 0.6, 0.602, 0.604])
    got = [g.verdict for g in judge(replace(healthy, timestamp=time), starts, robot)]
    assert got == ["ok", "out_of_order", "out_of_order", "out_of_order", "ok"]


def test_doubled_stamps_are_counted_by_windows(healthy: Frames, robot: Robot) -> None:
    runs = usable_starts(replace(healthy, timestamp=np.repeat(healthy.timestamp[::2], 2)), robot)
    counts = count([g for run in runs for g in run.gates])
    assert counts["ok"] == 0
    assert 8 <= counts["out_of_order"] <= 20  # 3 s, not 751 breaks


def test_time_running_backwards(healthy: Frames, robot: Robot) -> None:
    assert set(verdicts(replace(healthy, timestamp=healthy.timestamp[::-1]), robot)) == {"out_of_order"}


@pytest.mark.parametrize("channel", [0, 1, 2, 3])
def test_sensor_frozen_throughout(healthy: Frames, robot: Robot, channel: int) -> None:
    assert verdicts(frozen(healthy, slice(0, 1502), channel), robot) == ["stuck"] * 10


@pytest.mark.parametrize("channel", [0, 1, 2, 3])
def test_sensor_frozen_for_a_while(healthy: Frames, robot: Robot, channel: int) -> None:
    got = verdicts(frozen(healthy, slice(310, 850), channel), robot)
    assert got == ["ok"] * 2 + ["stuck"] * 4 + ["ok"] * 4


def test_stuck_names_channel_and_value(healthy: Frames, robot: Robot) -> None:
    frames = frozen(healthy, slice(310, 850), 0)
    gate = first_bad(frames, robot)
    assert gate.channel == "a/position"
    assert gate.value == frames.measured[310, 0]


def test_short_freeze_shows_in_the_jump_after_it(robot: Robot) -> None:
    """Joint b has no velocity channel, and friction could hold what its slow command asks for in 0.32 s."""
    frames = record(robot, np.outer(np.arange(1502) * STEP_S, [0.0, 0.02]))
    stretches = stuck_stretches(frozen(frames, slice(980, 1140), 1), robot)
    assert [(s.channel, s.first, s.last) for s in stretches] == [(1, 980, 1139)]
    assert "jumps" in stretches[0].reason


def test_start_from_rest_is_no_jump(robot: Robot) -> None:
    command = np.zeros((1502, 2))
    command[700:] = 0.4
    frames = record(robot, command)
    clean = frames.measured.copy()
    clean[:700, :2] = 0.0
    assert stuck_stretches(replace(frames, measured=np.round(clean, 3)), robot) == []


def test_quantised_encoder_at_standstill_is_not_stuck(resting: Frames, robot: Robot) -> None:
    still = replace(resting, measured=np.zeros_like(resting.measured))
    assert stuck_stretches(still, robot) == []
    assert verdicts(still, robot) == ["not_excited"] * 10


def test_velocity_quantised_to_zero_in_slow_motion_is_not_stuck(robot: Robot) -> None:
    # 0.005 rad/s is half a standard deviation of the velocity channel.
    command = np.stack([0.005 * np.arange(1502) * STEP_S, np.zeros(1502)], axis=1)
    frames = with_measured(record(robot, command), slice(None), 2, 0.0)
    assert [s for s in stuck_stretches(frames, robot) if s.channel == 2] == []


def test_joint_that_friction_holds_is_not_stuck(healthy: Frames, robot: Robot) -> None:
    """Friction of 0.5 N·m on joint a holds commands that differ by 1 N·m, and with load some more."""
    measured, command = healthy.measured.copy(), healthy.command.copy()
    measured[:, [0, 2, 3]] = 0.0
    command[:, 0] = np.where(np.arange(1502) // 100 % 2, 0.009, -0.009)  # +- 0.45 N·m
    second = slice(500, None)  # shorter than the recording in which a joint has to move once
    frames = without(replace(healthy, measured=measured, command=command), second)
    assert stuck_stretches(frames, robot) == []
    stretches = stuck_stretches(replace(frames, command=frames.command * [20, 1]), robot)
    assert [(s.channel, s.first, s.last) for s in stretches] == [(0, 0, 499)]


def test_joint_that_never_moves_in_a_whole_recording_is_stuck(healthy: Frames, robot: Robot) -> None:
    measured, command = healthy.measured.copy(), healthy.command.copy()
    measured[:, [0, 2, 3]] = 0.0
    command[:, 0] = np.where(np.arange(1502) // 100 % 2, 0.009, -0.009)
    stretches = stuck_stretches(replace(healthy, measured=measured, command=command), robot)
    assert [s.channel for s in stretches] == [0]


def test_joint_at_its_limit_is_not_stuck(healthy: Frames, robot: Robot) -> None:
    measured, command = healthy.measured.copy(), healthy.command.copy()
    measured[:, 0], measured[:, 2:] = 1.999, 0.0
    command[:, 0] += 3.0
    assert stuck_stretches(replace(healthy, measured=measured, command=command), robot) == []


def test_drive_that_is_off_explains_a_resting_joint(healthy: Frames, robot: Robot) -> None:
    measured = healthy.measured.copy()
    measured[:, [0, 2, 3]] = 0.0
    frames = replace(healthy, measured=measured, context=np.zeros_like(healthy.context))
    assert stuck_stretches(frames, robot) == []
    assert len(stuck_stretches(replace(frames, context=healthy.context), robot)) == 1


def test_friction_bound_is_the_parameters_upper_bound(robot: Robot) -> None:
    np.testing.assert_array_equal(friction_bound(robot), [0.5, 0.1])


def test_rest_is_not_excited(resting: Frames, robot: Robot) -> None:
    assert verdicts(resting, robot) == ["not_excited"] * 10


def test_command_that_moves_nothing_is_still_worth_learning_from(resting: Frames, robot: Robot) -> None:
    """The joint sticks: that tells about friction."""
    command = resting.command.copy()
    command[:, 1] = np.linspace(0, 0.2, 1502)
    assert verdicts(replace(resting, command=command), robot) == ["ok"] * 10


def test_drive_off_and_at_rest_is_disabled(resting: Frames, robot: Robot) -> None:
    context = resting.context.copy()
    context[310:] = 0.0
    gates = [g for run in usable_starts(replace(resting, context=context), robot) for g in run.gates]
    assert [g.verdict for g in gates] == ["not_excited"] * 3 + ["disabled"] * 7
    assert gates[-1].channel == "a_enabled"


def test_drive_off_in_motion_is_ok_as_the_model_knows_it(healthy: Frames, robot: Robot) -> None:
    assert verdicts(replace(healthy, context=np.zeros_like(healthy.context)), robot) == ["ok"] * 10


def test_drive_off_in_motion_is_disabled_where_the_model_does_not_know(healthy: Frames, unaware: Robot) -> None:
    context = np.ones_like(healthy.context)
    context[310:] = 0.0
    got = verdicts(replace(healthy, context=context), unaware)
    assert got == ["ok"] * 3 + ["disabled"] * 7


def test_every_candidate_is_judged_once(healthy: Frames, robot: Robot) -> None:
    run = usable_starts(healthy, robot)[0]
    assert isinstance(run, Run)
    assert len(run.starts) == len(run.gates)
    np.testing.assert_array_equal(run.starts, [g.start_s for g in run.gates])
    np.testing.assert_allclose(run.starts, np.arange(10) * 0.3, atol=1e-9)
