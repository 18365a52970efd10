"""Windows: measurements and commands on the simulator's grid, and what the replay makes of them."""

from __future__ import annotations

from dataclasses import replace

import mujoco
import numpy as np
import pytest
from numpy.typing import NDArray

from gapd.gap.replay import Replay, gap
from gapd.measured.windows import Frames, Windows, cut, initial_state, window_starts
from gapd.model.robot import Robot, open_robot

Array = NDArray[np.float64]

STEP_S, KNOT_S, KNOTS = 0.002, 0.01, 6
MODEL = """
<mujoco>
  <compiler angle="radian" autolimits="true"/>
  <option timestep="0.002" integrator="implicitfast"><flag contact="disable"/></option>
  <worldbody>
    <body>
      <inertial mass="0.5" pos="0 0 -0.1" diaginertia="1e-4 1e-4 1e-4"/>
      <joint name="j" axis="0 1 0" damping="0.01" armature="0.003" frictionloss="0.01"/>
    </body>
  </worldbody>
  <actuator>
    <general name="servo" joint="j" gainprm="2" biastype="affine" biasprm="0 -2 -0.02" forcerange="-0.8 0.8"/>
  </actuator>
  <sensor>
    <jointpos name="j/position" joint="j"/><jointvel name="j/velocity" joint="j"/>
    <jointactuatorfrc name="j/effort" joint="j"/>
  </sensor>
</mujoco>
"""
PARAMETERS = """
[[parameter]]
name = "actuator/servo/torque_constant"
unit = "N·m/V"
nominal = 0.1
min = 0.02
max = 0.5
targets = [
    { field = "actuator_gainprm", element = "servo", factor = [3, "volts", "enabled"] },
    { field = "actuator_biasprm", element = "servo", index = 1, factor = [-3, "volts", "enabled"] },
    { field = "actuator_biasprm", element = "servo", index = 2, factor = [-0.2, "enabled"] },
]
[[parameter]]
name = "joint/j/offset"
unit = "rad"
nominal = 0
min = -0.5
max = 0.5
scale = "linear"
targets = [{ field = "qpos0", element = "j" }]
"""
ROBOT = """
robot = "servo"
model = "model.xml"
parameters = "parameters.toml"
timing = { knot_s = 0.01, knots = 6 }
channel = [
    { name = "j/position", unit = "rad", noise = 0.001 },
    { name = "j/velocity", unit = "rad/s", noise = 0.05 },
    { name = "j/effort", unit = "N·m", noise = 0.02 },
]
context = [{ name = "volts", nominal = 7 }, { name = "enabled", nominal = 1 }, { name = "idle", nominal = 0 }]
"""


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Robot:
    folder = tmp_path_factory.mktemp("servo")
    for name, text in (("model.xml", MODEL), ("parameters.toml", PARAMETERS), ("robot.toml", ROBOT)):
        (folder / name).write_text(text, encoding="utf-8")
    return open_robot(folder / "robot.toml")


def every(n: int, period_s: float) -> Array:
    return np.asarray(np.arange(n) * period_s, float)


def frames_at(times: Array, seed: int = 1) -> Frames:
    """Frames at the given times in which every number is different."""
    rng = np.random.default_rng(seed)
    n = len(times)
    return Frames(times, rng.normal(size=(n, 3)), rng.normal(size=(n, 1)), rng.normal(size=(n, 3)))


def test_measurement_on_a_frame_is_that_frame(robot: Robot) -> None:
    frames = frames_at(every(200, STEP_S))
    starts = np.array([0.0, 0.05, 0.118])
    windows = cut(frames, robot.layout, starts)
    for w, start in enumerate(starts):
        rows = round(start / STEP_S) + 5 * np.arange(KNOTS + 1)
        np.testing.assert_array_equal(windows.measured[w], frames.measured[rows])
    np.testing.assert_array_equal(windows.qpos0[:, 0], windows.measured[:, 0, 0])
    np.testing.assert_array_equal(windows.qvel0[:, 0], windows.measured[:, 0, 1])


