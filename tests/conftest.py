"""Small robots whose fits take a fraction of a second, recordings of them, and the command as a user starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

from gapd.measured.windows import Windows, cut, window_starts
from gapd.model.robot import Robot, open_robot
from gaptrain.settings import Excitation, load_training
from gaptrain.simulate import Recording, Structure, record

Array = NDArray[np.float64]

MODELS = Path(__file__).parents[1] / "models"
TINY_MODEL = """<mujoco model="tiny">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="0.005" integrator="implicitfast"><flag contact="disable"/></option>
  <worldbody>
    <body name="arm">
      <inertial mass="0.5" pos="0 0 -0.1" diaginertia="1e-4 1e-4 1e-4"/>
      <joint name="j" axis="0 1 0" damping="0.05" armature="0.01" frictionloss="0.03"/>
    </body>
  </worldbody>
  <actuator><position name="servo" joint="j" kp="4"/></actuator>
  <sensor>
    <jointpos name="j/position" joint="j"/>
    <jointvel name="j/velocity" joint="j"/>
    <jointactuatorfrc name="j/effort" joint="j"/>
  </sensor>
</mujoco>
"""
TINY_PARAMETERS = """
[[parameter]]
name = "actuator/servo/kp"
unit = "N·m/rad"
nominal = 4
min = 1
max = 16
targets = [
    { field = "actuator_gainprm", element = "servo" },
    { field = "actuator_biasprm", element = "servo", index = 1, factor = [-1] },
]
[[parameter]]
name = "joint/j/damping"
unit = "N·m·s/rad"
nominal = 0.05
min = 0.005
max = 0.5
targets = [{ field = "dof_damping", element = "j" }]
[[parameter]]
name = "joint/j/frictionloss"
unit = "N·m"
nominal = 0.03
min = 0.003
max = 0.3
targets = [{ field = "dof_frictionloss", element = "j" }]
[[parameter]]
name = "joint/j/armature"
unit = "kg·m²"
nominal = 0.01
min = 0.001
max = 0.1
targets = [{ field = "dof_armature", element = "j" }]
"""
TINY_ROBOT = """
robot = "tiny"
model = "model.xml"
parameters = "parameters.toml"
seed = 3
[timing]
knot_s = 0.01
knots = 20
[[channel]]
name = "j/position"
unit = "rad"
noise = 0.001
[[channel]]
name = "j/velocity"
unit = "rad/s"
noise = 0.02
[[channel]]
name = "j/effort"
unit = "N·m"
noise = 0.01
[log.channels]
"j/position" = "position_j"
"j/velocity" = "velocity_j"
"j/effort" = "effort_j"
[log.commands]
servo = "command_j"
"""
# A second damping, in the servo, and a spring of nothing: a tendon between two sites that do not move.
TWIN_PARAMETERS = (
    TINY_PARAMETERS
    + """
[[parameter]]
name = "actuator/servo/kv"
unit = "N·m·s/rad"
nominal = 0.05
min = 0.005
max = 0.5
targets = [{ field = "actuator_biasprm", element = "servo", index = 2, factor = [-1] }]
[[parameter]]
name = "tendon/idle/stiffness"
unit = "N/m"
nominal = 1
min = 0.1
max = 10
targets = [{ field = "tendon_stiffness", element = "idle" }]
"""
)
TENDON = """<body name="shelf" pos="1 0 0"><site name="a"/></body><site name="b"/></worldbody>
<tendon><spatial name="idle"><site site="a"/><site site="b"/></spatial></tendon>"""
# What the servo adds shows in the effort, so that the two dampings differ there.
EFFORT = """[[channel]]
name = "j/effort"
unit = "N·m"
noise = 0.01
"""
TINY_MOTION = Excitation(home=(0.0,), amplitude=(1.2,), low_hz=0.3, high_hz=2.0)


class MakeRobot(Protocol):
    """Writes the three files of a robot, by default the tiny one's, and opens it."""

    def __call__(
        self, folder: Path, model: str = TINY_MODEL, parameters: str = TINY_PARAMETERS, robot: str = TINY_ROBOT
    ) -> Robot: ...


