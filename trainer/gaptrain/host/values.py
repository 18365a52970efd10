"""Values of a robot's parameters as they are stored, bit by bit. Pure."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Values:
    """Scaled values (P,) with standard deviations (P,); of the active parameters (A,) the packed covariance."""

    z: Array
    z_sd: Array
    active: NDArray[np.intp]
    packed: bytes

    @property
    def covariance(self) -> Array:
        """Covariance (A, A) of the active parameters."""
        return unpack_covariance(self.packed, len(self.active))

    @staticmethod
    def independent(z: Array, z_sd: Array) -> Values:
        """Values without a covariance."""
        return Values(z, z_sd, np.zeros(0, np.intp), b"")

    def pack(self) -> tuple[bytes, bytes, bytes, bytes, int]:
        """z, z_sd, active, covariance as bytes, and their CRC-32."""
        blobs = (
            self.z.astype("<f8").tobytes(), self.z_sd.astype("<f8").tobytes(), self.active.astype("<u4").tobytes(),
            self.packed,
        )  # fmt: skip
        return (*blobs, zlib.crc32(b"".join(blobs)))

    @staticmethod
    def unpack(z: bytes, z_sd: bytes, active: bytes, covariance: bytes, checksum: int) -> Values:
        """Reverse of pack; ValueError if the bytes are not those that were packed."""
        if zlib.crc32(b"".join((z, z_sd, active, covariance))) != checksum:
            raise ValueError("stored values do not match their checksum")
        numbers = np.frombuffer(active, "<u4").astype(np.intp)
        return Values(
            np.frombuffer(z, "<f8").astype(float), np.frombuffer(z_sd, "<f8").astype(float), numbers, covariance
        )  # fmt: skip


def known_gap(gap: float) -> float | None:
    """A gap as it is stored: NULL where it is not known, which is NaN in a message, and -1 in those of older robots."""
    return gap if np.isfinite(gap) and gap >= 0 else None


_triangle = lru_cache(np.tril_indices)  # rows and columns of a lower triangle by size: drawing them up is slow


def unpack_covariance(packed: bytes, size: int) -> Array:
    """Symmetric (A, A) from its packed lower triangle; ValueError where the number of bytes is wrong."""
    wanted = 4 * (size * (size + 1) // 2)
    if len(packed) != wanted:
        raise ValueError(f"covariance of {size} active parameters has {len(packed)} bytes, not {wanted}")
    full = np.zeros((size, size))
    rows, columns = _triangle(size)
    full[rows, columns] = full[columns, rows] = np.frombuffer(packed, "<f4")
    return full
