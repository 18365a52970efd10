"""The demo as a user starts it: it ends well, and its numbers are as good as it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "out"


@pytest.fixture(scope="module")
def done(out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "demo_recording.py", "--seed", "2", "--out", out],
        cwd=out.parent, env=os.environ | {"PYTHONWARNINGS": "error"}, capture_output=True, text=True, timeout=110,
        check=False,
    )  # fmt: skip


def test_it_ends_well_and_says_so(done: subprocess.CompletedProcess[str], out: Path) -> None:
    assert (done.returncode, done.stderr) == (0, "")
    assert "decision   OK correct: " in done.stdout
    assert sorted(path.name for path in out.iterdir()) == ["demo.png", "recording.csv", "report.json"]
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_the_gap_falls_to_the_noise_on_every_channel(done: subprocess.CompletedProcess[str], out: Path) -> None:
    channels = json.loads((out / "report.json").read_text(encoding="utf-8"))["gap"]["channels"]
    assert len(channels) == 21
    for name, gap in channels.items():
        assert gap["before"] > 3, name
        assert gap["after"] < 1.1, name


def test_intervals_contain_the_truth(done: subprocess.CompletedProcess[str], out: Path) -> None:
    """The table shows the truth; the report, which knows nothing of it, the interval."""
    truth = dict(re.findall(r"^(\w+/\w+/\w+) +(\S+) ", done.stdout, re.MULTILINE))
    parameters = json.loads((out / "report.json").read_text(encoding="utf-8"))["parameters"]
    assert set(truth) == {p["name"] for p in parameters}
    assert len(parameters) == 29
    inside = [p["low"] * 0.9999 <= float(truth[p["name"]]) <= p["high"] * 1.0001 for p in parameters]
    assert sum(inside) >= 0.8 * len(inside)
    # And not because they are wide.
    assert sum(p["high"] / p["low"] < 1.25 for p in parameters) >= 0.8 * len(parameters)
