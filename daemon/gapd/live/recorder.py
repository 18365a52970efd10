"""Recordings of frames and events: MCAP files of JSON messages that PlotJuggler and Foxglove open as they are.

publish_time is the robot's clock, log_time the wall clock of the start plus monotonic time since: it never jumps, so
that a replay sees each frame arrive when it did. A file is `*.mcap.part` until it is complete; `recording.recover`
completes those that a crash has left.
"""

from __future__ import annotations

import fcntl
import itertools
import math
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from mcap.writer import Writer

from gapd import __version__
from gapd.live.recording_format import (
    EVENTS,
    FRAMES,
    JSON,
    PART,
    SCHEMAS,
    RecordingError,
    frame_json,
    publish,
    start_writer,
)
from gapd.messages.frames import Frame

# Seconds after which what is written goes to the file: more than that a crash does not lose.
FLUSH_S = 1.0
# After a failed write, nothing is tried for so long.
RETRY_S = 30.0
LARGEST_S = 9.2e9  # that nanoseconds in 63 bits can tell


class Recorder:
    """Writes recordings of one robot into a folder; another file begins at max_bytes, the newest `keep` stay (or all).

    After a failed write the file stays behind as a part, what comes in the next RETRY_S is counted in `dropped`, then
    another file is tried.
    """

    def __init__(
        self,
        folder: Path,
        robot: str,
        max_bytes: int = 64 * 2**20,
        keep: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Make the folder; a file is made for the first message. RecordingError if the folder cannot be used."""
        self.dropped = 0
        self.finished: list[Path] = []
        self._folder, self._robot, self._max_bytes, self._keep = folder, robot, max_bytes, keep
        self._clock, self._offset_ns = clock, wall_ns() - round(clock() * 1e9)
        self._retry_s = -math.inf
        self._file: _File | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordingError(f"{folder}: {error.strerror}; correct the folder of recordings") from None

    def frame(self, frame: Frame, arrival_s: float | None = None) -> None:
        """Write a frame; arrival_s: monotonic time at which it was read, if not now. Raises RecordingError."""
        self._write(FRAMES, frame.timestamp, frame_json(frame), arrival_s)

    def event(self, timestamp: float, event: str, fields: Mapping[str, object]) -> None:
        """Write an event at a time of the robot's clock; numbers that are not finite become null."""
        data = JSON.encode({"timestamp": timestamp, "event": event, "fields": fields})
        self._write(EVENTS, timestamp, data, None)

    def close(self) -> None:
        """Complete the file. Raises RecordingError."""
        if self._file is not None:
            self._guarded(self._finish, self._file)

    def _write(self, topic: str, timestamp: float, data: bytes, arrival_s: float | None) -> None:
        now_s = self._clock()
        if now_s < self._retry_s:
            self.dropped += 1
            return
        log_ns = self._offset_ns + round((now_s if arrival_s is None else arrival_s) * 1e9)
        self._guarded(self._add, topic, log_ns, data, _nanoseconds(timestamp), now_s)

    def _guarded(self, act: Callable[..., None], *arguments: object) -> None:
        try:
            act(*arguments)
        except OSError as error:
            where = self._file.part if self._file is not None else self._folder
            if self._file is not None:
                self._file.abandon()
            self._file, self._retry_s = None, self._clock() + RETRY_S
            self.dropped += 1
            remedy = "free space and check permissions; it is tried again"
            raise RecordingError(f"{where}: cannot be written ({error.strerror}); {remedy}") from None

    def _add(self, topic: str, log_ns: int, data: bytes, publish_ns: int, now_s: float) -> None:
        if self._file is None:
            self._file = _File(self._free_path(log_ns), self._robot, now_s)
        self._file.add(topic, log_ns, data, publish_ns, now_s)
        if self._file.size >= self._max_bytes:
            self._finish(self._file)

    def _finish(self, file: _File) -> None:
        self.finished.append(file.finish())
        self._file = None
        if self._keep is not None:
            for path in sorted(self._folder.glob(f"{_safe(self._robot)}-*.mcap"))[: -self._keep or None]:
                path.unlink(missing_ok=True)

    def _free_path(self, wall_ns: int) -> Path:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(wall_ns // 10**9))
        paths = (self._folder / f"{_safe(self._robot)}-{stamp}-{number:04d}.mcap" for number in itertools.count())
        return next(p for p in paths if not p.exists() and not p.with_name(p.name + PART).exists())


class _File:
    """One recording in the making, locked as long as its process lives."""

    def __init__(self, path: Path, robot: str, now_s: float) -> None:
        self.path, self.part = path, path.with_name(path.name + PART)
        self._stream = self.part.open("xb")
        fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._writer = start_writer(self._stream)
        self._writer.add_metadata("gapd", {"robot": robot, "software": __version__})
        self._channels = {topic: _register(self._writer, topic) for topic in SCHEMAS}
        self._flushed_s = now_s

    @property
    def size(self) -> int:
        """Bytes written so far, without the chunk in progress."""
        return self._stream.tell()

    def add(self, topic: str, log_ns: int, data: bytes, publish_ns: int, now_s: float) -> None:
        self._writer.add_message(self._channels[topic], log_time=log_ns, data=data, publish_time=publish_ns)
        if now_s >= self._flushed_s + FLUSH_S:
            self._writer.flush()  # type: ignore[no-untyped-call]
            self._flushed_s = now_s

    def finish(self) -> Path:
        """Complete the file and give it its name."""
        self._writer.finish()  # type: ignore[no-untyped-call]
        publish(self._stream, self.part, self.path)
        return self.path

    def abandon(self) -> None:
        with suppress(OSError):
            self._stream.close()


def _register(writer: Writer, topic: str) -> int:
    schema = SCHEMAS[topic]
    number = writer.register_schema(schema["title"], "jsonschema", JSON.encode(schema))
    return writer.register_channel(topic, "json", number)


def _safe(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)


def _nanoseconds(timestamp: float) -> int:
    """Of a time in seconds; 0 for what MCAP has no number for."""
    return round(min(max(timestamp, 0.0), LARGEST_S) * 1e9) if math.isfinite(timestamp) else 0
