"""The batch replay against plain mj_step loops on recompiled models; failures stay quiet, alone and visible."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from numpy.typing import NDArray

from gapd.gap import replay as replay_module
from gapd.gap.replay import Replay, Unmodelled, gap
from gapd.measured.windows import Windows, cut, window_starts
from gapd.model.parameters import Parameter, ParameterSet, Target
from gapd.model.robot import Robot, assemble

Array = NDArray[np.float64]

ARM = Path(__file__).parents[3] / "models" / "arm7" / "model.xml"


@pytest.fixture(scope="module")
def arm_windows(arm: Robot, windows_of: Any) -> Windows:
    windows: Windows = windows_of(arm, arm.parameters.nominal, 3, seed=4)
    return windows


@pytest.fixture(scope="module")
def tiny_windows(tiny: Robot, windows_of: Any) -> Windows:
    windows: Windows = windows_of(tiny, tiny.parameters.nominal, 10, seed=4)
    return windows


def recompiled(robot: Robot, physical: Array) -> mujoco.MjModel:
    """The arm with these parameters, edited in its MJCF: what writing in place must be equal to."""
    spec = mujoco.MjSpec.from_file(str(ARM))
    for name, value in zip(robot.parameters.names, physical, strict=True):
        kind, element, attribute = name.split("/")
        if kind == "joint":
            joint = spec.joint(element)
            current = getattr(joint, attribute)
            setattr(joint, attribute, [value, 0, 0] if np.size(current) == 3 else value)
        elif kind == "actuator":
            motor = spec.actuator(element)
            motor.gainprm = np.array(motor.gainprm) * value
            motor.biasprm = np.array(motor.biasprm) * value
        else:
            body = spec.body(element)
            body.inertia = np.array(body.inertia) * value / body.mass
            body.mass = value
    return spec.compile()


def plain_loop(
    model: mujoco.MjModel, windows: Windows, row: int, force: Array | None = None
) -> list[tuple[Array, ...]]:
    """Position, velocity, sensors and actuator forces of the state before each of the N+1 steps."""
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = windows.qpos0[row], windows.qvel0[row]
    rows: list[tuple[Array, ...]] = []
    for step in range(windows.control.shape[1]):
        data.ctrl[:] = windows.control[row, step]
        if force is not None:
            data.qfrc_applied[:] = force[row, step]
        state = (data.qpos.copy(), data.qvel.copy())
        mujoco.mj_step(model, data)
        rows.append((*state, data.sensordata.copy(), data.actuator_force.copy()))
    return rows


def at_knots(robot: Robot, rows: list[tuple[Array, ...]], what: int) -> Array:
    return np.array([row[what] for row in rows])[:: robot.layout.substeps]


def test_replay_with_other_parameters_is_a_plain_loop_on_the_recompiled_model(arm: Robot, arm_windows: Windows) -> None:
    physical = arm.parameters.draw(np.random.default_rng(3), 3)
    assert np.abs(physical[:, -1] - 1).min() > 0.1, "the payload must differ from the model's"
    got = Replay(arm, 2).run(arm_windows, physical)
    assert not got.failed.any()
    nv = arm.model.nv
    for w in range(3):
        rows = plain_loop(recompiled(arm, physical[w]), arm_windows, w)
        wanted = at_knots(arm, rows, 2)[:, arm.layout.sensor]
        # Position, velocity and effort, all at the same instants: those of the state before a step.
        np.testing.assert_allclose(got.predicted[w], wanted, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(got.features[w, :, :nv], at_knots(arm, rows, 0), rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(got.features[w, :, nv : 2 * nv], at_knots(arm, rows, 1), rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(got.features[w, :, -arm.model.nu :], at_knots(arm, rows, 3), rtol=1e-8, atol=1e-8)


def test_payload_in_place_moves_what_is_derived_from_mass(arm: Robot) -> None:
    """Constants that mj_setConst derives: without it the constraint solver would see the old payload."""
    physical = arm.parameters.vector({"body/payload/mass": 4.0})
    written = mujoco.MjModel.from_xml_path(str(ARM))
    arm.binding.write(written, physical, np.zeros(0))
    wanted = recompiled(arm, physical)
    for field in ("body_mass", "body_inertia", "body_subtreemass", "dof_invweight0", "body_invweight0", "dof_M0"):
        np.testing.assert_allclose(getattr(written, field), getattr(wanted, field), rtol=1e-9, err_msg=field)
    assert written.body_subtreemass[0] != arm.model.body_subtreemass[0]


@pytest.mark.parametrize("threads", [2, 3])
def test_number_of_threads_does_not_change_a_bit(arm: Robot, arm_windows: Windows, threads: int) -> None:
    physical = arm.parameters.draw(np.random.default_rng(5), 3)
    one, many = (Replay(arm, n).run(arm_windows, physical) for n in (1, threads))
    np.testing.assert_array_equal(many.predicted, one.predicted)
    np.testing.assert_array_equal(many.features, one.features)


def test_order_and_chunks_do_not_change_a_bit(
    tiny: Robot, tiny_windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    physical = tiny.parameters.draw(np.random.default_rng(6), 10)
    plain = Replay(tiny).run(tiny_windows, physical)
    order = np.random.default_rng(7).permutation(10)
    shuffled = Replay(tiny).run(tiny_windows.take(order), physical[order])
    np.testing.assert_array_equal(shuffled.predicted, plain.predicted[order])
    monkeypatch.setattr(replay_module, "CHUNK", 3)
    force = np.zeros((10, tiny.layout.steps + 1, 1))
    pieces = Replay(tiny)
    for got in (pieces.run(tiny_windows, physical), pieces.run(tiny_windows, physical, unmodelled=Unmodelled(force))):
        np.testing.assert_array_equal(got.predicted, plain.predicted)
        np.testing.assert_array_equal(got.features, plain.features)
    assert pieces.rollouts == 20


def test_a_force_acts_at_its_joint_in_each_step_and_is_gone_afterwards(arm: Robot, arm_windows: Windows) -> None:
    rng = np.random.default_rng(8)
    force = rng.normal(size=(3, arm.layout.steps + 1, arm.model.nv))
    replay, physical = Replay(arm), arm.parameters.nominal
    before = replay.run(arm_windows, physical)
    got = replay.run(arm_windows, physical, unmodelled=Unmodelled(force))
    model = recompiled(arm, physical)
    for w in range(3):
        wanted = at_knots(arm, plain_loop(model, arm_windows, w, force), 2)[:, arm.layout.sensor]
        np.testing.assert_allclose(got.predicted[w], wanted, rtol=1e-8, atol=1e-9)
    np.testing.assert_array_equal(replay.run(arm_windows, physical).predicted, before.predicted)


def test_an_addition_to_the_commands_is_that_command_and_gone_afterwards(arm: Robot, arm_windows: Windows) -> None:
    command = np.random.default_rng(9).normal(size=arm_windows.control.shape) * 0.01
    replay, physical = Replay(arm), arm.parameters.nominal
    before = replay.run(arm_windows, physical)
    got = replay.run(arm_windows, physical, unmodelled=Unmodelled(command=command))
    told = Replay(arm).run(replace(arm_windows, control=arm_windows.control + command), physical)
    np.testing.assert_array_equal(got.predicted, told.predicted)
    np.testing.assert_array_equal(replay.run(arm_windows, physical).predicted, before.predicted)


def test_a_rotated_body_is_that_of_the_model_with_its_frame_turned_and_straight_afterwards(
    arm: Robot, arm_windows: Windows
) -> None:
    physical, replay = arm.parameters.nominal * 1.1, Replay(arm)
    rotation = np.zeros((arm.model.nbody, 3))
    link = int(arm.model.body("link4").id)
    rotation[link] = (0.03, -0.04, 0.01)
    before = replay.run(arm_windows, physical)
    got = replay.run(arm_windows, physical, unmodelled=Unmodelled(rotation=rotation))
    model, turn, turned = recompiled(arm, physical), np.empty(4), np.empty(4)
    size = float(np.linalg.norm(rotation[link]))
    mujoco.mju_axisAngle2Quat(turn, rotation[link] / size, size)
    mujoco.mju_mulQuat(turned, model.body_quat[link], turn)
    model.body_quat[link] = turned
    mujoco.mj_setConst(model, mujoco.MjData(model))
    for w in range(3):
        wanted = at_knots(arm, plain_loop(model, arm_windows, w), 2)[:, arm.layout.sensor]
        np.testing.assert_allclose(got.predicted[w], wanted, rtol=1e-7, atol=1e-8)
    np.testing.assert_array_equal(replay.run(arm_windows, physical).predicted, before.predicted)
    again = replay.run(arm_windows, physical, unmodelled=Unmodelled(rotation=0.0 * rotation))
    np.testing.assert_allclose(again.predicted, before.predicted, rtol=1e-9, atol=1e-11)


def test_a_rotation_turns_what_a_parameter_wrote_and_leaves_no_other_body_turned(
    arm: Robot, arm_windows: Windows
) -> None:
    """A frame that a parameter moves stays moved beside a hypothesis about it; runs do not add up."""
    written = int(arm.model.body("link2").id)
    target = (Target("body_quat", "link2", 1),)
    moved = Parameter("body/link2/quat", 0.02, -0.1, 0.1, target, "", "linear")
    robot = assemble(arm.config, arm.model, ParameterSet([*arm.parameters.every, moved]))
    replay, physical = Replay(robot), robot.parameters.nominal
    rotations = np.zeros((3, arm.model.nbody, 3))
    rotations[range(2), [int(arm.model.body(b).id) for b in ("link4", "link5")], 0] = 0.03
    for rotation in rotations:
        got = replay.run(arm_windows, physical, unmodelled=Unmodelled(rotation=rotation))
        fresh = Replay(robot).run(arm_windows, physical, unmodelled=Unmodelled(rotation=rotation))
        np.testing.assert_array_equal(got.predicted, fresh.predicted)
    plain = replay.run(arm_windows, physical)
    np.testing.assert_allclose(got.predicted, plain.predicted, rtol=1e-9, atol=1e-11)
    rotations[2, written, 0] = 1e-9
    got = replay.run(arm_windows, physical, unmodelled=Unmodelled(rotation=rotations[2]))
    np.testing.assert_allclose(got.predicted, plain.predicted, rtol=0, atol=1e-6)


def test_a_delayed_actuator_starts_with_the_commands_of_before_its_window(
    make_robot: Any, tiny_folder: Path, tmp_path: Path, recorded: Any
) -> None:
    """With the zeros of a reset every window would begin with a kick of 25 noise standard deviations."""
    model = (tiny_folder / "model.xml").read_text(encoding="utf-8")
    late = model.replace('<position name="servo"', '<position delay="0.02" nsample="8" interp="linear" name="servo"')
    robot = make_robot(tmp_path, model=late)
    recording = recorded(robot, robot.parameters.nominal, 4.0, 1)
    windows = cut(recording.frames, robot.layout, window_starts(recording.frames, robot.layout))
    steps = np.round(windows.start_s / robot.layout.step_s).astype(int)
    windows = replace(windows, qpos0=recording.qpos[steps], qvel0=recording.qvel[steps])
    left = gap(windows, Replay(robot).run(windows, robot.parameters.nominal), robot.layout.noise)
    assert np.sqrt(np.mean(left**2)) < 1.15


def test_divergence_on_the_way_is_seen_quiet_and_stays_with_its_window(
    tiny: Robot, tiny_windows: Windows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """MuJoCo resets such a state and goes on: its numbers are finite, and mean nothing."""
    monkeypatch.chdir(tmp_path)
    control = tiny_windows.control.copy()
    control[4, 10:] = 1e13
    replay, physical = Replay(tiny), tiny.parameters.nominal
    got = replay.run(replace(tiny_windows, control=control), physical)
    np.testing.assert_array_equal(np.flatnonzero(got.failed), [4])
    assert np.isnan(got.predicted[4]).all()
    plain = replay.run(tiny_windows, physical)
    assert not plain.failed.any(), "a failure must not stick to the batch"
    others = np.arange(10) != 4
    np.testing.assert_array_equal(got.predicted[others], plain.predicted[others])
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_a_context_of_one_window_does_not_reach_another(servo: Robot, windows_of: Any) -> None:
    """The supply sags in one window and in the middle of it; the others keep their voltage."""
    windows: Windows = windows_of(servo, servo.parameters.nominal, 4, seed=1)
    column = servo.config.context_names.index("supply_voltage")
    context = windows.context.copy()
    context[2, 50:, column] = 6.0
    replay, physical = Replay(servo), servo.parameters.nominal
    plain, got = replay.run(windows, physical), replay.run(replace(windows, context=context), physical)
    np.testing.assert_allclose(got.predicted[[0, 1, 3]], plain.predicted[[0, 1, 3]], rtol=0, atol=1e-12)
    moved = np.abs(got.predicted[2] - plain.predicted[2])[:, 0]
    knot = 50 // servo.layout.substeps
    np.testing.assert_array_equal(moved[: knot + 1], 0.0)
    assert moved[-1] > 0
    np.testing.assert_array_equal(replay.run(windows, physical).predicted, plain.predicted)