def test_a_neighbour_that_is_absent_does_not_spoil_a_frame(robot: Robot) -> None:
    frames = frames_at(every(200, STEP_S))
    frames.measured[[4, 6, 9, 11]] = np.nan
    np.testing.assert_array_equal(
        cut(frames, robot.layout, np.array([0.0])).measured[0], frames.measured[5 * np.arange(KNOTS + 1)]
    )


def test_measurements_between_frames_are_linear(robot: Robot) -> None:
    times = every(100, 0.0037) + 0.001
    line = np.array([3.0, -2.0, 0.5])
    frames = replace(frames_at(times), measured=times[:, None] * line + 1.0)
    starts = times[[0, 9]]
    knots = starts[:, None] + np.arange(KNOTS + 1) * KNOT_S
    np.testing.assert_allclose(
        cut(frames, robot.layout, starts).measured, knots[..., None] * line + 1.0, rtol=1e-12, atol=1e-12
    )


def test_commands_and_context_hold_until_the_next_frame(robot: Robot) -> None:
    times = every(60, 0.004)
    frames = frames_at(times)
    windows = cut(frames, robot.layout, np.array([0.04]))
    active = 10 + np.arange(KNOTS * 5 + 1) // 2
    np.testing.assert_array_equal(windows.control[0], frames.command[active])
    np.testing.assert_array_equal(windows.context[0], frames.context[active])


@pytest.mark.parametrize(("late_s", "frame"), [(0.0001, 11), (0.0003, 10)])
def test_a_frame_stamped_slightly_late_still_acts_in_its_step(robot: Robot, late_s: float, frame: int) -> None:
    times = every(60, 0.004)
    times[11] += late_s  # of a step of 2 ms; a tenth is allowed
    frames = frames_at(times)
    windows = cut(frames, robot.layout, np.array([0.04]))
    np.testing.assert_array_equal(windows.control[0, 2], frames.command[frame])
    np.testing.assert_array_equal(windows.control[0, 3], frames.command[11])


@pytest.mark.parametrize("offset_steps", [-2, 0, 3])
def test_command_offset_moves_commands_and_nothing_else(robot: Robot, offset_steps: int) -> None:
    frames = frames_at(every(200, STEP_S))
    moved = cut(frames, robot.layout, np.array([0.1]), command_offset_s=offset_steps * STEP_S)
    rows = 50 - offset_steps + np.arange(KNOTS * 5 + 1)
    np.testing.assert_array_equal(moved.control[0], frames.command[rows])
    plain = cut(frames, robot.layout, np.array([0.1]))
    np.testing.assert_array_equal(moved.context, plain.context)
    np.testing.assert_array_equal(moved.measured, plain.measured)


def test_holes_are_absent_but_their_edges_are_measured(robot: Robot) -> None:
    times = every(200, STEP_S)
    keep = (times < 0.0301) | (times > 0.0449)  # last frame at 0.030, next at 0.046
    frames = frames_at(times[keep])
    measured = cut(frames, robot.layout, np.array([0.0])).measured[0]
    np.testing.assert_array_equal(np.isnan(measured[:, 0]), [False] * 4 + [True] + [False] * 2)
    np.testing.assert_array_equal(measured[3], frames.measured[15])


def test_one_lost_frame_is_bridged(robot: Robot) -> None:
    times = np.delete(every(200, STEP_S), 10)
    frames = frames_at(times)
    measured = cut(frames, robot.layout, np.array([0.0])).measured[0]
    np.testing.assert_allclose(measured[2], (frames.measured[9] + frames.measured[10]) / 2)


def test_windows_are_back_to_back_on_frames_and_inside(robot: Robot) -> None:
    times = every(100, 0.0037) + 5.0
    starts = window_starts(frames_at(times), robot.layout)
    assert set(starts) <= set(times)
    assert starts[0] == 5.0
    assert (np.diff(starts) >= 0.06 - 0.1 * STEP_S).all()
    assert (np.diff(starts) < 0.06 + 0.0037).all()
    assert starts[-1] + 0.06 <= times[-1]
    assert times[-1] - starts[-1] < 2 * 0.06 + 2 * 0.0037
    assert len(window_starts(frames_at(times[:10]), robot.layout)) == 0


