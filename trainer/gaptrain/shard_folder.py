"""The folder that shards are written to: by one process at a time, and without the parts of a run that was killed."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gapd.errors import InputError

_LOCK = "making.lock"


@contextmanager
def only_maker(folder: Path) -> Iterator[None]:
    """Make the folder and hold it; InputError if another process does. It is freed when the process ends, however."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder}: another gaptrain makes these data; wait for it or end it") from None
        for part in folder.glob("*.npz.part"):
            part.unlink()
        yield
