"""What a recording is: MCAP with JSON messages of frames and events, every float exactly."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import IO, Any

import msgspec
from mcap.writer import CompressionType, Writer

from gapd import __version__
from gapd.durable import sync_folder
from gapd.errors import GapdError
from gapd.messages.frames import Frame

FRAMES, EVENTS = "frames", "events"
PART, DAMAGED = ".part", ".damaged"
# What a crash loses at most.
CHUNK_BYTES = 64 * 1024

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

JSON = msgspec.json.Encoder(enc_hook=lambda value: value.tolist())  # of numpy
_FRAME = msgspec.json.Decoder(Frame)


class RecordingError(GapdError):
    """A recording that cannot be written."""


def frame_json(frame: Frame) -> bytes:
    """The frame with every float exactly; "nan", "inf" and "-inf" for what JSON has no number for."""
    data = JSON.encode(frame)
    if data.count(b"null") > (frame.sequence is None) + (frame.episode_return is None):
        data = JSON.encode({k: v if k == "name" else _spelt(v) for k, v in msgspec.structs.asdict(frame).items()})
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
    sync_folder(path.parent)
    stream.close()
