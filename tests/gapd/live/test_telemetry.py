"""The log as people and programs read it, and the service manager as it hears the daemon."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gapd.live.telemetry import ServiceManager, canonical, open_log, rounded


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_on_a_terminal() -> None:
    stream = Terminal()
    log = open_log(stream, environ={})
    canonical(
        log, "cycle", gap=1.23456789, floors=np.float64(0.98765432), window=12, ok=True, none=None,
        text="two words", names=["a", "b"], parts={"x": 0.1234567}, empty=(), evil='a\n\x1b[31m"=b',
    )  # fmt: skip
    canonical(log, "refused", level="warning")
    first, second = stream.getvalue().splitlines()
    assert first[8:] == (
        ' info    cycle gap=1.235 floors=0.9877 window=12 ok=true none=null text="two words" names=a,b parts=x:0.1235'
        r' empty=- evil="a\\n\\x1b[31m\"=b"'
    )
    assert second[8:] == " warning refused"


def test_json_elsewhere_in_a_fixed_order() -> None:
    stream = io.StringIO()
    canonical(open_log(stream, environ={}), "cycle", gap=np.array([1.23456, math.nan]), unit="N·m", timestamp=12.0)
    assert "N·m" in stream.getvalue()
    (line,) = lines(stream)
    assert list(line) == ["time", "level", "event", "gap", "unit", "timestamp"]
    assert (line["event"], line["gap"], line["timestamp"]) == ("cycle", [1.235, None], 12.0)


def test_nothing_in_a_value_breaks_the_line() -> None:
    stream = io.StringIO()
    canonical(open_log(stream, environ={}), "refused", name='x"\n{"event": "forged"}', path=Path("/a b"))
    (line,) = lines(stream)
    assert (line["name"], line["path"]) == ('x"\n{"event": "forged"}', "/a b")


def test_priorities_where_standard_error_is_the_journal() -> None:
    """Only where $JOURNAL_STREAM names this very file: services of a terminal inherit it too."""
    program = (
        "import os, sys; from gapd.live.telemetry import canonical, open_log\n"
        "s = os.fstat(2); right = f'{s.st_dev}:{s.st_ino}'\n"
        "for stream in (right, '1:2', ''):\n"
        "    log = open_log(environ={'JOURNAL_STREAM': stream}, level='debug')\n"
        "    for level in ('debug', 'info', 'warning', 'error'):\n"
        "        canonical(log, 'cycle', level=level)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True)
    starts = [line[:3] for line in done.stderr.splitlines()]
    assert starts == ["<7>", "<6>", "<4>", "<3>"] + ['{"t'] * 8
    assert json.loads(done.stderr.splitlines()[0][3:])["event"] == "cycle"


def test_a_real_terminal() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        canonical(open_log(stream, environ={}), "ready", after_s=1.23456)
        assert os.read(ours, 1000).decode().split(" ", 1)[1] == "info    ready after_s=1.235\r\n"
    os.close(ours)


def test_what_comes_too_often_is_counted_by_event_and_key() -> None:
    now, stream = 0.0, io.StringIO()
    log = open_log(stream, environ={}, clock=lambda: now)
    for i in range(1000):
        now = i / 100
        for key in ("spike", "stuck"):
            canonical(log, "window", key=key, every_s=4.0, reason=key)
        canonical(log, "cycle")
    written = [line for line in lines(stream) if line["event"] == "window"]
    assert [(line["reason"], line.get("suppressed")) for line in written] == [
        (reason, suppressed) for suppressed in (None, 399, 399) for reason in ("spike", "stuck")
    ]
    assert sum(line["event"] == "cycle" for line in lines(stream)) == 1000


def test_made_up_keys_do_not_fill_the_memory() -> None:
    stream = io.StringIO()
    log = open_log(stream, environ={}, clock=lambda: 0.0)
    for i in range(5000):
        canonical(log, "window", key=str(i), every_s=10.0)
    canonical(log, "window", key="4999", every_s=10.0)
    assert len(lines(stream)) == 5000
    (limiter,) = [p for p in log._processors if hasattr(p, "_written")]  # type: ignore[attr-defined]
    assert len(limiter._written) == 1000


def test_levels() -> None:
    stream = io.StringIO()
    log = open_log(stream, "warning", environ={})
    canonical(log, "cycle")
    canonical(log, "down", level="error")
    assert [line["event"] for line in lines(stream)] == ["down"]


def test_a_stream_that_is_gone_stops_nobody() -> None:
    stream = io.StringIO()
    log = open_log(stream, environ={})
    stream.close()
    canonical(log, "cycle")
    read, write = os.pipe()
    os.close(read)
    with pytest.raises(BrokenPipeError), os.fdopen(write, "w") as pipe:  # when it is closed
        canonical(open_log(pipe, environ={}), "cycle")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (123456.7, 123500.0),
        (1.23456e-7, 1.235e-7),
        (np.float32(0.1), 0.1),
        (np.int64(5), 5),
        (np.bool_(1), True),
        ((1.23456, [2.34567]), [1.235, [2.346]]),
        ({1: 1.23456}, {"1": 1.235}),
        (math.inf, math.inf),
        (True, True),
        (123456789, 123456789),
        (Path("/x"), "/x"),
    ],
)
def test_rounding(value: object, expected: object) -> None:
    assert rounded(value) == expected


class TestServiceManager:
    @pytest.fixture(params=["file", "abstract"])
    def manager(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
        """A socket that hears what the daemon says, and its name for the environment."""
        name = str(tmp_path / "notify") if request.param == "file" else f"@gapd-test-{os.getpid()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind(name.replace("@", "\0"))
            listener.settimeout(2)
            yield listener, name

    def test_what_it_hears(self, manager: tuple[socket.socket, str]) -> None:
        listener, name = manager
        environ = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "20000000", "WATCHDOG_PID": str(os.getpid())}
        with closing(ServiceManager(environ)) as service:
            assert service.watchdog_s == 10.0
            service.ready()
            service.alive()
            service.status("watching\nREADY=0" + "x" * 1000)
            service.stopping()
            said = [listener.recv(4096) for _ in range(4)]
            assert said[:2] == [b"READY=1", b"WATCHDOG=1"]
            assert said[2].startswith(b"STATUS=watching\\nREADY=0xxx")
            assert len(said[2]) < 600
            assert said[3] == b"STOPPING=1"

    @pytest.mark.parametrize("name", ["", "relative", "vsock:2:3"])
    def test_no_manager(self, name: str) -> None:
        service = ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000000"})
        service.ready()
        assert (service.watchdog_s, service.failed) == (None, 0)

    def test_a_manager_that_is_gone_or_does_not_listen(self, tmp_path: Path) -> None:
        with closing(ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")})) as service:
            service.alive()
            assert service.failed == 1
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind(str(tmp_path / "full"))
            with closing(ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "full")})) as service:
                for _ in range(2000):
                    service.alive()
                assert service.failed > 0

    @pytest.mark.parametrize(
        ("environ", "seconds"),
        [
            ({}, None),
            ({"WATCHDOG_USEC": "3000000"}, 1.5),
            ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
            ({"WATCHDOG_USEC": "soon"}, None),
            ({"WATCHDOG_USEC": "0"}, None),
        ],
    )
    def test_how_often(self, environ: dict[str, str], seconds: float | None) -> None:
        with closing(ServiceManager({"NOTIFY_SOCKET": "/run/x"} | environ)) as service:
            assert service.watchdog_s == seconds
