"""The benchmark of the daemon with tiny sizes: a real daemon, real sockets, a table."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    found = importlib.import_module("daemon")
    monkeypatch.setattr(found, "SPLIT_S", 4.5)
    return found


def test_from_frames_to_table(benchmark: ModuleType, tmp_path: Path) -> None:
    """No fit: three seconds are too few windows for one."""
    place, frames = benchmark.prepare(tmp_path), tmp_path / "frames"
    benchmark.write_frames(frames, 4.5, 1.0)
    parts = benchmark.split(frames)
    row = benchmark.measure(place, frames, 3.0)
    assert row.sent == row.handled == 3000
    assert row.counters["frames_lost"] == 0
    assert row.counters["windows_ok"] >= 9
    assert 0 < row.share < 2
    assert len(row.lag_s) > 100
    assert np.median(row.lag_s) < 0.2
    benchmark.report(benchmark.without(0.2), {"tiny": row}, [row.ready_s], parts, tmp_path)
    assert "| frames lost | 0 | - | 0 |" in (tmp_path / "daemon.md").read_text(encoding="utf-8")
