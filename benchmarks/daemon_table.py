"""What was measured of the daemon, and its table."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from daemon_process import STREAM_EVERY
from playback import FACTOR, PERIOD_S, RATE_HZ, VALUES
from tables import write_table

# The payload is that much heavier in every second stretch of this length.
CHANGE_S = 60.0
# Memory grows until the minute of evidence is full: its slope is taken after this, if as much as that is left.
WARM_UP_S = 75.0
SLOPE_S = 30.0
# Shorter rows say nothing about memory in the long run.
LONG_S = 600.0
# Budgets: of one core, of memory, and from the close of a window to the outbox beyond the replays.
MOST_SHARE = 0.15
MOST_MB = 250
MOST_LATE_S = 2.0


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


@dataclass(frozen=True)
class Split:
    """Processor time for one second of frames by the steps of the pipeline, back to back in a warm cache, ms."""

    decode: float
    rows: float
    windows: float
    monitor: float
    replay: float  # of one window in a fit's batch


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
