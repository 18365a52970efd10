"""The host's log: as the daemon's on a terminal, and what is refused again and again is counted."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from link_peer import FakeRobot

from gapd.live.telemetry import open_log
from gaptrain.host.refusals import Refusals

GAPTRAIN = Path(sys.executable).with_name("gaptrain")


def test_a_line_on_a_terminal(enrolled: Callable[..., FakeRobot], tmp_path: Path) -> None:
    robot = enrolled()
    ours, theirs = pty.openpty()
    command = [GAPTRAIN, "host", "--state", tmp_path / "state", "--bind", robot.bind]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            ready = terminal.readline().decode()
            process.terminate()
            stopped = terminal.readline().decode()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    pairs = f"bind={robot.bind} state={tmp_path / 'state'} robots=1 recalibrate=off"
    assert re.fullmatch(rf"\d\d:\d\d:\d\d info    ready {re.escape(pairs)}\r\n", ready)
    assert re.fullmatch(r"\d\d:\d\d:\d\d info    stopped refused=-\r\n", stopped)


def test_what_is_refused_again_is_counted_and_told_once_a_minute() -> None:
    now_s, stream = [0.0], io.StringIO()
    refusals = Refusals(open_log(stream, environ={}, clock=lambda: now_s[0]))
    for now_s[0] in (0.0, 1.0, 59.0, 60.0, 61.0):
        for who in ("r1", "r2"):
            refusals.note("malformed", who, "update gapd")
    refusals.note("invalid", "r1", "widen the bounds")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    told = [(line["reason"], line["robot"], line.get("suppressed")) for line in lines]
    assert told == [
        ("malformed", "r1", None), ("malformed", "r2", None), ("malformed", "r1", 2), ("malformed", "r2", 2),
        ("invalid", "r1", None),
    ]  # fmt: skip
    assert {(line["event"], line["level"]) for line in lines} == {("refused", "warning")}
    assert refusals.counts == {"malformed": 10, "invalid": 1}


def test_nobody_reads_the_log_and_the_host_goes_on(enrolled: Callable[..., FakeRobot], tmp_path: Path) -> None:
    robot = enrolled()
    command = [GAPTRAIN, "host", "--state", tmp_path / "state", "--bind", robot.bind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert robot.connect().say_hello().epoch == 1
        process.terminate()
        assert process.wait(10.0) == 0
