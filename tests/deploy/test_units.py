"""The systemd units are valid and stay hardened."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gapd.cli import cli

UNITS = sorted((Path(__file__).parents[2] / "systemd").glob("*.service"))
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
