"""Recordings that robots send as evidence: files named by their sha256; a file that is half here goes on later."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gapd.durable import sync_folder
from gapd.messages.link import Chunk
from gaptrain.host.rows import Sha256

Taken = Literal["more", "complete", "ignored", "gone", "damaged"]

FOLDER = "evidence"
# A recording of minutes at 1 kHz; more is a mistake, and would fill the disk.
LARGEST_EVIDENCE = 64 * 2**20


class Wanted(msgspec.Struct, frozen=True):
    """A recording that a robot has and the host wants."""

    robot: str
    evidence: Sha256
    size: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_EVIDENCE)]  # bytes


class EvidenceFiles:
    """The folder of recordings. Parts are kept per robot, so that no robot can spoil what another sends."""

    def __init__(self, state: Path) -> None:
        """Make the folder if there is none."""
        self._folder = state / FOLDER
        self._parts = self._folder / "parts"
        self._parts.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, evidence: str) -> Path:
        """Where a complete recording is."""
        return self._folder / evidence

    def has(self, evidence: str) -> bool:
        """Whether the recording is complete."""
        return self.path(evidence).is_file()

    def size(self, evidence: str) -> int:
        """Bytes of a complete recording, 0 if it is not here."""
        return self.path(evidence).stat().st_size if self.has(evidence) else 0

    def drop(self, evidence: str) -> None:
        """Remove a complete recording."""
        self.path(evidence).unlink(missing_ok=True)

    def forget(self, wanted: Wanted) -> None:
        """Remove what is here of a recording that will not be completed."""
        self._part(wanted).unlink(missing_ok=True)

    def offset(self, wanted: Wanted) -> int:
        """Bytes that are here already."""
        part = self._part(wanted)
        return part.stat().st_size if part.is_file() else 0

    def take(self, wanted: Wanted, chunk: Chunk) -> Taken:
        """Append a chunk if it is the next one; at the end verify the whole.

        gone: the robot no longer has it. damaged: the bytes are not those of the sha256, all are dropped.
        """
        if chunk.evidence != wanted.evidence:
            return "ignored"
        if chunk.total == 0:
            return "gone"
        here = self.offset(wanted)
        if here >= wanted.size:  # complete, but stopped before it was verified
            return self._verify(wanted)
        if chunk.offset != here or not chunk.data:
            return "ignored"
        if chunk.total != wanted.size or here + len(chunk.data) > wanted.size:
            self._part(wanted).unlink(missing_ok=True)
            return "damaged"
        with self._part(wanted).open("ab") as file:
            file.write(chunk.data)
        return "more" if here + len(chunk.data) < wanted.size else self._verify(wanted)

    def _verify(self, wanted: Wanted) -> Taken:
        part = self._part(wanted)
        with part.open("rb+") as file:
            right = hashlib.file_digest(file, "sha256").hexdigest() == wanted.evidence
            os.fsync(file.fileno())
        if not right:
            part.unlink()
            return "damaged"
        part.replace(self.path(wanted.evidence))
        sync_folder(self._folder)
        return "complete"

    def _part(self, wanted: Wanted) -> Path:
        return self._parts / f"{wanted.robot}-{wanted.evidence}"