def test_windows_wait_for_the_first_command(robot: Robot) -> None:
    frames = frames_at(every(100, STEP_S))
    assert window_starts(frames, robot.layout, command_offset_s=0.006)[0] == pytest.approx(0.006)


def test_velocity_without_a_channel_is_the_slope_of_the_positions(robot: Robot) -> None:
    times = every(100, STEP_S)
    frames = frames_at(times)
    frames.measured[:, 0] = 0.3 - 2.0 * times + 5.0 * times**2
    frames.measured[:, 1] = np.nan
    starts = np.array([0.0, 0.05, 0.1])
    position, velocity, _ = initial_state(frames, robot.layout, starts)
    np.testing.assert_allclose(position[:, 0], 0.3 - 2.0 * starts + 5.0 * starts**2, rtol=1e-12)
    np.testing.assert_allclose(velocity[:, 0], -2.0 + 10.0 * starts, rtol=1e-8)


def test_standard_deviation_of_the_initial_state(robot: Robot) -> None:
    rng = np.random.default_rng(0)
    starts, times = np.array([0.0, 0.05]), every(40, STEP_S)
    noisy = frames_at(times)
    noisy.measured[:, 1] = np.nan
    drawn, sd = [], np.empty((2, 2))
    for _ in range(800):
        noisy.measured[:, 0] = 0.001 * rng.normal(size=len(times))
        position, velocity, sd = initial_state(noisy, robot.layout, starts)
        drawn.append(np.concatenate([position, velocity], axis=1))
    np.testing.assert_allclose(np.std(drawn, axis=0), sd, rtol=0.08)
    assert sd[0, 1] > 2 * sd[1, 1]  # at the edge of the recording the slope is worse known
    measured = initial_state(frames_at(times), robot.layout, starts)[2]
    np.testing.assert_array_equal(measured, [[0.001, 0.05]] * 2)


def test_take_concatenate_and_source(robot: Robot) -> None:
    frames = frames_at(every(200, STEP_S))
    first = cut(frames, robot.layout, np.array([0.0, 0.06, 0.12]), source=4)
    second = cut(frames, robot.layout, np.array([0.18]), source=7)
    both = Windows.concatenate([first, second])
    assert len(both) == 4
    np.testing.assert_array_equal(both.source, [4, 4, 4, 7])
    np.testing.assert_array_equal(both.take([3, 0]).start_s, [0.18, 0.0])
    np.testing.assert_array_equal(both.take(both.source == 4).measured, first.measured)


def test_between_includes_its_ends() -> None:
    part = frames_at(every(10, 1.0)).between(2.0, 4.0)
    np.testing.assert_array_equal(part.timestamp, [2, 3, 4])
    assert len(part) == 3


def by_hand(robot: Robot, windows: Windows, row: int, torque_constant: float, offset: float) -> Array:
    """Sensors (K+1, 3) of one window from a plain mj_step loop that writes every field itself."""
    model = mujoco.MjModel.from_xml_string(MODEL)
    model.qpos0[0] = offset
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = windows.qpos0[row], windows.qvel0[row]
    sensors = []
    for step in range(KNOTS * 5 + 1):
        volts, enabled, _ = windows.context[row, step]
        model.actuator_gainprm[0, 0] = torque_constant * 3 * volts * enabled
        model.actuator_biasprm[0, 1] = -torque_constant * 3 * volts * enabled
        model.actuator_biasprm[0, 2] = -torque_constant * 0.2 * enabled
        data.ctrl[:] = windows.control[row, step]
        mujoco.mj_step(model, data)  # sensors are those of the state before the step
        sensors.append(data.sensordata.copy())
    return np.array(sensors)[::5]


def scene(robot: Robot) -> Windows:
    """Two windows; in the second the supply sags and the drive goes off, both between knots."""
    times = every(200, STEP_S)
    context = np.tile([7.0, 1.0, 0.0], (200, 1))
    context[63:, 1] = 0.0
    context[58:61, 0] = 5.5
    context[:, 2] = np.arange(200)  # a context that no parameter uses
    command = 0.8 * np.sin(30 * times)[:, None]
    frames = replace(frames_at(times), command=command, context=context)
    frames.measured[:, 0] = 0.2
    frames.measured[:, 1] = -1.0
    return cut(frames, robot.layout, np.array([0.0, 0.1]))