class Record(Protocol):
    """Records a stand-in robot with the physical values `truth` (P,) in the motion of its model."""

    def __call__(
        self, robot: Robot, truth: Array, seconds: float, seed: int, structure: Structure | None = None
    ) -> Recording: ...


class CutWindows(Protocol):
    """Cuts back-to-back windows from what `Record` records."""

    def __call__(
        self, robot: Robot, truth: Array, count: int, seed: int, structure: Structure | None = None
    ) -> Windows: ...


class RunGapd(Protocol):
    """Runs `gapd` as a process of its own, in a folder that must stay free of MuJoCo's log."""

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]: ...


def _make_robot(
    folder: Path, model: str = TINY_MODEL, parameters: str = TINY_PARAMETERS, robot: str = TINY_ROBOT
) -> Robot:
    for name, text in (("model.xml", model), ("parameters.toml", parameters), ("robot.toml", robot)):
        (folder / name).write_text(text, encoding="utf-8")
    return open_robot(folder / "robot.toml")


def _record(robot: Robot, truth: Array, seconds: float, seed: int, structure: Structure | None = None) -> Recording:
    training = MODELS / robot.config.robot / "train.toml"
    motion = load_training(training).excitation if training.is_file() else TINY_MOTION
    return record(robot, motion, truth, seconds, seed, structure)


@pytest.fixture(scope="session")
def make_robot() -> MakeRobot:
    return _make_robot


@pytest.fixture(scope="session")
def recorded() -> Record:
    return _record


@pytest.fixture(scope="session")
def windows_of() -> CutWindows:
    def windows(robot: Robot, truth: Array, count: int, seed: int, structure: Structure | None = None) -> Windows:
        seconds = count * robot.config.timing.window_s + robot.layout.step_s
        frames = _record(robot, truth, seconds, seed, structure).frames
        return cut(frames, robot.layout, window_starts(frames, robot.layout))

    return windows


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    _make_robot(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Robot:
    """A weight on a hinge with a position servo: 4 parameters, 3 channels, 40 steps to a window."""
    return open_robot(tiny_folder / "robot.toml")


@pytest.fixture(scope="session")
def level(tmp_path_factory: pytest.TempPathFactory) -> Robot:
    """The tiny robot laid flat: the axis is vertical, so that gravity does nothing."""
    model = TINY_MODEL.replace('axis="0 1 0"', 'axis="0 0 1"').replace('pos="0 0 -0.1"', 'pos="0.1 0 0"')
    return _make_robot(tmp_path_factory.mktemp("level"), model)


@pytest.fixture(scope="session")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Robot:
    """The tiny robot without its effort channel, with two dampings of one effect and a parameter of none."""
    robot = TINY_ROBOT.replace(EFFORT, "").replace('"j/effort" = "effort_j"\n', "")
    model = TINY_MODEL.replace("</worldbody>", TENDON)
    return _make_robot(tmp_path_factory.mktemp("twins"), model, TWIN_PARAMETERS, robot)


@pytest.fixture(scope="session")
def servo() -> Robot:
    return open_robot(MODELS / "servo_pendulum" / "robot.toml")


@pytest.fixture(scope="session")
def arm() -> Robot:
    return open_robot(MODELS / "arm7" / "robot.toml")


@pytest.fixture
def gapd(tmp_path_factory: pytest.TempPathFactory) -> RunGapd:
    folder = tmp_path_factory.mktemp("cwd")
    program = Path(sys.executable).with_name("gapd")
    # One thread: these processes share the machine with the tests. No cache: a run must not depend on the last.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [program, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
        )  # fmt: skip
        assert not (folder / "MUJOCO_LOG.TXT").exists()
        return done

    return run
