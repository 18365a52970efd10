"""The systemd units are valid and stay hardened."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gapd.cli import cli
from gapd.config import load_config

FOLDER = Path(__file__).parents[2] / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
# Of 100; a unit without hardening has 96.
MAX_EXPOSURE = 20

needs_systemd_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is not installed (Debian package systemd)",
)


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


def test_there_are_units() -> None:
    assert UNITS


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_unit_calls_gapd_as_it_wants_to_be_called(unit: Path) -> None:
    line = re.search(r"^ExecStart=/opt/gapd/bin/gapd (.+)$", unit.read_text(), flags=re.MULTILINE)
    assert line
    verb, *arguments = line[1].replace("%i", "lift").split()
    # Parses the options and raises on one that does not exist; runs nothing.
    cli.commands[verb].make_context(verb, arguments)


@needs_systemd_analyze
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_unit_is_valid(unit: Path, tmp_path: Path) -> None:
    text, starts = re.subn(
        r"^ExecStart=/opt/gapd/bin/gapd\b", "ExecStart=/bin/true", unit.read_text(), flags=re.MULTILINE
    )
    assert starts == 1
    copy = tmp_path / unit.name
    copy.write_text(text)
    result = analyze("verify", "--man=no", str(copy))
    # An unknown directive is only a warning, which would leave the service without its protection.
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@needs_systemd_analyze
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_exposure_is_low(unit: Path) -> None:
    result = analyze("security", "--no-pager", "--offline=true", f"--threshold={MAX_EXPOSURE}", str(unit))
    assert result.returncode == 0, result.stdout + result.stderr


def settings(unit: Path) -> dict[str, list[str]]:
    """Values of each directive, in order."""
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", unit.read_text(), flags=re.MULTILINE):
        found.setdefault(key, []).append(value)
    return found


def test_the_daemon_is_watched_and_modest() -> None:
    unit = settings(FOLDER / "gapd.service")
    assert unit["Type"] == ["notify"]
    assert unit["Restart"] == ["always"]
    assert unit["StartLimitIntervalSec"] == ["0"]
    assert int(unit["WatchdogSec"][0]) >= 30  # a loop that takes in the windows of a long fit is no hang
    assert int(unit["CPUWeight"][0]) < 100
    assert unit["MemoryMax"] == ["500M"]


def test_the_daemon_may_write_where_the_example_keeps_its_state() -> None:
    state = load_config(FOLDER.parent / "deploy" / "robot.example.toml").live.state
    folders = settings(FOLDER / "gapd.service")["StateDirectory"][0].split()
    assert Path(state).parent in [Path("/var/lib") / folder for folder in folders]


def test_the_filter_leaves_what_the_daemon_calls() -> None:
    """ZeroMQ aborts where it may not set the scheduling of its thread, and fits would not be nice."""
    filters = settings(FOLDER / "gapd.service")["SystemCallFilter"]
    assert filters[-1].split() == ["setpriority", "sched_setscheduler"]
    assert any(line.startswith("~") and "@resources" in line for line in filters[:-1])
