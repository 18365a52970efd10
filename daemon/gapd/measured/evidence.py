"""Recordings as evidence: frames to bytes and back, by MessagePack and plain little-endian numbers."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from gapd.errors import InputError
from gapd.measured.windows import Frames

Array = NDArray[np.float64]

# Rises with every change that older software cannot read.
FORMAT = 1
_BYTES = 8  # of a float64


class _Recording(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """T frames with C channels, nu commands and X context values, float64 little endian, row by row."""

    kind: Literal["gapd-frames"]
    format: int
    frames: int
    channels: int
    commands: int
    context_values: int
    timestamp: bytes
    measured: bytes
    command: bytes
    context: bytes


_DECODER = msgspec.msgpack.Decoder(_Recording)


def pack(frames: Frames) -> bytes:
    """The frames as bytes; NaN stays NaN."""
    arrays = [
        np.ascontiguousarray(a, "<f8") for a in (frames.timestamp, frames.measured, frames.command, frames.context)
    ]
    widths = [a.shape[1] for a in arrays[1:]]
    return msgspec.msgpack.encode(
        _Recording("gapd-frames", FORMAT, len(frames), *widths, *(a.tobytes() for a in arrays))
    )


def unpack(raw: bytes, name: str) -> Frames:
    """Frames from bytes; InputError if they are none, or not whole."""
    try:
        recording = _DECODER.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{name}: no recording of gapd ({error}); fetch it again") from None
    if recording.format != FORMAT:
        raise InputError(f"{name}: format {recording.format}, this is {FORMAT}; update gapd on the older side")
    count = recording.frames
    timestamp = _array(name, "timestamp", recording.timestamp, (count,))
    measured = _array(name, "measured", recording.measured, (count, recording.channels))
    command = _array(name, "command", recording.command, (count, recording.commands))
    context = _array(name, "context", recording.context, (count, recording.context_values))
    return Frames(timestamp, measured, command, context, name)


def _array(name: str, what: str, raw: bytes, shape: tuple[int, ...]) -> Array:
    wanted = _BYTES
    for size in shape:
        wanted *= size
    if min(shape) < 0 or len(raw) != wanted:
        raise InputError(f"{name}: {what} has {len(raw)} bytes, not those of {shape} numbers; fetch it again")
    return np.frombuffer(raw, "<f8").reshape(shape).astype(float)
