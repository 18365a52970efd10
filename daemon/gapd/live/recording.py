"""Recordings to be read, complete or not, and parts that a crash has left, to be completed."""

from __future__ import annotations

import fcntl
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
from mcap.exceptions import EndOfFile, McapError
from mcap.records import Channel, Message, Schema
from mcap.stream_reader import StreamReader
from mcap.writer import Writer

from gapd.errors import InputError
from gapd.live.recording_format import (
    DAMAGED,
    FRAMES,
    PART,
    RecordingError,
    frame_from_json,
    publish,
    start_writer,
)
from gapd.messages.frames import Frame

LARGEST_RECORD = 2**26


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
