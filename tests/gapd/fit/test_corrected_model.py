"""The corrected MJCF replays as the corrected robot, or is refused."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gapd.errors import ConfigError, InputError
from gapd.fit.corrected_model import require_writable, write_model
from gapd.model.mjcf import load_model
from gapd.model.robot import Robot, open_robot
from gapd.sources.log_files import write_csv

MODELS = Path(__file__).parents[3] / "models"


@pytest.mark.parametrize("name", ["arm7", "servo_pendulum", "ballscrew"])
def test_every_target_comes_back(name: str, tmp_path: Path) -> None:
    robot = open_robot(MODELS / name / "robot.toml")
    space = robot.parameters
    physical = space.to_physical(0.7 * space.z_nominal + 0.3 * space.z_max)
    path = tmp_path / "corrected.xml"
    write_model(robot, physical, path)
    written, model = load_model(path), load_model(robot.config.path(robot.config.model))
    robot.binding.write(model, physical, robot.context_nominal)
    for cells in robot.binding.cells:
        ours, theirs = (np.asarray(getattr(m, cells.field)).reshape(-1)[cells.flat] for m in (written, model))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-9)
    assert [p.name for p in tmp_path.iterdir()] == ["corrected.xml"]


def test_a_value_that_an_mjcf_cannot_hold_is_refused_with_its_parameter(make_robot: Any, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    make_robot(tmp_path / "plain")
    text = (tmp_path / "plain" / "parameters.toml").read_text(encoding="utf-8")
    delay = """
[[parameter]]
name = "actuator/servo/delay"
nominal = 0
min = 0
max = 1
scale = "linear"
targets = [{ field = "actuator_delay", element = "servo" }]
"""
    robot = make_robot(tmp_path, parameters=text + delay)
    physical = robot.parameters.nominal.copy()
    physical[-1] = 0.5
    path = tmp_path / "corrected.xml"
    with pytest.raises(InputError) as caught:
        write_model(robot, physical, path)
    told = str(caught.value)
    assert told.startswith(
        f"model {path}: cannot be written: parameter actuator/servo/delay = 0.5: MuJoCo refuses it ("
    )
    assert told.endswith("; take it out of parameters.toml, or write it into the compiled model")
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("corrected")]


@pytest.mark.parametrize(
    ("name", "told"), [("a.txt", "does not end in .xml"), ("none/a.xml", "no folder"), ("model.xml", "model of robot")]
)
def test_a_path_that_will_not_do_is_refused_before_the_fit(
    name: str, told: str, make_robot: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=told):
        require_writable(make_robot(tmp_path), tmp_path / name)


def test_replay_writes_the_model_that_it_accepts(
    tiny: Robot,
    make_robot: Any,
    recorded: Any,
    tmp_path: Path,
    gapd: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    robot = make_robot(tmp_path)
    truth = tiny.parameters.nominal * np.array([1.5, 2.0, 0.6, 1.8])
    log, corrected = tmp_path / "log.csv", tmp_path / "corrected.xml"
    write_csv(recorded(tiny, truth, 20.0, seed=2).frames, log, robot)
    done = gapd("replay", "--config", tmp_path / "robot.toml", log, "--write-model", corrected)
    assert done.returncode == 0, done.stderr
    assert load_model(corrected).dof_damping[0] == pytest.approx(truth[1], rel=0.1)
    values = [f"--set={n}={v}" for n, v in zip(robot.parameters.names, truth.tolist(), strict=True)]
    again = gapd("replay", "--config", tmp_path / "robot.toml", log, "--write-model", tmp_path / "b.xml", *values)
    assert again.returncode == 0, again.stderr
    assert "nothing is corrected" in again.stderr
    assert not (tmp_path / "b.xml").exists()
