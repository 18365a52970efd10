"""The estimator's benchmark with tiny sizes: the real script, its problems, results that go on where they stopped."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import mujoco
import numpy as np
import pytest

from gapd.model.robot import open_robot

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
Script = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.fixture
def script(tmp_path: Path) -> Script:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        places = {"--json": tmp_path / "results.jsonl", "--root": tmp_path / "problems", "--results": tmp_path}
        given = [str(part) for pair in places.items() for part in pair]
        command = [sys.executable, str(BENCHMARKS / "estimator.py"), *given, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    return run


def test_results_are_kept_and_more_truths_are_added_to_them(script: Script, tmp_path: Path) -> None:
    small = ("--problem", "servo_pendulum", "--windows", "4", "--coverage-truths", "1", "--sysid-truths", "0")
    done = script(*small, "--tables", "speed,far,coverage", "--truths", "1", "--far-truths", "1")
    assert (done.returncode, done.stderr) == (0, "")
    tables = {name: (tmp_path / f"estimator-{name}.md").read_text() for name in ("far", "coverage", "bars")}
    assert "| servo_pendulum | gapd | " in tables["far"]
    assert "| servo_pendulum | torque_constant | " in tables["coverage"]
    assert "neighbourhood, rollouts of finite-difference Gauss-Newton" in tables["bars"]
    assert "| gapd, learned + exact finish | " in (tmp_path / "estimator-speed-servo_pendulum.md").read_text()
    first = (tmp_path / "results.jsonl").read_text()
    # As if killed while writing.
    (tmp_path / "results.jsonl").write_text(first + '{"key": {"table": "fa\n')
    done = script(*small, "--tables", "far", "--far-truths", "2")
    assert done.returncode == 0
    assert "a line that is no result is skipped" in done.stdout
    assert " of 2 | " in (tmp_path / "estimator-far.md").read_text()
    both = (tmp_path / "results.jsonl").read_text()
    assert both.startswith(first)
    added = [json.loads(line)["key"] for line in both[len(first) :].splitlines()[1:]]
    assert [(key["table"], key["seed"]) for key in added] == [("far", 1)]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--problem", "arm8"), "--problem arm8: no such problem; did you mean 'arm7'?"),
        (("--tables", "sped"), "--tables sped: no such table; did you mean 'speed'?"),
        (("--truths", "0"), "--truths 0: use at least 1"),
    ],
)
def test_a_wrong_call_is_one_line(script: Script, arguments: tuple[str, ...], line: str) -> None:
    done = script(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"estimator.py: {line}")
    assert done.stderr.count("\n") == 1


def test_small_problems_have_the_parameters_they_are_named_for(
    module: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    problems = module("problems")
    for name, count in (("servo_pendulum", 6), ("arm7_10", 10), ("arm7_15", 15), ("arm7", 29), ("torque_10", 10)):
        robot = open_robot(problems.folder_of(name, tmp_path) / "robot.toml")
        assert len(robot.parameters) == count, name
    assert not robot.model.actuator_biastype.any()  # the torque arm's motors know no position
    written = (tmp_path / "arm7" / "robot.toml").stat().st_mtime_ns
    problems.folder_of("arm7", tmp_path)
    assert (tmp_path / "arm7" / "robot.toml").stat().st_mtime_ns == written


def test_a_pair_of_arms_is_two_arms_that_do_not_meet(module: Callable[[str], ModuleType]) -> None:
    one = (BENCHMARKS.parent / "models" / "arm7" / "model.xml").read_text(encoding="utf-8")
    single, pair = (
        mujoco.MjModel.from_xml_string(text) for text in (one, module("problem_texts").pair_of_arms(one))
    )  # fmt: skip
    assert (pair.nv, pair.nu, pair.nsensor) == (2 * single.nv, 2 * single.nu, 2 * single.nsensor)
    np.testing.assert_array_equal(pair.body_mass[1:], np.tile(single.body_mass[1:], 2))
    assert pair.joint("right_joint3").id == single.nv + single.joint("joint3").id


def test_mass_and_gear_are_named_and_stay(module: Callable[[str], ModuleType], tmp_path: Path) -> None:
    """Whatever the steps asked for, the pair ends where it was along what nothing tells."""
    runs = module("estimator_runs").Runs(tmp_path / "results.jsonl", tmp_path, tmp_path)
    folder = module("problems").folder_of("hoist", tmp_path)
    runs._opened["hoist"] = (open_robot(folder / "robot.toml"), None)  # without training
    plan = module("estimator_runs").Plan(("hoist",), 1, 1, 1, 0, first=1001, windows=16)
    row: dict[str, Any] = module("estimator_groups").measure(runs, plan, "hoist", 1001)
    assert row["named"]
    assert not row["sent"]
    assert abs(row["moved"]) < module("estimator_groups").STILL < 0.1 * abs(row["true"])
    assert row["ratio"] < 0.01


def test_memory_is_measured_in_a_process_of_its_own(module: Callable[[str], ModuleType], tmp_path: Path) -> None:
    module("problems").folder_of("arm7_10", tmp_path)
    command = [sys.executable, BENCHMARKS / "estimator_size.py", "arm7_10", "--windows", "4", "--root", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    row = json.loads(done.stdout)
    assert (row["source"], row["parameters"]) == ("finite differences", 10)
    assert 30 < row["before_mb"] <= row["peak_mb"] < 2000
