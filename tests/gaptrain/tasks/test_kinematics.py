"""The arm's kinematics against MuJoCo's."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from gaptrain.tasks.kinematics import Arm, matrices, rotation_vector

MODELS = Path(__file__).parents[3] / "models"


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(MODELS / "air_hockey" / "model.xml"))


def test_pose_and_jacobian_are_mujocos(model: mujoco.MjModel) -> None:
    q = np.random.default_rng(1).uniform(-1.5, 1.5, (5, 7))
    position, rotation, jacobian = Arm(model).pose(q)
    data, tool = mujoco.MjData(model), model.body("tool").id
    for i in range(len(q)):
        data.qpos[:7] = q[i]
        mujoco.mj_forward(model, data)
        moved, turned = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        mujoco.mj_jacBody(model, data, moved, turned, tool)
        np.testing.assert_allclose(position[i], data.xpos[tool], atol=1e-6)
        np.testing.assert_allclose(rotation[i], data.xmat[tool].reshape(3, 3), atol=1e-6)
        np.testing.assert_allclose(jacobian[i], np.concatenate([moved, turned])[:, :7], atol=1e-6)


def test_solve_reaches_a_pose(model: mujoco.MjModel) -> None:
    arm, down = Arm(model), np.diag([1.0, -1.0, -1.0])
    wanted = np.array([[0.45, 0.1, 0.15]])
    q = arm.solve(np.array([[0.0, 0.4, np.pi, -1.9, 0.0, -0.9, 1.57]]), wanted, down[None])
    position, rotation, _ = arm.pose(q)
    np.testing.assert_allclose(position, wanted, atol=1e-5)
    np.testing.assert_allclose(rotation[0], down, atol=1e-4)


@pytest.mark.parametrize("angle", [0.0, 1e-8, 0.3, -1.2])
def test_rotation_vector_is_the_inverse(angle: float) -> None:
    quaternion = np.array([np.cos(angle / 2), 0.0, 0.0, np.sin(angle / 2)])
    np.testing.assert_allclose(rotation_vector(matrices(quaternion)), [0.0, 0.0, angle], atol=1e-12)
