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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import zmq
from host import cpu_s, host, rss_mb
from tables import RESULTS, write_table

from gapd.frame_rows import FrameRows, Row
from gapd.keeper import Keeper
from gapd.keys import write_keys
from gapd.live_config import KeeperSettings
from gapd.live_windows import LiveWindows
from gapd.messages.frames import DECODER, ENCODER, Frame
from gapd.replay import Replay
from gapd.robot import open_robot
from gapd.status import ask, status_path
from gapd.windows import Windows
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
# Memory grows until the minute of evidence is full: its slope is taken after this, if as much as that is left.
WARM_UP_S = 75.0
SLOPE_S = 30.0
# Shorter rows say nothing about memory in the long run.
LONG_S = 600.0
STARTS = 5
# The first fit comes within this time.
COMMISSION_S = 90.0
# Budgets: of one core, of memory, and from the close of a window to the outbox beyond the replays.
MOST_SHARE = 0.15
MOST_MB = 250
MOST_LATE_S = 2.0
# Of frames played back within the benchmark's own process, to see what the daemon's time goes to.
SPLIT_S = 20.0
MONITORED = 12  # windows, too few for a fit
BATCHES = 5
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
    if robot.layout.step_s != 2 * PERIOD_S:
        raise RuntimeError(f"the model's step is {robot.layout.step_s} s; frames are made for {2 * PERIOD_S} s")
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
    pipe.send("ready")
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


