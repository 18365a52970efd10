"""The command as a user runs it: a process of its own, its output, and its exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gapd import __version__
from gapd.robot import Robot
from gapd.sources.log_files import write_csv

TRUTH = np.array([1.5, 2.0, 0.6, 1.8])


@pytest.fixture(scope="module")
def log(tiny: Robot, recorded: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "swing.csv"
    write_csv(recorded(tiny, tiny.parameters.nominal * TRUTH, 20.0, seed=2).frames, path, tiny)
    return path


@pytest.fixture
def config(tiny_folder: Path) -> Path:
    return tiny_folder / "robot.toml"


def test_replay_prints_tables_and_the_decision(gapd: Any, config: Path, log: Path, tmp_path: Path) -> None:
    picture = tmp_path / "gap.png"
    done = gapd("replay", "--config", config, "--picture", picture, log)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["parameter", "before", "fitted", "90", "%", "interval", "unit", "status"]
    for name in ("actuator/servo/kp", "joint/j/damping", "joint/j/frictionloss", "joint/j/armature"):
        assert any(line.startswith(name) and line.endswith("estimated") for line in lines)
    assert re.search(r"^windows    \d+ ok.*; \d+ fitted, \d+ held out$", done.stdout, re.MULTILINE)
    assert re.search(r"^decision   OK correct: .* accepted", done.stdout, re.MULTILINE)
    assert lines[-1] == "remedy     nothing to do"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_replay_gives_the_same_json_each_time_whatever_the_threads(
    gapd: Any, config: Path, log: Path, tiny: Robot
) -> None:
    first, again, threaded = (
        gapd("replay", "--config", config, "--json", *more, log) for more in ([], [], ["--threads", "2"])
    )
    assert (first.returncode, first.stderr) == (0, "")
    assert again.stdout == first.stdout
    assert threaded.stdout == first.stdout
    values = json.loads(first.stdout)
    assert sum(values["windows"]["verdicts"].values()) == 100
    assert values["action"] == "correct"
    assert values["gap"]["before"] > 5
    assert values["gap"]["after"] < 1.1
    truth = dict(zip(tiny.parameters.names, tiny.parameters.nominal * TRUTH, strict=True))
    assert set(values["corrections"]) == set(truth)
    for parameter in values["parameters"]:
        assert values["corrections"][parameter["name"]] == parameter["after"]
        assert abs(parameter["after"] - truth[parameter["name"]]) < 4 * parameter["sd"]


def test_replay_from_the_present_values_holds(gapd: Any, config: Path, log: Path, tiny: Robot) -> None:
    present = [
        f"--set={name}={value!r}"
        for name, value in zip(tiny.parameters.names, (tiny.parameters.nominal * TRUTH).tolist(), strict=True)
    ]
    done = gapd("replay", "--config", config, "--json", *present, log)
    values = json.loads(done.stdout)
    assert values["action"] == "hold"
    assert values["corrections"] == {}
    assert [p["before"] for p in values["parameters"]] == pytest.approx(tiny.parameters.nominal * TRUTH)


def test_check_says_what_is_there(gapd: Any, config: Path, tmp_path: Path) -> None:
    done = gapd("check", "--config", config)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "robot       tiny",
        f"model       {config.parent / 'model.xml'}: 1 joints, 1 actuators",
        "parameters  4 free, 0 frozen",
        "channels    3; window 20 knots of 0.01 s",
        "bundle      none: fits use finite differences",
        "ok",
    ]


def test_check_of_a_robot_with_a_bundle(gapd: Any) -> None:
    folder = Path(__file__).parents[2] / "models" / "arm7"
    done = gapd("check", "--config", folder / "robot.toml")
    assert done.returncode == 0
    assert f"bundle      {folder / 'bundle'}: verified, sha256 " in done.stdout
    assert done.stdout.endswith("ok\n")


def test_version_names_what_decides_about_results(gapd: Any) -> None:
    done = gapd("version")
    assert done.returncode == 0
    assert re.fullmatch(r"gapd \S+, mujoco 4\.\S+, onnxruntime \S+, numpy \S+\n", done.stdout)
    assert done.stdout.startswith(f"gapd {__version__},")


def test_help_is_no_failure(gapd: Any) -> None:
    done = gapd("--help")
    assert done.returncode == 0
    for verb in ("check", "replay", "version"):
        assert f"  {verb} " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "log.csv"], "Missing option '--config'"),
        (["replay", "--config", "robot.toml", "--thread", "2", "log.csv"], "No such option '--thread'"),
        (["reply"], "No such command 'reply'"),
    ],
)
def test_a_call_that_is_no_command_is_a_usage_error(gapd: Any, arguments: list[str], message: str) -> None:
    done = gapd(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
