"""The commands as a user gives them: one clear line for everything that is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from link_peer import FakeRobot, Host

from gapd import __version__
from gapd.keys import write_keys
from gaptrain.cli import main

Make = Callable[..., FakeRobot]
Start = Callable[..., Host]


def test_errors_of_the_command_are_one_line(enrolled: Make, host: Start, tmp_path: Path) -> None:
    robot = enrolled()
    host(robot)
    state = tmp_path / "state"
    taken = _gaptrain("host", "--state", tmp_path / "other", "--bind", robot.bind)
    assert taken == (1, f"gaptrain: {robot.bind}: Address already in use; stop what uses it, or give another --bind")
    code, line = _gaptrain("host", "--state", state, "--bind", "tcp://127.0.0.1:1")
    assert (code, "another host serves this state" in line) == (1, True)
    code, line = _gaptrain("host", "--state", tmp_path / "other", "--bind", "nonsense")
    assert (code, "give --bind like tcp://" in line) == (1, True)
    (tmp_path / "other" / "host.key").chmod(0o644)
    code, line = _gaptrain("host", "--state", tmp_path / "other")
    assert (code, "others can use it; chmod 600" in line) == (2, True)


def _gaptrain(*arguments: str | Path) -> tuple[int, str]:
    program = Path(sys.executable).with_name("gaptrain")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.returncode, done.stderr.strip()


def test_version_names_what_decides_about_results() -> None:
    done = CliRunner().invoke(main, ["--version"])
    assert done.exit_code == 0
    packages = r"mujoco 4\.\S+, onnxruntime \S+, numpy \S+"
    assert re.fullmatch(rf"gaptrain {re.escape(__version__)}, {packages}\n", done.output)


@pytest.mark.parametrize("what", ["list", "enrol", "revoke", "nothing"])
def test_enrol_command(enrolled: Make, tiny_folder: Path, tmp_path: Path, what: str) -> None:
    enrolled("r0")
    write_keys(tmp_path, "r1")
    options = {
        "list": ["--list"],
        "enrol": ["r1", "--config", tiny_folder / "robot.toml", "--key", tmp_path / "r1.pub"],
        "revoke": ["--revoke", "r0"],
        "nothing": ["r1"],
    }[what]
    done = CliRunner().invoke(main, ["enrol", "--state", str(tmp_path / "state"), *map(str, options)])
    assert done.exit_code == (2 if what == "nothing" else 0)
    said = {"list": "r0", "enrol": "r1: enrolled, type tiny", "revoke": "r0: revoked", "nothing": "give --config"}[what]
    assert said in done.output
