"""`gapd status` over a real socket file: an answer, or one line that says why there is none."""

from __future__ import annotations

import errno
import math
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gapd.errors import ConfigError
from gapd.live import status
from gapd.live.status import Estimate, Level, LinkState, Status, StatusError, StatusSocket, ask

PLAIN = Status(
    Level.WARN, "watching", "arm", ("frames in plain text",), {"frames": 12}, LinkState("tcp://host:1", True),
    (Estimate("joint/j/damping", "N·m·s/rad", 0.1, math.nan, "estimated"),),
)  # fmt: skip


@contextmanager
def serving(opened: StatusSocket, answer: Callable[[], Status]) -> Iterator[None]:
    """A daemon's loop beside."""
    over = threading.Event()

    def loop() -> None:
        while not over.wait(0.005):
            opened.serve(answer)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[StatusSocket]:
    with closing(StatusSocket(tmp_path / "status.sock")) as made:
        yield made


def answered(opened: StatusSocket, answer: Callable[[], Status], path: Path) -> dict[str, Any]:
    with serving(opened, answer):
        return ask(path, 5.0)


def test_question_and_answer(opened: StatusSocket, tmp_path: Path) -> None:
    assert opened.serve(lambda: pytest.fail("nobody has asked")) == 0
    got = answered(opened, lambda: PLAIN, tmp_path / "status.sock")
    assert (got["level"], got["state"], got["counters"], got["link"]["up"]) == (1, "watching", {"frames": 12}, True)
    assert got["estimates"] == [
        {"name": "joint/j/damping", "unit": "N·m·s/rad", "value": 0.1, "sd": None, "status": "estimated"}
    ]


def test_only_its_owner_can_open_it(opened: StatusSocket, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / "status.sock").stat().st_mode) == 0o600


def test_large_answers_come_whole(opened: StatusSocket, tmp_path: Path) -> None:
    many = tuple(Estimate(f"joint/{i}/damping", "N·m·s/rad", i / 7, 0.1, "estimated") for i in range(20_000))
    got = answered(opened, lambda: Status(Level.OK, "watching", "arm", estimates=many), tmp_path / "status.sock")
    assert len(got["estimates"]) == 20_000


def test_requests_that_make_no_sense_do_not_hurt(opened: StatusSocket, tmp_path: Path) -> None:
    path = str(tmp_path / "status.sock")
    clients = [socket.socket(socket.AF_UNIX) for _ in range(6)]
    for client in clients:
        client.connect(path)
        client.setblocking(False)
    clients[0].send(b"x" * 100_000)
    clients[1].close()
    clients[2].send(b"GET / HTTP/1.1\r\n\r\n")
    clients[3].shutdown(socket.SHUT_RD)
    began = time.monotonic()
    served = [opened.serve(lambda: PLAIN) for _ in range(3)]
    assert served == [4, 2, 0]
    assert time.monotonic() - began < 1.0
    for client in clients:
        client.close()
    assert answered(opened, lambda: PLAIN, tmp_path / "status.sock")["state"] == "watching"


def test_who_does_not_read_is_left_behind(opened: StatusSocket, tmp_path: Path) -> None:
    large = Status(Level.OK, "x" * 4_000_000, "arm")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "status.sock"))
        began = time.monotonic()
        assert opened.serve(lambda: large) == 1
        assert time.monotonic() - began < 1.0
    assert opened.failed == 1


def test_no_daemon(tmp_path: Path) -> None:
    with pytest.raises(StatusError, match="no gapd runs with this state folder; start it with gapd run"):
        ask(tmp_path / "status.sock")
    StatusSocket(tmp_path / "status.sock")._socket.close()  # killed: the file stays
    assert (tmp_path / "status.sock").exists()
    with pytest.raises(StatusError, match="no gapd runs"):
        ask(tmp_path / "status.sock")
    with pytest.raises(StatusError, match="correct the path"):
        ask(tmp_path / ("x" * 200))


def test_a_daemon_that_is_busy(opened: StatusSocket, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(StatusError, match=r"does not answer within 0\.2 s"):
        ask(tmp_path / "status.sock", 0.2)
    assert time.monotonic() - began < 1.0
    assert answered(opened, lambda: PLAIN, tmp_path / "status.sock")["robot"] == "arm"


@pytest.mark.parametrize("content", [b"", b'{"level": 1', b"[1]", b"\xff\xfe"])
def test_an_answer_that_is_none(tmp_path: Path, content: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()

        def answer() -> None:
            client, _ = server.accept()
            with client:
                client.send(content)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(StatusError, match=f"broke off after {len(content)} bytes"):
            ask(tmp_path / "s")
        thread.join()


def test_an_answer_without_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "LARGEST_ANSWER", 100_000)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        theirs.send(b"x" * 150_000)
        assert 100_000 < len(status._read(ours, time.monotonic() + 1)) < 200_000


def test_another_user(opened: StatusSocket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may open everything, so the refusal of the kernel is put in its place where the tests run as root."""
    (tmp_path / "status.sock").chmod(0)
    if os.geteuid() == 0:
        monkeypatch.setattr(socket.socket, "connect", _refuse)
    with pytest.raises(StatusError, match="gapd runs as another user"):
        ask(tmp_path / "status.sock")


def _refuse(_socket: socket.socket, _address: str) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_two_daemons_with_one_folder(opened: StatusSocket, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="another gapd runs with this state folder"):
        StatusSocket(tmp_path / "status.sock")
    assert answered(opened, lambda: PLAIN, tmp_path / "status.sock")["state"] == "watching"


def test_a_killed_daemon_s_file_is_replaced_and_a_new_one_s_kept(tmp_path: Path) -> None:
    path = tmp_path / "status.sock"
    killed = StatusSocket(path)
    killed._socket.close()
    with closing(StatusSocket(path)) as now:
        killed.close()
        assert path.exists(), "not its file any more"
        assert answered(now, lambda: PLAIN, path)["state"] == "watching"
    assert not path.exists()


def test_paths_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    for path, line in (
        (tmp_path / "file", "is in the way of the status socket; remove it"),
        (tmp_path / "none" / "s", "No such file or directory; correct the state folder"),
        (tmp_path / ("x" * 120), "longer than the 107 bytes"),
    ):
        with pytest.raises(ConfigError, match=line):
            StatusSocket(path)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"
