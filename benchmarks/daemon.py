"""The daemon beside a 1 kHz robot: what it costs, what it loses, how late it is, and what a control loop feels of it.

    .venv/bin/python benchmarks/daemon.py                 ten minutes of each row
    .venv/bin/python benchmarks/daemon.py --seconds 60    a quick look

`gapd run` is started as on a robot, with host, outbox and stream. Frames are simulated before and played back by a
process of their own. An arm with nominal parameters commissions the daemon; the rows then start from that state.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing as mp
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import zmq
from host import cpu_s, host, rss_mb
from tables import RESULTS, write_table

from gapd.keys import write_keys
from gapd.messages.frames import ENCODER, Frame
from gapd.robot import open_robot
from gapd.status import ask, status_path
from gaptrain.host.enrolment import enrol
from gaptrain.host.program import host_keys
from gaptrain.settings import load_training
from gaptrain.standin_plant import Motion, Plant, Sample, Scene, Setup

MODEL = Path(__file__).parents[1] / "models" / "arm7"
RATE_HZ = 1000
VALUES = 50  # in a frame: 21 channels and 7 commands of the arm, the others are sensors that robot.toml ignores
EXTRA = tuple(f"extra/{n}" for n in range(VALUES - 28))
# One frame in so many comes back on the stream with its time: no divisor of the frames of a window, because the frame
# that closes one waits the longest.
STREAM_EVERY = 17
# The payload is that much heavier in every second stretch of this length.
CHANGE_S = 60.0
CHANGED, FACTOR = "body/payload/mass", 1.5
# The fit after a change is not to wait for the one before.
MIN_INTERVAL_S = 20.0
# Memory grows while caches and queues fill: its slope is taken after this share of a row.
WARM_UP = 0.25
STARTS = 5
LATE_START_S = 0.5
PERIOD_S = 1 / RATE_HZ
SPAWN = mp.get_context("spawn")


# Frames: simulated at the model's step, half as long as needed; in between the command holds and the rest is linear.


def write_frames(path: Path, seconds: float, change_s: float | None) -> None:
    """Simulate an arm, nominal but for changes of the payload each change_s; each frame with its length before it."""
    robot = open_robot(MODEL / "robot.toml")
    excitation = load_training(MODEL / "train.toml").excitation
    rng = np.random.default_rng(1)
    nominal = robot.parameters.nominal
    heavy = np.where([name == CHANGED for name in robot.parameters.names], FACTOR, 1.0) * nominal
    scenes = [Scene(0.0, nominal)]
    if change_s is not None:
        begins = np.arange(change_s / 6, seconds, change_s)
        scenes += [Scene(float(s), (heavy, nominal)[n % 2]) for n, s in enumerate(begins)]
    plant = Plant(Setup(robot, excitation, Motion.draw(excitation, rng)), scenes)
    if 2 * PERIOD_S != robot.layout.step_s:
        raise RuntimeError(f"the model's step is {robot.layout.step_s} s")
    with path.open("wb") as file:
        before = plant.sample()
        for step in range(round(seconds * RATE_HZ / 2)):
            after = plant.sample()
            between = (before.measured + after.measured) / 2
            for half, clean in enumerate((before.measured, between)):
                measured = clean + robot.layout.noise * rng.normal(size=len(clean))
                packed = ENCODER.encode(_frame(robot.layout.joints, before, measured.tolist(), 2 * step + half))
                file.write(struct.pack("<I", len(packed)) + packed)
            before = after


def _frame(joints: tuple[str, ...], sample: Sample, measured: list[float], sequence: int) -> Frame:
    n = len(joints)
    position, velocity, effort = (tuple(measured[k * n : (k + 1) * n]) for k in range(3))
    sensors = dict(zip(EXTRA, measured + measured, strict=False))
    return Frame(
        sequence * PERIOD_S, joints, position, velocity, effort, tuple(sample.command.tolist()), sensors,
        sequence=sequence,
    )  # fmt: skip


# Processes beside the daemon.


def publish(path: Path, bind: str, seconds: float, pipe: Connection) -> None:
    """Play frames back; tells when the first is due, once somebody listens, and in the end how many it sent."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.set(zmq.SNDHWM, 20 * RATE_HZ)
    socket.bind(bind)
    pipe.send("bound")
    socket.recv()
    raw, at, sent, worst_s = path.read_bytes(), 0, 0, 0.0
    start_s = time.monotonic() + LATE_START_S
    pipe.send(start_s)
    while at < len(raw) and sent < seconds * RATE_HZ:
        (size,) = struct.unpack_from("<I", raw, at)
        due_s = start_s + sent * PERIOD_S
        wait_s = due_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        socket.send_multipart([b"frames", raw[at + 4 : at + 4 + size]])
        worst_s = max(worst_s, -wait_s)
        at, sent = at + 4 + size, sent + 1
    pipe.send((sent, worst_s, time.process_time()))
    pipe.recv()  # stays until everything has been read
    context.destroy(0)


