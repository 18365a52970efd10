"""Files that are on the disk, whole, once a call returns."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, raw: bytes) -> None:
    """Write a file and wait for the disk; after a crash it may be there in part."""
    with path.open("wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, raw: bytes) -> None:
    """Put a file in the place of another: after a crash it is the old or the new one. A part is hidden beside it."""
    part = path.with_name(f".{path.name}.part")
    write(part, raw)
    part.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk: a rename alone may be undone by a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
