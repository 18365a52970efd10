"""Recordings of frames and events: MCAP files of JSON messages that PlotJuggler and Foxglove open as they are.

publish_time is the robot's clock, log_time the wall clock of the start plus monotonic time since: it never jumps, so
that a replay sees each frame arrive when it did. A file is `*.mcap.part` until it is complete; `recover` completes
those that a crash has left.
"""

from __future__ import annotations

import fcntl
import itertools
import math
import os
import re
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
from mcap.exceptions import EndOfFile, McapError
from mcap.records import Channel, Message, Schema
from mcap.stream_reader import StreamReader
from mcap.writer import CompressionType, Writer

from gapd import __version__
from gapd.errors import GapdError, InputError
from gapd.messages.frames import Frame

FRAMES, EVENTS = "frames", "events"
PART, DAMAGED = ".part", ".damaged"
# What a crash loses at most: a chunk of JSON, or as many seconds.
CHUNK_BYTES, FLUSH_S = 64 * 1024, 1.0
LARGEST_RECORD = 2**26
# After a failed write, nothing is tried for so long.
RETRY_S = 30.0
LARGEST_S = 9.2e9  # that nanoseconds in 63 bits can tell

NUMBER = {"oneOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}
LIST = {"type": "array", "items": NUMBER}
TABLE = {"type": "object", "additionalProperties": NUMBER}
SCHEMAS: dict[str, dict[str, Any]] = {
    FRAMES: {
        "title": "gapd.Frame",
        "type": "object",
        "properties": {
            "timestamp": NUMBER,
            "name": {"type": "array", "items": {"type": "string"}},
            **dict.fromkeys(("position", "velocity", "effort", "command"), LIST),
            **dict.fromkeys(("sensors", "context"), TABLE),
            "sequence": {"oneOf": [{"type": "integer"}, {"type": "null"}]},
            "episode_return": {"oneOf": [NUMBER, {"type": "null"}]},
        },
        "required": ["timestamp"],
    },
    EVENTS: {
        "title": "gapd.Event",
        "type": "object",
        "properties": {"timestamp": NUMBER, "event": {"type": "string"}, "fields": {"type": "object"}},
        "required": ["timestamp", "event"],
    },
}

_JSON = msgspec.json.Encoder(enc_hook=lambda value: value.tolist())  # of numpy
_FRAME = msgspec.json.Decoder(Frame)


class RecordingError(GapdError):
    """A recording that cannot be written."""


def frame_json(frame: Frame) -> bytes:
    """The frame with every float exactly; "nan", "inf" and "-inf" for what JSON has no number for."""
    data = _JSON.encode(frame)
    if data.count(b"null") > (frame.sequence is None) + (frame.episode_return is None):
        data = _JSON.encode({k: v if k == "name" else _spelt(v) for k, v in msgspec.structs.asdict(frame).items()})
    return data


def _spelt(value: Any) -> Any:
    """Numbers of any nesting, those that are not finite as words."""
    if isinstance(value, dict):
        return {key: _spelt(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [_spelt(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def frame_from_json(data: bytes) -> Frame:
    """The frame that `frame_json` wrote, bit by bit but for the payload of NaN. Raises msgspec.DecodeError."""
    try:
        return _FRAME.decode(data)
    except msgspec.ValidationError:
        fields = msgspec.json.decode(data, type=dict[str, Any])
        return msgspec.convert({k: v if k == "name" else _read(v) for k, v in fields.items()}, Frame)


def _read(value: Any) -> Any:
    """The reverse of `_spelt`."""
    if isinstance(value, dict):
        return {key: _read(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_read(inner) for inner in value]
    return float(value) if value in ("nan", "inf", "-inf") else value


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
        data = _JSON.encode({"timestamp": timestamp, "event": event, "fields": fields})
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


def start_writer(stream: IO[bytes]) -> Writer:
    """A writer of small chunks at the start of a file."""
    writer = Writer(stream, chunk_size=CHUNK_BYTES, compression=CompressionType.LZ4)
    writer.start(library=f"gapd {__version__}")
    return writer


def publish(stream: IO[bytes], part: Path, path: Path) -> None:
    """Close a file that is complete, and give it its name once it is on the disk."""
    stream.flush()
    os.fsync(stream.fileno())
    part.rename(path)
    stream.close()


def _register(writer: Writer, topic: str) -> int:
    schema = SCHEMAS[topic]
    number = writer.register_schema(schema["title"], "jsonschema", _JSON.encode(schema))
    return writer.register_channel(topic, "json", number)


def _safe(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)


def _nanoseconds(timestamp: float) -> int:
    """Of a time in seconds; 0 for what MCAP has no number for."""
    return round(min(max(timestamp, 0.0), LARGEST_S) * 1e9) if math.isfinite(timestamp) else 0


class Recording:
    """A recording to be read, complete or not. `cut_off`: after reading, whether it ended without an end."""

    def __init__(self, path: Path) -> None:
        """Nothing is opened before the first frame is asked for."""
        self.path, self.cut_off = path, False

    def arrivals(self) -> Iterator[tuple[float, Frame]]:
        """Frames in the order written, each with the seconds at which it arrived. Raises InputError."""
        count = 0
        for channel, _, message in self.messages():
            if channel.topic != FRAMES or channel.message_encoding != "json":
                continue
            count += 1
            try:
                frame = frame_from_json(message.data)
            except msgspec.DecodeError as error:
                raise self._unusable(f"message {count} is no frame ({error}); record it again") from None
            yield message.log_time / 1e9, frame
        if not count:
            raise self._unusable(f"holds no JSON messages on topic '{FRAMES}'; give a recording of gapd record")

    def messages(self) -> Iterator[tuple[Channel, Schema | None, Message]]:
        """All messages in the order written. Raises InputError where the file is damaged."""
        schemas: dict[int, Schema] = {}
        channels: dict[int, Channel] = {}
        for record in self._records():
            if isinstance(record, Schema):
                schemas[record.id] = record
            elif isinstance(record, Channel):
                channels[record.id] = record
            elif isinstance(record, Message):
                if record.channel_id not in channels:
                    raise self._unusable("is damaged (a message of no channel); take another copy")
                channel = channels[record.channel_id]
                yield channel, schemas.get(channel.schema_id), record

    def _records(self) -> Iterator[object]:
        try:
            with closing(_Whole(self.path)) as whole:
                reader = StreamReader(whole, validate_crcs=True, record_size_limit=LARGEST_RECORD)  # type: ignore[arg-type]
                yield from reader.records
        except EndOfFile:
            self.cut_off = True
        except OSError as error:
            raise self._unusable(f"cannot be read ({error.strerror}); check path and permissions") from None
        except (McapError, ValueError, RuntimeError, MemoryError, struct.error) as error:
            raise self._unusable(f"is damaged, or no MCAP file ({error}); take another copy") from None

    def _unusable(self, reason: str) -> InputError:
        return InputError(f"{self.path}: {reason}")


class _Whole:
    """A file that gives all the bytes asked for or ends: a record is there in whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("rb")
        self.close = self._stream.close

    def read(self, length: int) -> bytes:
        data = self._stream.read(length)
        if len(data) < length:
            raise EndOfFile
        return data


def read_frames(path: Path) -> Iterator[Frame]:
    """Frames of a recording in the order written, also of an unfinished one. Raises InputError."""
    return (frame for _, frame in Recording(path).arrivals())


@dataclass(frozen=True)
class Recovered:
    """A part that a crash had left: the recording made of it, None if there was nothing in it.

    What follows a damaged place is lost; the part is then kept as `*.damaged`.
    """

    path: Path | None
    messages: int
    damage: str


def recover(folder: Path) -> list[Recovered]:
    """Complete the parts in a folder that no process is writing. Raises RecordingError."""
    found = []
    for part in sorted(folder.glob(f"*.mcap{PART}")):
        try:
            with part.open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found.append(_recovered(part))
        except BlockingIOError:
            continue  # its process lives
        except OSError as error:
            raise RecordingError(f"{part}: cannot be recovered ({error.strerror}); free space, or move it") from None
    return found


def _recovered(part: Path) -> Recovered:
    path = part.with_name(part.name.removesuffix(PART))
    copy = part.with_name(part.name.removesuffix(PART) + ".copy")
    damage = ""
    with copy.open("wb") as stream:
        writer, count = start_writer(stream), 0
        channels: dict[int, int] = {}
        try:
            for channel, schema, message in Recording(part).messages():
                if channel.id not in channels:
                    channels[channel.id] = _copied(writer, channel, schema)
                writer.add_message(
                    channels[channel.id], message.log_time, message.data, message.publish_time, message.sequence
                )
                count += 1
        except InputError as error:
            damage = str(error)
        writer.finish()  # type: ignore[no-untyped-call]
        publish(stream, copy, path)
    if not count:
        path.unlink()
    if damage:
        part.rename(part.with_name(part.name + DAMAGED))
    else:
        part.unlink()
    return Recovered(path if count else None, count, damage)


def _copied(writer: Writer, channel: Channel, schema: Schema | None) -> int:
    number = writer.register_schema(schema.name, schema.encoding, schema.data) if schema is not None else 0
    return writer.register_channel(channel.topic, channel.message_encoding, number, channel.metadata)