def control(pipe: Connection) -> None:
    """Wake up each millisecond until asked to stop; sends how late it was each time, s."""
    gc.disable()
    late: list[float] = []
    due_s = time.monotonic()
    while not (len(late) % 100 == 0 and pipe.poll()):
        due_s += PERIOD_S
        wait_s = due_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)  # to an absolute time
        late.append(time.monotonic() - due_s)
        if late[-1] > 10 * PERIOD_S:
            due_s = time.monotonic()
    pipe.send(np.array(late))


@contextmanager
def beside(target: Any, *arguments: object) -> Iterator[Connection]:
    """A function as a process, and the pipe that it talks through."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    try:
        yield ours
    finally:
        with suppress(OSError):
            ours.send("stop")
        process.join(5)
        if process.is_alive():
            process.terminate()


# The daemon itself.


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


def free_ports(count: int) -> list[int]:
    """Ports that nobody has."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for found in sockets:
            found.bind(("127.0.0.1", 0))
        return [found.getsockname()[1] for found in sockets]


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


# Rows of the table.


@dataclass
class Row:
    """What was measured with the daemon under one load."""

    seconds: float
    share: float = np.nan  # of one core
    by_thread: tuple[float, ...] = ()  # main, ZeroMQ, fits and others; of one core
    rss_mb: float = np.nan
    slope_mb_h: float = np.nan
    sent: int = 0
    handled: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    ready_s: float = np.nan
    lag_s: np.ndarray = field(default_factory=lambda: np.full(1, np.nan))
    jitter_s: np.ndarray = field(default_factory=lambda: np.full(1, np.nan))
    publisher: tuple[float, float] = (np.nan, np.nan)  # the latest frame, s, and its share of a core
    decided: tuple[str, ...] = ()
    outbox_s: tuple[float, ...] = ()  # from the close of the last window of a fit to its message in the outbox


def commission(place: Place, frames: Path, seconds: float) -> None:
    """Let the daemon make its first fit, and stop it."""
    with beside(publish, frames, place.source, seconds) as publisher:
        publisher.recv()
        with daemon(place):
            end_s = time.monotonic() + seconds
            while not place.lines("decision"):
                if time.monotonic() > end_s:
                    raise RuntimeError(f"no fit after {seconds:g} s:\n{place.log.read_text()}")
                time.sleep(0.2)


def without(seconds: float) -> np.ndarray:
    """Jitter of the control loop alone, s."""
    with beside(control) as loop:
        time.sleep(seconds)
        loop.send("stop")
        return np.asarray(loop.recv())


def measure(place: Place, frames: Path, seconds: float) -> Row:
    """Play frames back to the daemon and watch it."""
    row = Row(seconds)
    with ExitStack() as stack:
        publisher = stack.enter_context(beside(publish, frames, place.source, seconds))
        publisher.recv()
        pid, row.ready_s = stack.enter_context(daemon(place))
        start_s = publisher.recv()
        loop = stack.enter_context(beside(control))
        listener = stack.enter_context(_listener(place.stream))
        used, threads, samples, lags = cpu_s(pid), threads_s(pid), [], []
        began_s = time.monotonic()
        while not publisher.poll():
            samples.append((time.monotonic(), rss_mb(pid)))
            lags += _lags(listener, start_s, samples[-1][0] + 1.0)
        lasted_s = time.monotonic() - began_s
        row.share = (cpu_s(pid) - used) / lasted_s
        row.by_thread = tuple((b - a) / lasted_s for a, b in zip(threads, threads_s(pid), strict=True))
        loop.send("stop")
        row.jitter_s = loop.recv()
        row.sent, worst_s, publisher_s = publisher.recv()
        row.publisher = worst_s, publisher_s / seconds
        time.sleep(1.0)
        row.counters = ask(status_path(place.config.parent / "state"))["counters"]
    row.handled, row.lag_s = row.counters["frames"], np.array(lags)
    times, rss = np.array(samples).T
    warm = times - times[0] >= WARM_UP * seconds
    row.rss_mb = float(rss.max())
    row.slope_mb_h = float(3600 * np.polyfit(times[warm], rss[warm], 1)[0]) if warm.sum() > 2 else np.nan
    row.decided, row.outbox_s = _decisions(place)
    return row


