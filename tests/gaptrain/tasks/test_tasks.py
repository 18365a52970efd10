"""The tasks as methods see them: deterministic, with the parameters and shifts they promise."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from gapd.errors import ConfigError
from gaptrain.tasks.arm_task import ArmTask
from gaptrain.tasks.catalogue import TASKS, open_task
from gaptrain.tasks.stand_in import StandIn

MODELS = Path(__file__).parents[3] / "models"
SIZES = {"air_hockey": (64, 4, 50), "ball_drop": (82, 1, 30), "cube_pose": (118, 120, 30)}


@pytest.fixture(scope="module", params=list(TASKS))
def task(request: pytest.FixtureRequest) -> ArmTask:
    return open_task(request.param, MODELS)


@pytest.fixture(scope="module")
def hockey() -> ArmTask:
    return open_task("air_hockey", MODELS)


def test_sizes_are_the_published_ones(task: ArmTask) -> None:
    assert (len(task.space), len(task.action_low), task.steps) == SIZES[task.name]


def test_nominal_values_are_those_of_the_model(task: ArmTask) -> None:
    """Replays at nominal must be those of the MJCF: a value that differs would be a hidden shift."""
    binding = task.parameters._binding
    context = np.empty((1, 0))
    for cells in binding.cells:
        name = cells.field.removeprefix("opt.")
        holder = task.model.opt if cells.field.startswith("opt.") else task.model
        given = np.ravel(getattr(holder, name))[cells.flat]
        written = binding.values(cells, task.space.nominal[None, task.parameters._columns], context)[0]
        np.testing.assert_allclose(written, given, rtol=1e-3, atol=1e-9, err_msg=cells.field)


def test_scene_holds_the_same_physics(task: ArmTask) -> None:
    scene = mujoco.MjModel.from_xml_path(str(MODELS / task.name / "scene.xml"))
    assert (scene.nq, scene.nu, scene.nbody) == (task.model.nq, task.model.nu, task.model.nbody)


def test_a_rollout_depends_on_nothing_but_its_arguments(task: ArmTask) -> None:
    actions = task.draw(np.random.default_rng(1), 2)
    values = np.stack([task.space.nominal, task.real_values()])
    once = task.rollout(values, actions)
    one_thread = open_task(task.name, MODELS, threads=1).rollout(values[::-1], actions[::-1])
    np.testing.assert_array_equal(once.seen, one_thread.seen[::-1])
    assert np.isfinite(once.seen).all()
    assert not once.failed.any()


def test_actions_stay_in_their_box(task: ArmTask) -> None:
    actions = task.draw(np.random.default_rng(2), 50)
    assert (actions >= task.action_low).all()
    assert (actions <= task.action_high).all()


def test_the_real_robot_is_not_the_simulator(task: ArmTask) -> None:
    actions = task.draw(np.random.default_rng(3), 2)
    robot = StandIn(task, 0.0, 1)
    simulated = task.rollout(np.tile(task.space.nominal, (2, 1)), actions)
    assert np.abs(robot.act(actions).seen - simulated.seen).mean() > 0.005


def test_the_stand_in_counts_what_is_asked_of_it_and_adds_seeded_noise(hockey: ArmTask) -> None:
    actions = hockey.draw(np.random.default_rng(4), 3)
    robots = [StandIn(hockey, 0.001, seed) for seed in (1, 1, 2)]
    seen = [robot.act(actions).seen for robot in robots]
    np.testing.assert_array_equal(seen[0], seen[1])
    assert np.std(seen[0] - seen[2]) == pytest.approx(0.001 * np.sqrt(2), rel=0.1)
    robots[0].judge(actions)
    assert robots[0].rollouts == 3


def test_the_camera_shift_moves_what_is_seen_and_not_what_happens(hockey: ArmTask) -> None:
    space = hockey.space
    shifted = space.vector({"task/camera/x": 0.03, "task/camera/y": -0.02})
    actions = hockey.draw(np.random.default_rng(5), 1)
    still, moved = (hockey.rollout(v[None], actions) for v in (space.nominal, shifted))
    np.testing.assert_allclose(
        moved.seen - still.seen, np.tile([0.03, -0.02, 0.0], 2) * np.ones((1, 50, 1)), atol=1e-12
    )
    assert moved.reward[0] == still.reward[0]


def test_more_velocity_lag_makes_the_knob_hit_more_softly(hockey: ArmTask) -> None:
    actions = hockey.draw(np.random.default_rng(6), 1)
    vectors = [hockey.space.vector({"task/arm/velocity_lag": lag}) for lag in (0.6, 0.75, 0.9)]
    reached = hockey.rollout(np.stack(vectors), np.repeat(actions, 3, axis=0)).seen[:, -1, 3]
    assert (np.diff(reached) < 0).all()


def test_distractors_have_no_effect_at_all(hockey: ArmTask) -> None:
    names = ["geom/wall_far/contact_damping", "geom/wall_left/sliding_friction", "geom/table/sliding_friction",
             "body/base/mass"]  # fmt: skip
    space = hockey.space
    changed = space.vector({name: 1.2 * space.nominal[space.names.index(name)] for name in names})
    actions = hockey.draw(np.random.default_rng(7), 1)
    still, moved = (hockey.rollout(v[None], actions).seen for v in (space.nominal, changed))
    np.testing.assert_allclose(moved, still, atol=1e-9)


def test_a_diverging_simulation_is_told_and_is_no_success(hockey: ArmTask) -> None:
    wild = hockey.space.nominal.copy()
    wild[hockey.space.names.index("joint/joint1/damping")] = -1e9
    actions = hockey.draw(np.random.default_rng(8), 2)
    done = hockey.rollout(np.stack([wild, hockey.space.nominal]), actions)
    assert done.failed.tolist() == [True, False]
    assert np.isnan(done.seen[0]).all()
    assert not done.success[0]


def test_an_unknown_task_parameter_names_the_nearest(tmp_path: Path) -> None:
    for file in (MODELS / "air_hockey").iterdir():
        (tmp_path / "air_hockey" / file.name).parent.mkdir(exist_ok=True)
        (tmp_path / "air_hockey" / file.name).write_text(file.read_text())
    (tmp_path / "gen3").mkdir()
    (tmp_path / "gen3" / "arm.xml").write_text((MODELS / "gen3" / "arm.xml").read_text())
    toml = tmp_path / "air_hockey" / "parameters.toml"
    toml.write_text(toml.read_text().replace("task.camera_x", "task.kamera_x"))
    with pytest.raises(ConfigError, match=r"no 'task\.kamera_x'; did you mean 'camera_x'"):
        open_task("air_hockey", tmp_path)


def test_an_unknown_task_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'ball_drop'"):
        open_task("ball_drops", MODELS)
