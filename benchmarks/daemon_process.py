"""`gapd run` as a process with a host, and what the kernel says of it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playback import EXTRA, MODEL
from ports import free_ports

from gapd.keys import write_keys
from gaptrain.host.enrolment import enrol
from gaptrain.host.program import host_keys

# One frame in so many comes back on the stream with its time: no divisor of the frames of a window, because the frame
# that closes one waits the longest.
STREAM_EVERY = 17
# The fit after a change is not to wait for the one before.
MIN_INTERVAL_S = 20.0


@dataclass
class Place:
    """A folder with a robot.toml, a host's state and the log, and the ports."""

    folder: Path
    source: str
    stream: str
    link: str

    @property
    def config(self) -> Path:
        """The robot's file."""
        return self.folder / "arm7" / "robot.toml"

    @property
    def log(self) -> Path:
        """The daemon's log."""
        return self.folder / "daemon.log"

    def lines(self, *events: str) -> list[dict[str, Any]]:
        """Lines of the log with one of these events."""
        whole = self.log.read_text(encoding="utf-8").rpartition("\n")[0]  # the last line may still be written
        found = [json.loads(line) for line in whole.splitlines()]
        return [line for line in found if line["event"] in events]


def prepare(folder: Path) -> Place:
    """Lay out a robot that is enrolled with a host."""
    place = Place(folder, *(f"tcp://127.0.0.1:{port}" for port in free_ports(3)))
    robot = folder / "arm7"
    shutil.copytree(MODEL, robot)
    host_keys(folder / "host")
    (robot / "host.pub").write_bytes((folder / "host" / "host.pub").read_bytes())
    write_keys(robot, "arm7")
    enrol(folder / "host", "arm7", MODEL / "robot.toml", robot / "arm7.pub")
    with place.config.open("a", encoding="utf-8") as file:
        file.write(f"""
[live.frames]
endpoint = "{place.source}"
ignore = {json.dumps(EXTRA)}

[live.stream]
endpoint = "{place.stream}"
frames_every = {STREAM_EVERY}

[live.link]
name = "arm7"
endpoint = "{place.link}"
server_public_key = "host.pub"
secret_key = "arm7.key"

[live.keeper]
min_interval_s = {MIN_INTERVAL_S}
""")
    return place


@contextmanager
def daemon(place: Place) -> Iterator[tuple[int, float]]:
    """`gapd run` as a process; its number, and seconds from its start to READY."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, place.log.open("w") as log:
        notify.bind(str(place.folder / f"notify{time.monotonic_ns()}"))
        notify.settimeout(0.5)
        environ = os.environ | {"NOTIFY_SOCKET": notify.getsockname()}
        command = [str(Path(sys.executable).with_name("gapd")), "run", "--config", str(place.config)]
        began = time.monotonic()
        process = subprocess.Popen(command, stderr=log, env=environ)
        try:
            while b"READY=1" not in _told(notify, process, place.log):
                pass
            yield process.pid, time.monotonic() - began
        finally:
            process.terminate()
            process.wait(60)


def _told(notify: socket.socket, process: subprocess.Popen[bytes], log: Path) -> bytes:
    """The next message to the service manager."""
    while process.poll() is None:
        with suppress(TimeoutError):
            return notify.recv(4096)
    raise RuntimeError(f"gapd run has ended:\n{log.read_text(encoding='utf-8')}")


def threads_s(pid: int) -> tuple[float, float, float]:
    """Processor time of a process' main thread, of ZeroMQ's threads, and of the others, s."""
    main = io = other = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            name, fields = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
            used = sum(map(int, fields.split()[11:13])) / os.sysconf("SC_CLK_TCK")
            if int(task.name) == pid:
                main += used
            elif name.startswith("ZMQ"):
                io += used
            else:
                other += used
    return main, io, other


def wakes(pid: int) -> int:
    """How often the main thread of a process has waited for something."""
    status = Path(f"/proc/{pid}/task/{pid}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("voluntary"))
