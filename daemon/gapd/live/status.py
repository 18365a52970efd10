"""How the daemon is, for `gapd status`: a socket file in the state folder that only its owner can open.

Whoever connects gets one JSON object and the end. Nothing is ever read from them, so that no request can do harm.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec

from gapd.errors import ConfigError, GapdError

FILE = "status.sock"
MODE = 0o600
# Of the kernel, for the path of a socket.
LONGEST_PATH = 107
# Asked for more often than that, the others wait for the next step.
MOST_AT_ONCE = 4
# An answer larger than the socket's buffer needs someone who reads it; for so long the daemon waits for them.
SLOWEST_S = 0.05
BUFFER_BYTES = 2**20
LARGEST_ANSWER = 2**24


class Level(IntEnum):
    """As in diagnostics of ROS. STALE: no frames for 10 periods."""

    OK = 0
    WARN = 1
    ERROR = 2
    STALE = 3


class Estimate(msgspec.Struct, frozen=True):
    """One parameter now, in its unit; sd is null where nothing is known yet."""

    name: str
    unit: str
    value: float
    sd: float
    status: str


class LinkState(msgspec.Struct, frozen=True):
    """The link to the host; `pending` messages wait for its acknowledgement, the oldest since oldest_s.

    dropped: messages of the host that made no sense.
    """

    endpoint: str = ""
    up: bool = False
    pending: int = 0
    oldest_s: float = 0.0
    version: int = 0
    error: str = ""
    dropped: int = 0


class Status(msgspec.Struct, frozen=True):
    """The answer. `problems`: why the level is not OK, each a line with its remedy. Counters never go down."""

    level: Level
    state: str
    robot: str
    problems: tuple[str, ...] = ()
    counters: dict[str, int] = {}
    link: LinkState | None = None
    estimates: tuple[Estimate, ...] = ()
    gap_floors: float | None = None
    since_s: float = 0.0


class StatusError(GapdError):
    """No status is to be had, and why."""


def status_path(state: Path) -> Path:
    """The socket file in a state folder."""
    return state / FILE


class StatusSocket:
    """The daemon's end. Poll it for input, then `serve`."""

    def __init__(self, path: Path) -> None:
        """Make the socket file. ConfigError if another daemon has it, or if it cannot be made."""
        if len(os.fsencode(path)) > LONGEST_PATH:
            raise ConfigError(f"{path}: longer than the {LONGEST_PATH} bytes of a socket's path; shorten the folder")
        self.failed = 0
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _remove_stale(path)
            self._socket.bind(os.fspath(path))
            path.chmod(MODE)  # nobody can connect before listen
            self._socket.listen(MOST_AT_ONCE * 2)
            self._made = _identity(path)
        except OSError as error:
            self._socket.close()
            raise ConfigError(f"{path}: {error.strerror}; correct the state folder or its permissions") from None
        except ConfigError:
            self._socket.close()
            raise
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """What to poll."""
        return self._socket.fileno()

    def serve(self, answer: Callable[[], Status]) -> int:
        """Answer those who have connected; `answer` is called only if there are any. Returns how many."""
        data = b""
        for count in range(MOST_AT_ONCE):
            try:
                client, _ = self._socket.accept()
            except OSError:  # nobody, or no more files to be had
                return count
            with client:
                data = data or msgspec.json.encode(answer()) + b"\n"
                self._answer(client, data)
        return MOST_AT_ONCE

    def _answer(self, client: socket.socket, data: bytes) -> None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        client.settimeout(SLOWEST_S)
        try:
            client.sendall(data)
        except OSError:
            self.failed += 1

    def close(self) -> None:
        """Remove the socket file, unless another daemon has put its own there."""
        self._socket.close()
        with suppress(OSError):
            if _identity(self._path) == self._made:
                self._path.unlink()


def _identity(path: Path) -> tuple[int, int]:
    """Of a file, also where another one has got its inode."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def _remove_stale(path: Path) -> None:
    """Remove the socket file that a killed daemon has left."""
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise ConfigError(f"{path}: is in the way of the status socket; remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except TimeoutError:
            pass  # one that is busy lives too
    raise ConfigError(f"{path}: another gapd runs with this state folder; stop it, or give each its own")


def ask(path: Path, timeout_s: float = 2.0) -> dict[str, Any]:
    """The status of the daemon behind a socket file. StatusError says in one line why there is none."""
    end_s = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.settimeout(timeout_s)
            client.connect(os.fspath(path))
            data = _read(client, end_s)
        except TimeoutError:
            raise StatusError(f"{path}: gapd does not answer within {timeout_s:g} s; it is busy, try again") from None
        except (FileNotFoundError, ConnectionRefusedError):
            raise StatusError(f"{path}: no gapd runs with this state folder; start it with gapd run") from None
        except PermissionError:
            raise StatusError(f"{path}: refused, gapd runs as another user; ask as that user, or with sudo") from None
        except OSError as error:
            raise StatusError(f"{path}: {error.strerror or error}; correct the path of the state folder") from None
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError:
        raise StatusError(f"{path}: the answer broke off after {len(data)} bytes; ask again") from None


def _read(client: socket.socket, end_s: float) -> bytes:
    parts, size = [], 0
    while size <= LARGEST_ANSWER:
        client.settimeout(max(end_s - time.monotonic(), 1e-3))
        part = client.recv(65536)
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)
