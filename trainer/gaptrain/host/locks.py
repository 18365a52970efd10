"""One process at a time: a lock that is freed when its process ends, however it ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gaptrain.host.database import HostError

# Names of locks: the service of a state, and the one recalibration that may run on it.
SERVICE, RECALIBRATION = "host", "recalibrate"


@contextmanager
def only_one(state: Path, name: str, busy: str) -> Iterator[None]:
    """Hold the lock NAME of a state folder; HostError(busy) if another process has it."""
    with (state / f"{name}.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HostError(busy) from None
        yield
