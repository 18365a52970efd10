"""Faults of a daemon in this process: what breaks under it is told, and over when it is mended."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from live_robot import InProcess, Source

from gapd.errors import InputError
from gapd.link.outbox import Outbox
from gapd.live.recorder import Recorder
from gapd.live.status import Level
from gapd.messages.frames import Frame
from gapd.messages.link import Correction, Escalation
from gapd.model.robot import Robot


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source may be silent as long as it likes, and a failed write is tried again soon."""
    monkeypatch.setattr("gapd.live.source_watch.STALE_S", 1e9)
    monkeypatch.setattr("gapd.live.daemon.RETRY_S", 0.2)


@pytest.fixture
def inside(alive: Robot, source: Source, patient: None) -> Iterator[InProcess]:
    made = InProcess(alive, source)
    yield made
    made.close()


def test_a_fit_that_raises_is_told_and_another_one_made(
    inside: InProcess, commissioning: list[Frame], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("gapd.live.fitter.run", _raise)
        early = [f for f in commissioning if f.timestamp < 112.0]
        inside.feed(early)
        inside.settle()
    failed = inside.events("fit_failed")
    assert [line["level"] for line in failed] == ["error"]
    assert failed[0]["reason"].startswith("FloatingPointError: overflow (test_inside_faults.py:")
    assert failed[0]["remedy"].startswith("the next one is tried after 10 s")
    assert inside.daemon.problems.level == Level.ERROR
    assert inside.daemon.pipeline.keeper.state == "commissioning"
    assert inside.daemon.pipeline.keeper.waiting == 0
    inside.feed([msgspec.structs.replace(f, timestamp=f.timestamp + 13.0) for f in commissioning])
    inside.settle()
    assert [line["action"] for line in inside.events("decision")] == ["correct"]
    assert inside.daemon.problems.level == Level.OK


def test_frames_without_usable_windows_are_told_with_the_reason(
    inside: InProcess, commissioning: list[Frame], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gapd.live.source_watch.UNUSABLE_S", 0.2)
    inside.feed(commissioning[:1000])
    assert inside.daemon.problems.level == Level.OK
    bad = [msgspec.structs.replace(f, position=(np.nan,) * len(f.position)) for f in commissioning[1000:2000]]
    inside.feed(bad)
    time.sleep(0.25)
    inside.turn(lambda: inside.daemon.problems.level == Level.WARN)
    (line,) = inside.events("windows_unusable")
    assert line["reason"] == inside.daemon.status().problems[0]
    assert "no usable window for 0 s: window at " in line["reason"]
    inside.feed(commissioning[2000:])
    assert inside.daemon.problems.level == Level.OK


def test_a_robot_that_cannot_be_replayed_is_escalated_once_with_its_frames(
    alive: Robot, patient: None, source: Source, commissioning: list[Frame], tmp_path: Path
) -> None:
    with closing(Outbox(tmp_path / "outbox.sqlite", 2**20, lambda _: None)) as outbox:
        with closing(InProcess(alive, source, outbox)) as inside:
            keeper = inside.daemon.pipeline.keeper
            replayed = keeper._squared
            keeper._squared = lambda *of: np.full_like(replayed(*of), np.inf)  # type: ignore[method-assign]
            later = [msgspec.structs.replace(f, timestamp=f.timestamp + 15.005) for f in commissioning]
            inside.feed([*commissioning, *later])
            assert len(inside.events("diverged")) == 2
            assert len(inside.events("escalation_known")) == 1
            assert not inside.events("fit")
            assert inside.daemon.problems.level == Level.ERROR
            assert "the replay with the present values diverges in" in inside.daemon.status().problems[0]
        ((_, told),) = outbox.pending(9)
        assert isinstance(told, Escalation)
        assert told.evidence_bytes > 0
        assert told.terms == ()
        assert "diverges" in told.reason


def test_a_fit_that_gapd_refuses_says_its_own_remedy(
    inside: InProcess, commissioning: list[Frame], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise InputError("joint/j/damping: the replay diverges; narrow its bounds")

    monkeypatch.setattr("gapd.live.fitter.run", refuses)
    inside.feed([f for f in commissioning if f.timestamp < 112.0])
    inside.settle()
    (line,) = inside.events("fit_failed")
    assert line["reason"] == "joint/j/damping: the replay diverges; narrow its bounds"
    assert line["remedy"] == "the next one is tried after 10 s"


def _raise(*_: object) -> None:
    raise FloatingPointError("overflow")


def test_a_full_disk_costs_no_state_and_is_over_when_it_is(
    inside: InProcess, commissioning: list[Frame], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.turn((inside.daemon.robot.config.path("state") / "memory.json").exists)
    with monkeypatch.context() as patch:
        patch.setattr("gapd.durable.os.fsync", _no_space)
        inside.feed(commissioning)
        inside.settle()
        inside.turn(lambda: inside.daemon.problems.level == Level.ERROR)
        problems = inside.daemon.status().problems
        assert len(problems) == 1
        assert "cannot be written (No space left on device); free space on the disk" in problems[0]
        assert inside.edges.state.load()[0] != inside.daemon.pipeline.keeper.memory
    inside.turn(lambda: inside.daemon.problems.level == Level.OK)
    assert inside.edges.state.load() == (inside.daemon.pipeline.keeper.memory, 0)
    assert [line["level"] for line in inside.events("state")] == ["error"]


def _no_space(_descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_a_full_outbox_does_not_take_waits(
    alive: Robot, patient: None, source: Source, story: list[Frame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Outbox(tmp_path / "outbox.sqlite", 2**20, lambda _: None)) as outbox:
        inside = InProcess(alive, source, outbox)
        with closing(inside):
            with monkeypatch.context() as patch:
                patch.setattr(Outbox, "put", _full)
                inside.feed([f for f in story if f.timestamp < 132.5])
                inside.settle()
                assert inside.daemon.problems.level == Level.ERROR
                assert inside.daemon.host.post.pending == 2
            inside.turn(lambda: len(outbox) == 2)
            inside.turn(lambda: inside.daemon.problems.level == Level.OK)
            assert inside.daemon.host.post.version == 2
        waiting = [message for _, message in outbox.pending(9)]
        assert [m.base_version for m in waiting] == [0, 1]
        assert isinstance(waiting[1], Correction)
        assert waiting[1].z == inside.daemon.pipeline.keeper.memory.z
        lines = [line["reason"] for line in inside.events("outbox")]
        assert lines
        assert all("raise outbox max_bytes" in line for line in lines)


def _full(outbox: Outbox, _message: object) -> int:
    raise outbox._full()


@pytest.mark.slow
@pytest.mark.fault
def test_an_escalation_goes_without_evidence_that_no_disk_takes(
    alive: Robot, source: Source, story: list[Frame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Outbox(tmp_path / "outbox.sqlite", 2**20, lambda _: None)) as outbox:
        inside = InProcess(alive, source, outbox)
        with closing(inside):
            monkeypatch.setattr("gapd.durable.os.fsync", _no_space)
            inside.feed(story)
            inside.settle()
        last = outbox.pending(9)[-1][1]
        assert isinstance(last, Escalation)
        assert (last.evidence, last.evidence_bytes) == ("", 0)
        assert inside.events("evidence_lost")[0]["reason"].endswith("free space on the disk")


def test_a_correction_that_was_stored_before_a_crash_is_taken_up(
    alive: Robot, source: Source, commissioning: list[Frame], tmp_path: Path
) -> None:
    """The outbox is written first: a crash between it and the state leaves the older state."""
    with closing(Outbox(tmp_path / "outbox.sqlite", 2**20, lambda _: None)) as outbox:
        with closing(InProcess(alive, source, outbox)) as inside:
            inside.turn((tmp_path / "state" / "memory.json").exists)
            before = (tmp_path / "state" / "memory.json").read_bytes()
            inside.feed(commissioning)
            inside.settle()
            z = inside.daemon.pipeline.keeper.memory.z
        (tmp_path / "state" / "memory.json").write_bytes(before)
        with closing(InProcess(alive, source, outbox)) as inside:
            assert inside.daemon.pipeline.keeper.memory.z == z
            assert inside.daemon.host.post.version == 1


def test_a_recording_that_cannot_be_written_is_told_until_it_can(
    inside: InProcess, commissioning: list[Frame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gapd.live.recorder.RETRY_S", 0.1)
    (tmp_path / "away").mkdir()
    recorder = inside.edges.recorder = Recorder(tmp_path / "away", "tiny")
    (tmp_path / "away").rmdir()
    inside.feed(commissioning[:10])
    assert [line["level"] for line in inside.events("recorder")] == ["warning"]
    assert "free space and check permissions" in inside.daemon.status().problems[0]
    (tmp_path / "away").mkdir()
    time.sleep(0.15)
    inside.feed(commissioning[10:20])
    assert inside.daemon.problems.level == Level.OK
    recorder.close()
