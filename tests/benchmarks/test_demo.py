"""The live demo as a user starts it. It judges itself, against a truth that neither daemon nor host has seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def live(seed: int, out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "demo.py", "--seed", str(seed), "--out", out],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip


@pytest.mark.timeout(220)
def test_the_demo_corrects_twice_and_names_the_joint_of_the_stop(tmp_path: Path) -> None:
    done = live(1, tmp_path / "out")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "simulation: version 2 applied" in done.stdout
    assert (tmp_path / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.timeout(220)
@pytest.mark.parametrize("seed", range(1, 11))
def test_the_demo_passes_with_each_seed(seed: int, tmp_path: Path) -> None:
    done = live(seed, tmp_path / "out")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
