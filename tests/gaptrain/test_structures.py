"""Hidden structure of stand-ins: what each does to a simulation, and on what it is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from mujoco import batch

from gapd.errors import InputError
from gapd.model.robot import Robot
from gaptrain.structures import backlash, bent_link

SERVO = '<position name="servo" joint="j" kp="4"/>'
DAMPED = '<position name="servo" joint="j" kp="4" kv="0.3"/>'
HALF_GAP = 0.05


@pytest.fixture
def damped(make_robot: Any, tiny_folder: Path, tmp_path: Path) -> Robot:
    """The tiny robot with velocity feedback in its servo."""
    model = (tiny_folder / "model.xml").read_text(encoding="utf-8")
    return make_robot(tmp_path, model=model.replace(SERVO, DAMPED))


def driven(robot: Robot, command: Callable[[int], float], steps: int, half_gap: float) -> tuple[np.ndarray, np.ndarray]:
    """Position and force of the actuator before each step, with backlash."""
    sims = batch.Batch(robot.model, 1, 1)
    apply = backlash(robot, "j", half_gap)(sims)
    qpos, ctrl, force = (sims.bind(name) for name in ("qpos", "ctrl", "qfrc_actuator"))
    rows = []
    for step in range(steps):
        ctrl[:] = command(step)
        apply()
        before = float(qpos[0, 0])
        sims.step()
        rows.append((before, float(force[0, 0])))
    position, torque = np.array(rows).T
    return position, torque


def test_a_load_rests_on_the_face_that_its_servo_holds_it_with(damped: Robot) -> None:
    """Held out to the side, the arm hangs half a gap below where it would without."""
    free, _ = driven(damped, lambda _: 1.0, 3000, 0.0)
    played, torque = driven(damped, lambda _: 1.0, 3000, HALF_GAP)
    assert torque[-1] > 0.1, "the servo must carry something"
    # The servo sees its command less half the gap, so the joint moves by that share of it that gravity leaves.
    stiffness = 4.0 + 0.5 * 9.81 * 0.1 * np.cos(played[-1])
    assert free[-1] - played[-1] == pytest.approx(4.0 * HALF_GAP / stiffness, rel=0.15)


def test_no_force_crosses_the_gap_and_contact_only_pushes(damped: Robot) -> None:
    position, torque = driven(damped, lambda step: 0.6 * np.sin(0.02 * step), 2000, HALF_GAP)
    assert np.isfinite(position).all()
    inside = torque == 0.0
    assert 0.02 < inside.mean() < 0.9
    # The force changes its sign only through the gap.
    signs = np.sign(torque)
    assert not ((signs[1:] * signs[:-1]) < 0).any()


def test_without_a_gap_nothing_changes(damped: Robot) -> None:
    played, _ = driven(damped, lambda step: 0.6 * np.sin(0.02 * step), 500, 0.0)
    data = mujoco.MjData(damped.model)
    plain = []
    for step in range(500):
        data.ctrl[:] = 0.6 * np.sin(0.02 * step)
        plain.append(float(data.qpos[0]))
        mujoco.mj_step(damped.model, data)
    np.testing.assert_allclose(played, plain, atol=1e-9)


def test_a_servo_that_would_cross_the_gap_at_once_is_refused(tiny: Robot) -> None:
    with pytest.raises(InputError, match=r"backlash at j: .* stiffness 4 and damping 0, .* choose a joint"):
        backlash(tiny, "j", HALF_GAP)(batch.Batch(tiny.model, 1, 1))


def test_a_bent_link_is_the_model_with_its_frame_turned(arm: Robot) -> None:
    angle, axis = 0.1, np.array([0.6, 0.8, 0.0])
    sims = batch.Batch(arm.model, 2, 1)
    bent_link(arm, "link4", angle, 3 * axis)(sims)()
    spec = mujoco.MjSpec.from_file(str(arm.config.path(arm.config.model)))
    turn, turned = np.empty(4), np.empty(4)
    mujoco.mju_axisAngle2Quat(turn, axis, angle)
    mujoco.mju_mulQuat(turned, spec.body("link4").quat, turn)
    spec.body("link4").quat = turned
    data = mujoco.MjData(spec.compile())
    home = np.array([0, -0.4, 0, -2.0, 0, 1.7, 0.6])
    sims.bind("qpos")[:], sims.bind("ctrl")[:] = home, home
    data.qpos[:], data.ctrl[:] = home, home
    for _ in range(50):
        sims.step()
        mujoco.mj_step(data.model, data)
    np.testing.assert_allclose(sims.bind("qpos"), np.tile(data.qpos, (2, 1)), atol=1e-9)
    assert np.abs(data.qpos - home).max() > 1e-3
