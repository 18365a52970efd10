"""The daemon beside a 1 kHz robot: what it costs, what it loses, how late it is, and what a control loop feels of it.

    .venv/bin/python benchmarks/daemon.py                 ten minutes of each row
    .venv/bin/python benchmarks/daemon.py --seconds 60    a quick look

`gapd run` is started as on a robot, with host, outbox and stream. Frames are simulated before and played back by a
process of their own. An arm with nominal parameters commissions the daemon; the rows then start from that state.
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import msgpack
import numpy as np
import zmq
from daemon_process import Place, daemon, prepare, threads_s, wakes
from daemon_table import CHANGE_S, SLOPE_S, WARM_UP_S, Fit, Measured, Split, report
from host import cpu_s, host, rss_mb
from playback import EXTRA, MODEL, RATE_HZ, beside, control, publish, write_frames
from tables import RESULTS

from gapd.gap.replay import Replay
from gapd.live.keeper import Keeper
from gapd.live.live_windows import LiveWindows
from gapd.live.status import ask, status_path
from gapd.live_config import KeeperSettings
from gapd.measured.frame_rows import FrameRows, Row
from gapd.measured.windows import Windows
from gapd.messages.frames import DECODER
from gapd.model.robot import open_robot

STARTS = 5
# The first fit comes within this time.
COMMISSION_S = 90.0
# Of frames played back within the benchmark's own process, to see what the daemon's time goes to.
SPLIT_S = 20.0
MONITORED = 12  # windows, too few for a fit
BATCHES = 5


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