def wakes(pid: int) -> int:
    """How often the main thread of a process has waited for something."""
    status = Path(f"/proc/{pid}/task/{pid}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("voluntary"))


# Rows of the table.


@dataclass(frozen=True)
class Fit:
    """One fit by its lines in the log: what it led to, its replays, seconds to its message in the outbox."""

    action: str
    rollouts: int
    outbox_s: float = np.nan


@dataclass
class Measured:
    """What was measured with the daemon under one load."""

    seconds: float
    share: float = np.nan  # of one core
    by_thread: tuple[float, ...] = ()  # main, ZeroMQ, fits and others; of one core
    wakes_hz: float = np.nan
    rss_mb: float = np.nan
    slope_mb_h: float = np.nan
    sent: int = 0
    handled: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    ready_s: float = np.nan
    lag_s: np.ndarray = field(default_factory=lambda: np.full(1, np.nan))
    jitter_s: np.ndarray = field(default_factory=lambda: np.full(1, np.nan))
    publisher: tuple[float, float] = (np.nan, np.nan)  # the latest frame, s, and its share of a core
    fits: tuple[Fit, ...] = ()


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
        loop.recv()
        time.sleep(seconds)
        loop.send("stop")
        return np.asarray(loop.recv())


def measure(place: Place, frames: Path, seconds: float) -> Measured:
    """Play frames back to the daemon and watch it."""
    row = Measured(seconds)
    with ExitStack() as stack:
        publisher = stack.enter_context(beside(publish, frames, place.source, seconds))
        publisher.recv()
        pid, row.ready_s = stack.enter_context(daemon(place))
        start_s = publisher.recv()
        loop = stack.enter_context(beside(control))
        loop.recv()
        listener = stack.enter_context(_listener(place.stream))
        used, threads, woken, samples, lags = cpu_s(pid), threads_s(pid), wakes(pid), [], []
        began_s = time.monotonic()
        while not publisher.poll():
            samples.append((time.monotonic(), rss_mb(pid)))
            lags += _lags(listener, start_s, samples[-1][0] + 1.0)
        lasted_s = time.monotonic() - began_s
        row.share = (cpu_s(pid) - used) / lasted_s
        row.wakes_hz = (wakes(pid) - woken) / lasted_s
        row.by_thread = tuple((b - a) / lasted_s for a, b in zip(threads, threads_s(pid), strict=True))
        loop.send("stop")
        row.jitter_s = loop.recv()
        row.sent, worst_s, publisher_s = publisher.recv()
        row.publisher = worst_s, publisher_s / seconds
        time.sleep(1.0)
        row.counters = ask(status_path(place.config.parent / "state"))["counters"]
    row.handled, row.lag_s = row.counters["frames"], np.array(lags)
    times, rss = np.array(samples).T
    warm = times - times[0] >= WARM_UP_S
    row.rss_mb = float(rss.max())
    if seconds >= WARM_UP_S + SLOPE_S:
        row.slope_mb_h = float(3600 * np.polyfit(times[warm], rss[warm], 1)[0])
    row.fits = _fits(place)
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


def _fits(place: Place) -> tuple[Fit, ...]:
    """The fits of a run; a fit starts in the turn in which its last window closes."""
    fits: list[Fit] = []
    began = 0.0
    for line in place.lines("fit", "decision", "queued"):
        time_s = datetime.fromisoformat(line["time"]).timestamp()
        if line["event"] == "fit":
            began = time_s
        elif line["event"] == "decision":
            fits.append(Fit(line["action"], line["rollouts"]))
        elif fits and np.isnan(fits[-1].outbox_s):
            fits[-1] = replace(fits[-1], outbox_s=time_s - began)
    return tuple(fits)


@dataclass(frozen=True)
class Split:
    """Processor time for one second of frames by the steps of the pipeline, back to back in a warm cache, ms."""

    decode: float
    rows: float
    windows: float
    monitor: float
    replay: float  # of one window in a fit's batch


def split(frames: Path) -> Split:
    """Play frames through each step alone."""
    robot = open_robot(MODEL / "robot.toml")
    raw, at, packed = frames.read_bytes(), 0, []
    while at < len(raw) and len(packed) < SPLIT_S * RATE_HZ:
        (size,) = struct.unpack_from("<I", raw, at)
        packed.append(raw[at + 4 : at + 4 + size])
        at += 4 + size
    marks = [time.process_time()]
    decoded = [DECODER.decode(frame) for frame in packed]
    marks.append(time.process_time())
    source = FrameRows(robot, EXTRA)
    rows = [row for row in map(source.row, decoded) if isinstance(row, Row)]
    marks.append(time.process_time())
    live = LiveWindows(robot)
    windows = [closed.window for row in rows for closed in live.add(row) if closed.window is not None]
    marks.append(time.process_time())
    keeper = Keeper(robot, KeeperSettings(windows=2 * len(windows)))  # never enough for a fit: only replays
    for window in windows[:MONITORED]:
        keeper.add(window)
    marks.append(time.process_time())
    replay, batch = Replay(robot), Windows.concatenate(windows)
    for _ in range(BATCHES):
        replay.run(batch, robot.parameters.nominal)
    replay_s = (time.process_time() - marks[-1]) / BATCHES / len(windows)
    seconds = [len(packed) / RATE_HZ] * 3 + [MONITORED * robot.config.timing.window_s]
    return Split(*(1e3 * t / s for t, s in zip(np.diff(marks), seconds, strict=True)), replay=1e3 * replay_s)


# The table.


def report(alone: np.ndarray, rows: dict[str, Measured], starts_s: Sequence[float], parts: Split, folder: Path) -> None:
    """Write daemon.md."""
    threads = "... of its main thread, ZeroMQ, fits"
    replays = "... beyond the replays, all of them at their cost alone"
    lines = [
        _line("CPU share of one core", "<= 15 %", rows, lambda r: f"{100 * r.share:.1f} %"),
        _line(threads, "", rows, lambda r: ", ".join(f"{100 * s:.1f} %" for s in r.by_thread)),
        _line("... wake-ups of its main thread per s", "", rows, lambda r: f"{r.wakes_hz:.0f}"),
        _line("memory (RSS), largest", "<= 250 MB", rows, lambda r: f"{r.rss_mb:.0f} MB"),
        _line(f"... slope after {WARM_UP_S:g} s", "flat", rows, lambda r: f"{r.slope_mb_h:+.0f} MB/h"),
        _line("frames sent", "", rows, lambda r: f"{r.sent}"),
        _line("frames lost", "0", rows, lambda r: f"{r.sent - r.handled}"),
        _line("windows dropped", "0", rows, lambda r: f"{r.counters.get('windows_dropped', 0)}"),
        _line("ingest lag p50, p99, largest", "", rows, lambda r: _ms(r.lag_s)),
        _line("fits", "", rows, lambda r: ", ".join(fit.action for fit in r.fits) or "none"),
        _line("... processor time of one", "", rows, _fit_s),
        _line("window closed to outbox: median, largest", "", rows, lambda r: _spread_s(_outbox(r, 0.0))),
        _line(replays, "<= 2 s", rows, lambda r: _spread_s(_outbox(r, parts.replay / 1e3))),
        ["control loop late p50, p99, largest", "", _ms(alone), *(_ms(r.jitter_s) for r in rows.values())],
        ["start to READY: median, largest", "<= 2 s", "-", _spread_s(starts_s), *["-"] * (len(rows) - 1)],
        _line("playback: share of a core, latest frame", "", rows, _playback),
    ]
    head = ["", "budget", "without daemon", *rows]
    write_table("daemon", "The daemon beside a 1 kHz robot", head, lines, _notes(rows, parts), folder)


def _line(title: str, budget: str, rows: dict[str, Measured], show: Callable[[Measured], str]) -> list[str]:
    return [title, budget, "-", *(show(row) for row in rows.values())]


def _ms(values: np.ndarray) -> str:
    return ", ".join(f"{1e3 * v:.2f}" for v in np.percentile(values, [50, 99, 100])) + " ms"


def _spread_s(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} s, {max(values):.2f} s" if values else "-"


def _outbox(row: Measured, replay_s: float) -> list[float]:
    return [fit.outbox_s - replay_s * fit.rollouts for fit in row.fits if np.isfinite(fit.outbox_s)]


def _fit_s(row: Measured) -> str:
    return f"{row.by_thread[2] * row.seconds / len(row.fits):.1f} s" if row.fits else "-"


def _playback(row: Measured) -> str:
    latest_s, share = row.publisher
    return f"{100 * share:.1f} %, {1e3 * latest_s:.0f} ms"


def _notes(rows: dict[str, Measured], parts: Split) -> list[str]:
    first, load = next(iter(rows.values())), os.getloadavg()[2]
    total = parts.decode + parts.rows + parts.windows + parts.monitor
    notes = [
        (
            f"{first.seconds:g} s of each row: frames of {VALUES} values at {RATE_HZ} Hz of a simulated arm7, played "
            f"back over loopback. Healthy: nominal parameters. Else the payload is {FACTOR:g} times as heavy in every "
            f"second {CHANGE_S:g} s. The daemon runs with a host, an outbox, and a subscriber of its stream that gets "
            f"one frame in {STREAM_EVERY}. Load average over 15 minutes at the end: {load:.1f}, of which this is 1 or "
            "less: above that, others share the cores, and times of waiting are theirs too."
        ),
        (
            "Ingest lag: from when a frame was due at the robot to when it came back on the stream, so that it counts "
            "a late playback, the socket, the daemon's turn, and the window that the frame closed. Control loop: a "
            f"process of normal priority that sleeps to absolute times {1e3 * PERIOD_S:g} ms apart; how late it wakes."
        ),
        (
            f"Where the main thread's time goes: back to back in a warm cache a second of frames costs {total:.0f} ms, "
            f"to decode {parts.decode:.1f}, to rows {parts.rows:.1f}, windows with their gates {parts.windows:.1f}, "
            f"replay and drift test {parts.monitor:.1f}. The rest of its share is turns of the loop, one for each "
            "wake-up, and caches that have gone cold between them."
        ),
        (
            "A fit starts in the turn in which its last window closes. A replay of one window costs "
            f"{parts.replay:.2f} ms in a batch on one thread; the fit has low priority, so that on busy cores it waits."
        ),
    ]
    if first.seconds < LONG_S:
        notes.append(f"A slope of memory over less than {LONG_S:g} s tells of buffers that fill, and of the first fit.")
    short = list(_short(rows, parts.replay / 1e3))
    return [*notes, f"Short of the budget: {'; '.join(short)}." if short else "All budgets are kept."]


def _short(rows: dict[str, Measured], replay_s: float) -> Iterator[str]:
    for name, row in rows.items():
        if row.share > MOST_SHARE:
            yield f"CPU share, {name} ({100 * row.share:.0f} %)"
        if row.rss_mb > MOST_MB:
            yield f"memory, {name} ({row.rss_mb:.0f} MB)"
        late_s = max(_outbox(row, replay_s), default=0.0)
        if late_s > MOST_LATE_S:
            yield f"window closed to outbox beyond the replays, {name} ({late_s:.1f} s)"
        if row.sent != row.handled:
            yield f"frames lost, {name} ({row.sent - row.handled})"


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
        write_frames(healthy, max(seconds, COMMISSION_S), None)
        write_frames(changing, seconds, CHANGE_S)
        parts = split(healthy)
        with host(place.folder / "host", place.link, 128):
            commission(place, healthy, COMMISSION_S)
            alone = without(min(seconds, 60.0))
            rows = {"healthy": measure(place, healthy, seconds), "payload changes": measure(place, changing, seconds)}
            starts = [start_s(place) for _ in range(STARTS)]
    report(alone, rows, starts, parts, arguments.results)


def start_s(place: Place) -> float:
    """Seconds from the start of the daemon to READY."""
    with daemon(place) as (_, ready_s):
        return ready_s


if __name__ == "__main__":
    main()
