"""Shards: files of training windows, written whole or not at all, read only if they are whole."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gapd import durable
from gapd.errors import InputError
from gapd.model.robot import Robot

Single = NDArray[np.float32]

# What decoding a file raises that is not a whole shard. Of the system an OSError tells something else.
_UNREADABLE = (
    EOFError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError, struct.error, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip


@dataclass(frozen=True)
class Samples:
    """n replayed windows with derivatives in units of channel noise, at the K knots after the initial one."""

    features: Single  # (n, K+1, F)
    context: Single  # (n, K+1, X)
    z: Single  # (n, P)
    jacobian: Single  # (n, K, C, P)
    x0_jacobian: Single  # (n, K, C, 2 nv)
    dropped: int  # windows left out because a motion or a replay diverged
    data: str = ""  # hash of what defines them and name of the shard, as its file says: 0123456789ab/train-0000

    def __len__(self) -> int:
        """Return n."""
        return len(self.z)


def write_shard(path: Path, samples: Samples) -> None:
    """Write a shard whole or not at all."""
    put_shard(path, encode(samples))


def encode(samples: Samples) -> bytes:
    """The bytes of a shard's file. Derivatives are kept in half precision, scaled per column."""
    arrays: dict[str, NDArray[np.generic]] = {
        "features": samples.features, "context": samples.context, "z": samples.z,
        "dropped": np.array(samples.dropped), "data": np.array(samples.data),
    }  # fmt: skip
    for name in ("jacobian", "x0_jacobian"):
        value: Single = getattr(samples, name)
        scale = np.maximum(np.abs(value).max((0, 1)), np.float32(1e-30))
        arrays[name], arrays[name + "_scale"] = (value / scale).astype(np.float16), scale
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def put_shard(path: Path, raw: bytes) -> None:
    """Write the bytes of a shard whole or not at all, with no part left that fills a disk; OSError names the file."""
    partial = path.with_name(path.name + ".part")
    try:
        durable.write(partial, raw)
        partial.replace(path)
        durable.sync_folder(path.parent)
    except BaseException as error:  # Ctrl-C is one
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def read_shard(path: Path) -> Samples:
    """Read what `write_shard` wrote; InputError if it is not there any more, not whole or of another data set."""
    try:
        samples = _decode(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; run `gaptrain fit` to make it") from None
    except _UNREADABLE as error:
        raise InputError(f"{path}: damaged ({_reason(error)}); run `gaptrain fit` to make it again") from None
    foreign = _foreign(path, samples)
    if foreign:
        raise InputError(f"{path}: {foreign}; run `gaptrain fit` to make it again")
    return samples


def _foreign(path: Path, samples: Samples) -> str:
    """Which other shard it is: a file may have been copied from another model, or from the held-out windows."""
    own = f"{path.parent.name}/{path.stem}"
    return "" if samples.data == own else f"it holds the windows of {samples.data or 'no data set'}, not of {own}"


def _decode(raw: bytes) -> Samples:
    with zipfile.ZipFile(io.BytesIO(raw)) as file:
        member = file.testzip()  # all sums first: a damaged header could ask for any amount of memory
    if member is not None:
        raise zipfile.BadZipFile(f"wrong checksum of {member}")
    with np.load(io.BytesIO(raw), allow_pickle=False) as file:
        jacobian, x0_jacobian = (
            file[name].astype(np.float32) * file[name + "_scale"] for name in ("jacobian", "x0_jacobian")
        )
        arrays = (file["features"], file["context"], file["z"], jacobian, x0_jacobian)
        return Samples(*arrays, int(file["dropped"]), str(file["data"]))


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:100] or type(error).__name__


def damage(path: Path, robot: Robot, windows: int) -> str:
    """What is wrong with a shard that should hold `windows` windows of the robot, in a folder named after its data."""
    try:
        samples = _decode(path.read_bytes())
    except _UNREADABLE as error:
        return _reason(error)
    foreign = _foreign(path, samples)
    if foreign:
        return foreign
    n, layout, nv = len(samples), robot.layout, robot.model.nv
    knots, channels, p = layout.knots, len(layout.channels), len(robot.parameters)
    wanted = (
        (n, knots + 1, 2 * nv + 2 * robot.model.nu), (n, knots + 1, len(robot.config.context)), (n, p),
        (n, knots, channels, p), (n, knots, channels, 2 * nv),
    )  # fmt: skip
    arrays = (samples.features, samples.context, samples.z, samples.jacobian, samples.x0_jacobian)
    if n + samples.dropped != windows or tuple(a.shape for a in arrays) != wanted:
        return "it is of other sizes"
    return "" if all(np.isfinite(a).all() for a in arrays) else "it holds values that are not finite"


def read_shards(paths: Sequence[Path]) -> Iterator[Samples]:
    """Read shards one after the other: only one is held in full precision."""
    return (read_shard(path) for path in paths)
