"""Stand-ins: which actuators are commanded, hidden structure per batch of simulations, and motions that diverge."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mujoco import batch

from gapd.errors import ConfigError, InputError
from gapd.model.robot import Robot
from gaptrain.settings import Excitation
from gaptrain.simulate import driven_joints, record, references, simulate
from gaptrain.structures import load_dependent_friction

MOTION = Excitation(home=(0.2,), amplitude=(1.2,), low_hz=0.3, high_hz=2.0)
SERVO = '<position name="servo" joint="j" kp="4"/>'
RUNAWAY = (
    '<general name="servo" joint="j" gainprm="4" biastype="affine" biasprm="0 1e6 1e4" gaintype="fixed" gear="1e3"/>'
)
ROPE = '<motor name="rope" tendon="rope"/>'


@pytest.fixture
def roped(tmp_path: Path, tiny_model: str, make_robot: Callable[..., Robot]) -> Callable[[str], Robot]:
    """The tiny robot with a rope on its arm, pulled by an actuator that stands before or after the servo."""
    tendon = '<tendon><fixed name="rope"><joint joint="j" coef="1"/></fixed></tendon></worldbody>'
    tendon = "</worldbody>" + tendon.removesuffix("</worldbody>")

    def make(actuators: str) -> Robot:
        return make_robot(tmp_path, tiny_model.replace("</worldbody>", tendon).replace(SERVO, actuators))

    return make


@pytest.fixture(scope="session")
def tiny_model(tiny_folder: Path) -> str:
    return (tiny_folder / "model.xml").read_text()


def moved(robot: Robot, motion: Excitation = MOTION, steps: int = 40) -> np.ndarray:
    reference = references(motion, np.random.default_rng(0), 2, steps, robot.layout.step_s)
    context = np.zeros((2, 0))
    return simulate(robot, motion, np.tile(robot.parameters.nominal, (2, 1)), reference, context, threads=1).command


def test_an_actuator_without_a_home_gets_no_command(roped: Callable[[str], Robot]) -> None:
    command = moved(roped(SERVO + ROPE))
    assert (command[..., 0] != 0).any()
    assert (command[..., 1] == 0).all()


@pytest.mark.parametrize("homes", [1, 2])
def test_a_home_for_an_actuator_that_is_on_no_joint_is_refused(roped: Callable[[str], Robot], homes: int) -> None:
    robot = roped(ROPE + SERVO if homes == 1 else SERVO + ROPE)
    motion = Excitation(home=(0.2,) * homes, amplitude=(1.0,) * homes)
    with pytest.raises(ConfigError, match=rf"home\[{homes - 1}\] = 0\.2: actuator rope is not on a joint; list"):
        moved(robot, motion)


def test_more_homes_than_actuators_are_refused(tiny: Robot) -> None:
    with pytest.raises(ConfigError, match="home has 2 values: at most 1"):
        driven_joints(tiny, Excitation(home=(0.0, 0.0), amplitude=(1.0, 1.0)))


def test_hidden_friction_starts_from_that_of_its_own_simulations(tiny: Robot) -> None:
    structure = load_dependent_friction(tiny, "j", 0.5)
    for base in (0.1, 0.2, 0.3):
        sims = batch.Batch(tiny.model, 2, 1)
        friction = sims.expand("dof_frictionloss")
        friction[:, 0] = (base, 2 * base)
        apply = structure(sims)
        for command in (0.5, -1.0):
            sims.bind("ctrl")[:] = command
            sims.step()
            apply()
            torque = np.abs(sims.bind("qfrc_actuator")[:, 0])
            assert (torque > 0.1).all()
            np.testing.assert_array_equal(friction[:, 0], np.array([base, 2 * base]) + 0.5 * torque)


def test_a_structure_is_bound_once_after_the_parameters_are_written(tiny: Robot) -> None:
    seen: list[float] = []

    def structure(sims: batch.Batch) -> Callable[[], None]:
        bound = float(sims.expand("dof_frictionloss")[0, 0])
        return lambda: seen.append(bound)

    truth = tiny.parameters.vector({"joint/j/frictionloss": 0.123})
    record(tiny, MOTION, truth, 0.1, 1, structure)
    assert len(seen) > 10
    assert set(seen) == {0.123}


def test_a_recording_whose_motion_diverges_is_refused_without_a_word_of_mujoco(
    tmp_path: Path, tiny_model: str, make_robot: Callable[..., Robot], capfd: pytest.CaptureFixture[str]
) -> None:
    robot = make_robot(tmp_path, tiny_model.replace(SERVO, RUNAWAY))
    with pytest.raises(InputError, match="tiny simulated, seed 1: the motion diverges"):
        record(robot, MOTION, robot.parameters.nominal, 1.0, 1)
    assert capfd.readouterr() == ("", "")
    assert not Path("MUJOCO_LOG.TXT").exists()
