"""The benchmark of hidden structure on the smallest robot: one case that is named, one control, and their table."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from gapd.gap_model.bundle import open_bundle
from gapd.gap_model.learned import Learned
from gapd.model.robot import Robot, open_robot

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def structure(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("structure")


def test_friction_is_named_and_nothing_is_not(structure: ModuleType, servo: Robot) -> None:
    learned, folder = Learned(open_bundle(servo), servo), structure.MODELS / "servo_pendulum"
    cases = [structure.draw(servo, "servo_pendulum", kind, 58, 1) for kind in ("load friction", "none")]
    rows = [structure.measure(servo, folder, case, learned) for case in cases]
    assert [row.named for row in rows] == [True, False]
    assert [bool(row.findings) for row in rows] == [True, False]
    lines = structure.lines(rows)
    assert [line[:6] for line in lines] == [
        ["servo_pendulum", "load friction", "0.1 of load", "1", "1", "1 / 1"],
        ["servo_pendulum", "none", "-", "1", "0", "-"],
    ]
    assert all(len(line) == len(structure.HEAD) for line in lines)


def test_the_delayed_arm_has_its_delay_as_a_parameter(structure: ModuleType, tmp_path: Path) -> None:
    robot = open_robot(structure.delayed_arm(tmp_path))
    case = structure.draw(robot, "arm7", "delay", 1, 1)
    at = robot.parameters.names.index(case.parameter)
    assert case.physical[at] == 0.014
    assert (robot.parameters.to_physical(case.before) != case.physical).nonzero()[0].tolist() == [at]
