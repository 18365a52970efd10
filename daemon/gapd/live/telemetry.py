"""What the daemon says: one line per event on standard error, and its state to the service manager.

On a terminal a line is `time level event key=value ...`. Elsewhere it is JSON; where the journal reads it the priority
stands in front as `<N>`, because journald does not look into JSON.
"""

from __future__ import annotations

import math
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, Literal, TextIO

import structlog

from gapd.errors import printable

Logger = structlog.typing.FilteringBoundLogger
Level = Literal["debug", "info", "warning", "error"]
Event = MutableMapping[str, Any]

# syslog(3)
PRIORITIES: dict[str, int] = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
DIGITS = 4
# Keys of limited events that are remembered: what others send in may be part of them.
MOST_KEYS = 1000
LONGEST_STATUS = 500


def open_log(
    stream: TextIO | None = None,
    level: Level = "info",
    environ: Mapping[str, str] = os.environ,
    clock: Callable[[], float] = time.monotonic,
) -> Logger:
    """A log on standard error, or on `stream`, of events from `level` on."""
    stream = sys.stderr if stream is None else stream
    priority = is_journal(stream, environ)
    render = _TerminalLine() if stream.isatty() and not priority else _json_line(priority=priority)
    logger: Logger = structlog.wrap_logger(
        _Lines(stream),
        processors=[
            structlog.processors.add_log_level,
            _Limiter(clock),
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    return logger


def canonical(
    log: Logger, event: str, *, level: Level = "info", key: str = "", every_s: float = 0.0, **fields: object
) -> None:
    """Write one line. Floats are rounded to 4 significant digits, arrays become lists.

    `time`, `level` and `event` are no names for fields. With every_s, the same (event, key) is written no more often;
    the next line tells how many were `suppressed`.
    """
    rounded_fields = {name: rounded(value) for name, value in fields.items()}
    getattr(log, level)(event, **rounded_fields, **({"_limit": (key, every_s)} if every_s > 0 else {}))


def rounded(value: object) -> object:
    """The value with floats of 4 significant digits, in plain Python types of any nesting."""
    if hasattr(value, "tolist"):  # numpy
        value = value.tolist()
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else value
    if isinstance(value, Mapping):
        return {str(name): rounded(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [rounded(inner) for inner in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether the stream is the one that systemd connected to the journal, $JOURNAL_STREAM = device:inode."""
    with suppress(OSError, ValueError):
        status = os.fstat(stream.fileno())
        return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
    return False


class _Lines:
    """Writes lines; that nobody reads them any more is no reason to stop working."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def _write(self, line: str) -> None:
        with suppress(OSError, ValueError):  # ValueError: the stream is closed
            self._stream.write(line + "\n")
            self._stream.flush()

    debug = info = warning = error = critical = _write


class _Limiter:
    """Drops events that come too often, and counts them by (event, key)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._written: dict[tuple[str, str], tuple[float, int]] = {}

    def __call__(self, _logger: object, _method: str, event: Event) -> Event:
        limit = event.pop("_limit", None)
        if limit is None:
            return event
        now_s, which = self._clock(), (str(event["event"]), str(limit[0]))
        last_s, suppressed = self._written.pop(which, (-math.inf, 0))
        if now_s - last_s < limit[1]:
            self._written[which] = last_s, suppressed + 1
            raise structlog.DropEvent
        if len(self._written) >= MOST_KEYS:
            del self._written[next(iter(self._written))]
        self._written[which] = now_s, 0
        if suppressed:
            event["suppressed"] = suppressed
        return event


class _TerminalLine:
    """`12:00:00 info     event  key=value other="two words"`: always one line, whatever the values hold."""

    def __call__(self, _logger: object, _method: str, event: Event) -> str:
        clock = str(event.pop("time"))[11:19]
        level, name = event.pop("level"), event.pop("event")
        pairs = "".join(f" {printable(key)}={_shown(value)}" for key, value in event.items())
        return f"{clock} {level:7} {printable(str(name))}{pairs}"


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ",".join(_shown(inner) for inner in value) or "-"
    if isinstance(value, dict):
        return ",".join(f"{printable(key)}:{_shown(inner)}" for key, inner in value.items()) or "-"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = printable(str(value))
    return text if re.fullmatch(r"[^\s\"=,]+", text) else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _json_line(*, priority: bool) -> Callable[[object, str, Event], str]:
    render = structlog.processors.JSONRenderer(ensure_ascii=False, allow_nan=False)

    def line(logger: Any, method: str, event: Event) -> str:
        prefix = f"<{PRIORITIES.get(event['level'], 6)}>" if priority else ""
        head = {key: event.pop(key) for key in ("time", "level", "event")}
        return prefix + str(render(logger, method, head | {key: _strict(value) for key, value in event.items()}))

    return line


def _strict(value: object) -> object:
    """JSON has no number that is not finite."""
    if isinstance(value, list):
        return [_strict(inner) for inner in value]
    if isinstance(value, dict):
        return {key: _strict(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


class ServiceManager:
    """Tells systemd, or whoever set $NOTIFY_SOCKET, how the daemon is; without one it says nothing.

    `watchdog_s`: seconds between two calls of `alive`, half of what the service manager waits; None if it does not.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """Read the environment; `failed` counts what could not be sent."""
        address = environ.get("NOTIFY_SOCKET", "")
        self.failed = 0
        self._address = ("\0" + address[1:] if address.startswith("@") else address) if address[:1] in "/@" else ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if self._address else None
        if self._socket is not None:
            self._socket.setblocking(False)
        self.watchdog_s = _watchdog_s(environ) if self._socket is not None else None

    def ready(self) -> None:
        """Started: configuration, keys, bundle and sockets are fine."""
        self._send(["READY=1"])

    def alive(self) -> None:
        """The main loop makes progress."""
        self._send(["WATCHDOG=1"])

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send([f"STATUS={printable(text)[:LONGEST_STATUS]}"])

    def stopping(self) -> None:
        """On the way out."""
        self._send(["STOPPING=1"])

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _send(self, lines: Iterable[str]) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto("\n".join(lines).encode(errors="replace"), self._address)
        except OSError:
            self.failed += 1


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    with suppress(ValueError):
        microseconds = int(environ.get("WATCHDOG_USEC", ""))
        return microseconds / 2e6 if microseconds > 0 else None
    return None
