"""What the processes of test_executor.py run: they find it by its name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Never

from gapd.errors import ConfigError


def squared(common: int, job: int) -> tuple[int, int]:
    """The result, and the process that made it."""
    return common + job * job, os.getpid()


def killed_once(folder: Path, job: int) -> int:
    """Job 3 is killed the first time, as by the system when memory is short."""
    mark = folder / "killed"
    if job == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return job


def killed(_common: object, _job: int) -> Never:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def refused(_common: object, job: int) -> int:
    if job == 1:
        raise ConfigError("value 1 is out of range; lower it")
    time.sleep(30)  # the others are not waited for
    return job


class Odd(Exception):  # noqa: N818
    """Cannot be sent: it does not keep the arguments that it needs."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} is not {two}")


def odd(_common: object, job: int) -> Never:
    raise Odd(job, 2)


def divided(common: float, job: float) -> float:
    return common / job


def sleeping(folder: Path, job: int) -> Never:
    (folder / f"{job}.pid").write_text(str(os.getpid()))
    time.sleep(60)
    raise AssertionError