@pytest.mark.parametrize("threads", [1, 2])
def test_replay_with_context_that_changes_within_a_window_is_a_plain_loop(robot: Robot, threads: int) -> None:
    windows = scene(robot)
    got = Replay(robot, threads).run(windows, np.array([[0.1, 0.0], [0.17, 0.1]]))
    assert not got.failed.any()
    np.testing.assert_allclose(got.predicted[0], by_hand(robot, windows, 0, 0.1, 0.0), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(got.predicted[1], by_hand(robot, windows, 1, 0.17, 0.1), rtol=1e-9, atol=1e-11)
    assert (got.predicted[1, :3, 2] != 0).all()  # the drive works at first
    np.testing.assert_array_equal(got.predicted[1, 3:, 2], 0.0)  # and is off from 0.126 s on


def test_replay_does_not_depend_on_its_neighbours_or_history(robot: Robot) -> None:
    windows, theta = scene(robot), np.array([0.12, 0.05])
    replay = Replay(robot)
    together = replay.run(windows, theta).predicted
    replay.run(windows, np.array([0.4, -0.3]))
    np.testing.assert_array_equal(replay.run(windows, theta).predicted, together)
    for row in range(2):
        alone = Replay(robot).run(windows.take([row]), theta).predicted[0]
        np.testing.assert_allclose(alone, together[row], rtol=1e-12, atol=1e-14)
    assert replay.rollouts == 6


def test_features_are_state_command_and_force_at_the_knots(robot: Robot) -> None:
    windows = scene(robot)
    got = Replay(robot).run(windows, np.array([0.1, 0.0]))
    position, velocity, command, force = np.moveaxis(got.features, 2, 0)
    np.testing.assert_array_equal(position, got.predicted[:, :, 0])
    np.testing.assert_array_equal(velocity, got.predicted[:, :, 1])
    np.testing.assert_array_equal(command, windows.control[:, ::5, 0])
    np.testing.assert_allclose(force, got.predicted[:, :, 2], atol=1e-12)


def test_initial_state_can_be_given(robot: Robot) -> None:
    windows = scene(robot)
    given = Replay(robot).run(windows, np.array([0.1, 0.0]), np.full((2, 1), 0.5), np.full((2, 1), 2.0))
    moved = replace(windows, qpos0=np.full((2, 1), 0.5), qvel0=np.full((2, 1), 2.0))
    np.testing.assert_array_equal(given.predicted, Replay(robot).run(moved, np.array([0.1, 0.0])).predicted)
    np.testing.assert_array_equal(given.predicted[:, 0, :2], [[0.5, 2.0]] * 2)


def test_diverging_replay_fails_alone_and_is_nan(robot: Robot, capfd: pytest.CaptureFixture[str]) -> None:
    windows = scene(robot)
    start = np.array([[np.nan], [0.2]])
    got = Replay(robot).run(windows, np.array([0.1, 0.0]), start, windows.qvel0)
    np.testing.assert_array_equal(got.failed, [True, False])
    assert np.isnan(got.predicted[0]).all()
    np.testing.assert_array_equal(got.predicted[1], Replay(robot).run(windows, np.array([0.1, 0.0])).predicted[1])
    assert capfd.readouterr() == ("", "")


def test_gap_is_in_units_of_noise_at_the_knots_after_the_first(robot: Robot) -> None:
    windows = scene(robot)
    windows.measured[0, 2, 1] = np.nan
    rollouts = Replay(robot).run(windows, np.array([0.1, 0.0]))
    got = gap(windows, rollouts, robot.layout.noise)
    assert got.shape == (2, KNOTS, 3)
    wanted = (windows.measured[1, 4, 0] - rollouts.predicted[1, 4, 0]) / 0.001
    assert got[1, 3, 0] == pytest.approx(wanted, rel=1e-12)
    assert np.isnan(got[0, 1, 1])
    assert np.isnan(got).sum() == 1
