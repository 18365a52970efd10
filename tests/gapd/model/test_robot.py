"""A robot's files fit together, or one line says which name in which of them does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gapd.errors import ConfigError
from gapd.gap.replay import Replay
from gapd.measured.windows import cut, window_starts
from gapd.model.robot import ABSENT


def refusal(make: Any, folder: Path, name: str, old: str, new: str, tiny_folder: Path) -> str:
    files = {"model": "model.xml", "parameters": "parameters.toml", "robot": "robot.toml"}
    text = (tiny_folder / files[name]).read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(ConfigError) as caught:
        make(folder, **{name: text.replace(old, new, 1)})
    return str(caught.value)


SECOND = '[[channel]]\nname = "again"\nsensor = "j/position"\nunit = "rad"\nnoise = 0.001\n[log.channels]'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'servo = "command_j"',
            'sevro = "command_j"',
            "log.commands 'sevro': no such actuator of the model; did you mean",
        ),
        ('"j/effort" = ', '"j/efort" = ', "log.channels 'j/efort': no such [[channel]]; did you mean 'j/effort'?"),
        ('servo = "command_j"', 'servo = "c"\n[log.context]\nvolt = "v"', "log.context 'volt': no such [[context]]"),
        (
            'servo = "command_j"',
            'servo = "c"\n[[log.per_file]]\npattern = "*"\ncontext = { volt = 1 }',
            "log.per_file 'volt': no such [[context]]",
        ),
        ('"j/position" = "position_j"\n', "", "log.channels has no column for 'j/position', the position of joint j"),
        ("[log.channels]", SECOND, "channels j/position and again: both are sensor j/position; keep one"),
    ],
)
def test_a_robot_toml_that_does_not_fit_the_model(
    make_robot: Any, tmp_path: Path, tiny_folder: Path, old: str, new: str, message: str
) -> None:
    assert refusal(make_robot, tmp_path, "robot", old, new, tiny_folder).startswith(message)


def test_two_positions_of_one_joint(make_robot: Any, tmp_path: Path, tiny_folder: Path) -> None:
    model = (tiny_folder / "model.xml").read_text().replace("<sensor>", '<sensor><jointpos name="twin" joint="j"/>')
    robot = (tiny_folder / "robot.toml").read_text().replace("[log.channels]", SECOND.replace("j/position", "twin"))
    with pytest.raises(ConfigError, match="channels j/position and again: all are the position of joint j; keep one"):
        make_robot(tmp_path, model=model, robot=robot)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('timestep="0.005"', 'timestep="0"', "option timestep = 0.0 must be a time in seconds from"),
        ('timestep="0.005"', 'timestep="-0.005"', "option timestep = -0.005 must be a time in seconds from"),
        ('timestep="0.005"', 'timestep="nan"', "XML contains a 'NaN'. Please check it carefully."),
        ('kp="4"', 'kp="nan"', "XML contains a 'NaN'"),
        ('mass="0.5"', 'mass="nan"', "does not compile: "),
        ('mass="0.5"', 'mass="inf"', "body_mass holds inf"),
        ('damping="0.05"', 'damping="-inf"', "dof_damping holds -inf"),
        ('contact="disable"', 'sleep="enable"', '<flag sleep="enable"> lets joints stop'),
        ('contact="disable"', 'sensor="disable"', '<flag sensor="disable"> makes every channel 0'),
        ('contact="disable"', 'actuation="disable"', '<flag actuation="disable"> switches its 1 actuators off'),
        ("</worldbody>", '<body><freejoint/><geom size="1"/></body></worldbody>', "has 1 free or ball joints"),
        ('name="arm"', 'name="a&#10;rm"', "name 'a\\nrm' has control characters"),
        ('joint="j" kp', 'joint="k" kp', "does not compile: "),
    ],
)
def test_a_model_that_cannot_be_replayed(
    make_robot: Any, tmp_path: Path, tiny_folder: Path, capfd: Any, monkeypatch: Any, old: str, new: str, message: str
) -> None:
    """MuJoCo itself takes all but the last, and would print its warnings and write them to a file."""
    monkeypatch.chdir(tmp_path)
    line = refusal(make_robot, tmp_path, "model", old, new, tiny_folder)
    assert line.startswith(f"model {tmp_path / 'model.xml'}: ")
    assert message in line
    assert line.endswith("; mend the MJCF")
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "MUJOCO_LOG.TXT").exists()


def test_actuation_may_be_off_where_there_is_nothing_to_actuate(
    make_robot: Any, tmp_path: Path, tiny_folder: Path
) -> None:
    model = (tiny_folder / "model.xml").read_text().replace('contact="disable"', 'actuation="disable"')
    model = model.replace('<position name="servo" joint="j" kp="4"/>', "")
    robot = (tiny_folder / "robot.toml").read_text().split("[log.commands]")[0]
    parameters = (tiny_folder / "parameters.toml").read_text().split("[[parameter]]")
    assert make_robot(tmp_path, model, "[[parameter]]".join(["", *parameters[2:]]), robot).model.nu == 0


ACTUATORS = {
    "adhesion": '<adhesion name="grip" body="arm" ctrlrange="0 1"/>',
    "site": '<general name="jet" site="s" gear="0 0 1 0 0 0"/>',
    "tendon": '<motor name="cable" tendon="t"/>',
}


@pytest.mark.parametrize("kind", ACTUATORS)
def test_an_actuator_that_is_on_no_joint_is_replayed(
    make_robot: Any, recorded: Any, tmp_path: Path, tiny_folder: Path, kind: str
) -> None:
    model = (tiny_folder / "model.xml").read_text()
    model = model.replace("<inertial", '<site name="s"/><geom size="0.01"/><inertial', 1)
    model = model.replace(
        "</worldbody>", '</worldbody><tendon><fixed name="t"><joint joint="j" coef="1"/></fixed></tendon>'
    )
    robot = make_robot(tmp_path, model.replace("</actuator>", f"{ACTUATORS[kind]}</actuator>"))
    assert robot.layout.actuator_joint.tolist() == [0, ABSENT]
    frames = recorded(robot, robot.parameters.nominal, 2.0, seed=1).frames
    windows = cut(frames, robot.layout, window_starts(frames, robot.layout))
    rollouts = Replay(robot).run(windows, robot.parameters.nominal)
    assert not rollouts.failed.any()
    assert np.nanmedian(np.abs(rollouts.predicted - windows.measured) / robot.layout.noise) < 5


@pytest.mark.parametrize("field", ["body_ipos", "body_iquat"])
def test_a_target_that_mujoco_refuses_at_its_bounds(
    make_robot: Any, tmp_path: Path, tiny_folder: Path, field: str
) -> None:
    """It compiles a body whose mass is at its origin into one whose mass cannot be elsewhere."""
    model = (tiny_folder / "model.xml").read_text().replace('pos="0 0 -0.1"', 'pos="0 0 0"')
    target = f'targets = [{{ field = "{field}", element = "arm" }}]'
    parameter = f'[[parameter]]\nname = "p"\nnominal = 0.1\nmin = 0.01\nmax = 1\n{target}'
    with pytest.raises(
        ConfigError, match=r"^parameters at their min: .* compiled as simple .*; correct bounds, targets"
    ):
        make_robot(tmp_path, model, parameter)
    assert make_robot(tmp_path, model.replace('name="arm"', 'name="arm" simple="false"'), parameter)
