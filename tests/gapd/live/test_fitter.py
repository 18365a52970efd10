"""A fit beside the loop: one at a time, at low priority, and never the end of the daemon."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from gapd.fit.cycle import Report, Standing, prepare, run
from gapd.live import fitter as module
from gapd.live.events import Job
from gapd.live.fitter import NICE, Failed, Fitter
from gapd.model.robot import Robot


@pytest.fixture
def job(tiny: Robot, recorded: Any) -> Job:
    frames = recorded(tiny, tiny.parameters.nominal * 1.3, 20.0, seed=2).frames
    return Job(prepare(tiny, [frames]), Standing(tiny.parameters.z_nominal), "commissioning", np.nan)


@pytest.fixture
def fitter(tiny: Robot) -> Iterator[Fitter]:
    with closing(Fitter(tiny, None)) as made:
        yield made


def test_the_report_is_that_of_the_cycle(tiny: Robot, fitter: Fitter, job: Job) -> None:
    assert fitter.take() is None
    fitter.start(job)
    assert fitter.busy
    report = fitter.take(30.0)
    assert isinstance(report, Report)
    assert not fitter.busy
    assert fitter.take() is None
    assert report.decision == run(tiny, job.prepared, job.standing).decision
    assert fitter.cpu_s > 0


@pytest.mark.parametrize("error", [FloatingPointError("overflow"), MemoryError()])
def test_what_a_fit_raises_is_no_end(
    fitter: Fitter, job: Job, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> Report:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(module, "run", fails)
        fitter.start(job)
        failed = fitter.take(5.0)
    assert isinstance(failed, Failed)
    assert failed.reason.startswith(f"{type(error).__name__}: {error} (test_fitter.py:")
    assert not fitter.busy
    monkeypatch.setattr(module, "run", lambda *_: "another report")
    fitter.start(job)
    assert fitter.take(5.0) == "another report"


def test_it_is_nice_and_beside_the_loop(fitter: Fitter, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, str]] = []

    def look(*_: object) -> None:
        seen.append((os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), threading.current_thread().name))

    monkeypatch.setattr(module, "run", look)
    fitter.start(job)
    fitter.take(5.0)
    assert seen[0][0] >= NICE
    assert seen[0][1].startswith("fit")
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) < NICE


def test_the_end_waits_for_a_running_fit(tiny: Robot, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        began.set()
        go.wait(5.0)
        ended.set()

    monkeypatch.setattr(module, "run", slow)
    fitter = Fitter(tiny, None)
    fitter.start(job)
    began.wait(5.0)
    assert fitter.take() is None
    threading.Timer(0.1, go.set).start()
    fitter.close()
    assert ended.is_set()