@contextmanager
def _listener(endpoint: str) -> Iterator[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    listener = context.socket(zmq.SUB)
    listener.connect(endpoint)
    listener.subscribe(b"frames")
    yield listener
    context.destroy(0)


def _lags(listener: zmq.Socket[bytes], start_s: float, until_s: float) -> list[float]:
    """From when frames were due to when they came back on the stream, s."""
    found = []
    while (wait_s := until_s - time.monotonic()) > 0:
        if listener.poll(1000 * wait_s):
            _, packed = listener.recv_multipart()
            found.append(time.monotonic() - start_s - msgpack.unpackb(packed)["timestamp"])
    return found


def _decisions(place: Place) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Actions of the fits, and how long corrections took from the turn in which the last window closed."""
    actions, took, began = [], [], None
    for line in place.lines("fit", "decision", "queued"):
        time_s = datetime.fromisoformat(line["time"]).timestamp()
        if line["event"] == "fit":
            began = time_s
        elif line["event"] == "decision":
            actions.append(line["action"])
        elif began is not None:
            took.append(time_s - began)
            began = None
    return tuple(actions), tuple(took)


# The table.


def report(alone: np.ndarray, rows: dict[str, Row], starts_s: Sequence[float], folder: Path) -> None:
    """Write docs/results/daemon.md."""
    names = list(rows)
    lines = [
        _line("CPU share of one core", "<= 15 %", rows, lambda r: f"{100 * r.share:.1f} %"),
        _line("... main thread, ZeroMQ, fits", "", rows, lambda r: ", ".join(f"{100 * s:.1f} %" for s in r.by_thread)),
        _line("memory (RSS), largest", "<= 250 MB", rows, lambda r: f"{r.rss_mb:.0f} MB"),
        _line("... slope after the first quarter", "flat", rows, lambda r: f"{r.slope_mb_h:+.1f} MB/h"),
        _line("frames sent", "", rows, lambda r: f"{r.sent}"),
        _line("frames lost", "0", rows, lambda r: f"{r.sent - r.handled}"),
        _line("windows dropped", "0", rows, lambda r: f"{r.counters.get('windows_dropped', 0)}"),
        _line("ingest lag p50, p99, largest", "", rows, lambda r: _ms(r.lag_s)),
        _line("fits and what they led to", "", rows, lambda r: ", ".join(r.decided) or "none"),
        _line(
            "window closed to outbox, median and p99 (largest)", "2 s beyond the replays", rows,
            lambda r: f"{np.median(r.outbox_s):.2f} s, {max(r.outbox_s):.2f} s" if r.outbox_s else "-",
        ),
        ["control loop late p50, p99, largest", "", _ms(alone), *(_ms(r.jitter_s) for r in rows.values())],
        ["start to READY, median and largest", "<= 2 s", "-", f"{statistics.median(starts_s):.2f} s, "
         f"{max(starts_s):.2f} s", *["-"] * (len(names) - 1)],
        _line("publisher: share of a core, latest frame", "", rows,
              lambda r: f"{100 * r.publisher[1]:.1f} %, {1e3 * r.publisher[0]:.0f} ms"),
    ]  # fmt: skip
    seconds = next(iter(rows.values())).seconds
    write_table(
        "daemon", "The daemon beside a 1 kHz robot", ["", "budget", "without daemon", *names], lines, NOTES(seconds),
        folder,
    )  # fmt: skip


def _line(title: str, budget: str, rows: dict[str, Row], show: Any) -> list[str]:
    return [title, budget, "-", *(show(row) for row in rows.values())]


def _ms(values: np.ndarray) -> str:
    return ", ".join(f"{1e3 * v:.2f}" for v in np.percentile(values, [50, 99, 100])) + " ms"


def NOTES(seconds: float) -> list[str]:
    return [f"{seconds:g} s"]


def main() -> None:
    """Measure and write docs/results/daemon.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="of each row")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the table")
    arguments = parser.parse_args()
    seconds = arguments.seconds
    with tempfile.TemporaryDirectory() as name:
        place = prepare(Path(name))
        healthy, changing = place.folder / "healthy", place.folder / "changing"
        write_frames(healthy, max(seconds, 90.0), None)
        write_frames(changing, seconds, CHANGE_S)
        with host(place.folder / "host", place.link, 128):
            commission(place, healthy, 90.0)
            alone = without(min(seconds, 60.0))
            rows = {"healthy": measure(place, healthy, seconds), "payload changes": measure(place, changing, seconds)}
            starts = []
            for _ in range(STARTS):
                with daemon(place) as (_, ready_s):
                    starts.append(ready_s)
        report(alone, rows, starts, arguments.results)


if __name__ == "__main__":
    main()
