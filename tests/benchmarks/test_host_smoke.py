"""The benchmark of the host with tiny sizes: a real host, real sockets, a row."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("host")


def test_corrections_are_acknowledged_and_timed(benchmark: ModuleType, tmp_path: Path) -> None:
    port = importlib.import_module("ports").free_ports(1)[0]
    case = benchmark.Case("tiny", robots=2, in_flight=2, port=port)
    ((name, rate, p50, p99, *_, memory),), notes = benchmark.measure(tmp_path, [case], 1.0)
    assert name == "tiny"
    assert float(rate) > 10
    assert 0 < float(p50) <= float(p99) < 1000
    assert 20 < float(memory) < 500
    assert notes[1].startswith("Start to ready with 2 robots enrolled: ")
