"""The benchmark on real recordings with tiny sizes, and what the peers see of a window beside gapd's own gap."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gapd.gap.replay import Replay, gap
from gapd.measured.windows import Windows
from gapd.model.robot import Robot

CutWindows = Callable[..., Windows]
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("peers")


@pytest.fixture
def real_logs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module("real_logs")
    if not module.data_folder().is_dir():
        pytest.skip(f"{module.data_folder()}: no such folder; set GAPD_DATA to the folder of the recordings")
    return module


@pytest.mark.parametrize("name", ["arm", "servo"])
@pytest.mark.parametrize("scale", ["log", "linear"])
def test_sysid_compares_the_same_samples(
    name: str, scale: str, peers: ModuleType, windows_of: CutWindows, request: pytest.FixtureRequest
) -> None:
    """A shift by one sample would go unnoticed in a fit: it only ends in other values."""
    robot: Robot = request.getfixturevalue(name)
    windows = windows_of(robot, robot.parameters.nominal, 2, 1)
    z = robot.parameters.z_nominal + 0.1
    expected = gap(windows, Replay(robot).run(windows, robot.parameters.to_physical(z)), robot.layout.noise)
    fit = peers.sysid_fit(robot, windows, z, scale=scale, max_iterations=0, threads=1)
    assert fit.trace[0].rollouts == len(windows)
    np.testing.assert_allclose(fit.cost, np.sum(expected**2), rtol=1e-9)


def test_peers_find_what_was_hidden(peers: ModuleType, level: Robot, windows_of: CutWindows) -> None:
    """One robot without gravity, six windows: enough for four parameters, and for both tools to agree."""
    truth = level.parameters.nominal * np.array([1.3, 0.8, 1.4, 0.7])
    windows = windows_of(level, truth, 6, 2)
    by_scipy = peers.scipy_fit(level, windows, peers.multistart(level, 1, 1), max_evaluations=20)
    by_sysid = peers.sysid_fit(level, windows, level.parameters.z_nominal, max_iterations=20, threads=1)
    error = np.abs(np.array([by_scipy.z, by_sysid.z]) - level.parameters.to_scaled(truth))
    assert error.max() < 0.2
    assert by_sysid.trace[-1].rollouts <= by_sysid.rollouts
    assert by_sysid.cost < 1.01 * by_scipy.cost


@pytest.mark.real
def test_ballscrew_from_recording_to_table(real_logs: ModuleType, tmp_path: Path) -> None:
    """Everything the script does with a set, on 2 s of it."""
    full = real_logs.SETS["ballscrew"](real_logs.data_folder())
    held_out = replace(full.held_out, windows=full.held_out.windows.take(slice(0, 3)))
    short = tuple(frames.between(0.0, 2.0) for frames in full.recordings)
    logs = replace(full, recordings=short, held_out=held_out, drawn=(("emps", held_out),))
    done = real_logs.run(logs, quick=True, out=tmp_path, results=tmp_path)
    error = {row["method"]: row["rmse"] for row in json.loads(json.dumps(done))["rows"]}
    assert error["gapd"] < 0.2 * error["nominal"]
    assert "| gapd |" in (tmp_path / "real-emps.md").read_text(encoding="utf-8")
    assert (tmp_path / "emps.png").stat().st_size > 10_000


@pytest.mark.real
def test_servo_replays_what_others_replayed(real_logs: ModuleType) -> None:
    """RMSE at gain 800 over 6 s, as others measured it on the same files: 0.349 with our nominal values."""
    logs = real_logs.SETS["servo"](real_logs.data_folder())
    nominal, published = real_logs.fixed(logs)
    assert nominal.rmse == pytest.approx(0.349, abs=0.002)
    assert published.rmse == pytest.approx(0.172, abs=0.005)


def sin_sin(real_logs: ModuleType) -> Any:
    """The servo's set with one of its four motions."""
    return importlib.import_module("recordings").servo(real_logs.data_folder(), "sin_sin")


@pytest.mark.real
def test_load_friction_of_zero_changes_nothing(real_logs: ModuleType) -> None:
    logs = sin_sin(real_logs)
    windows = logs.fitted("windows").windows.take([1])
    data = replace(logs.held_out, robot=logs.robot, windows=windows)
    points = np.append(logs.robot.parameters.z_nominal, 0.0)[None] + np.array([[0.0] * 7, [0.0] * 6 + [10.0]])
    free, stuck = real_logs.with_load_friction(logs.robot, windows, points, threads=1)
    plain = data.predicted(points[0, :-1])
    np.testing.assert_allclose(free, plain, atol=1e-9)
    assert np.ptp(stuck[0, 5:, 0]) < 0.3 * np.ptp(plain[0, 5:, 0])


@pytest.mark.real
@pytest.mark.slow
def test_load_friction_is_fitted_back(real_logs: ModuleType) -> None:
    """From a recording made by the replay itself."""
    logs = sin_sin(real_logs)
    windows = logs.fitted("windows").windows.take(slice(0, 6))
    truth = np.append(logs.robot.parameters.to_scaled(logs.published), 0.2)
    measured = real_logs.with_load_friction(logs.robot, windows, truth[None], threads=2)[0]
    start = logs.robot.parameters.z_nominal[None]
    fit = real_logs.fit_load_friction(logs.robot, replace(windows, measured=measured), start, threads=2)
    assert fit.x[-1] == pytest.approx(0.2, abs=0.02)


@pytest.mark.real
def test_nothing_held_out_is_fitted(real_logs: ModuleType) -> None:
    data = real_logs.data_folder()
    servo, ballscrew = real_logs.SETS["servo"](data), real_logs.SETS["ballscrew"](data)
    assert not [frames.name for frames in servo.recordings if "kp800" in frames.name]
    assert len(servo.recordings) == 8
    assert ballscrew.recordings[0].timestamp[-1] <= ballscrew.held_out.windows.start_s[0]
