"""Fits beside the loop: one low-priority thread, because a fit takes seconds and frames come every millisecond."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from gapd.errors import GapdError
from gapd.fit.cycle import Report, run
from gapd.gap_model.learned import Learned
from gapd.live.events import Job
from gapd.model.robot import Robot

# Niceness of the fit: whatever else the robot computer does comes first.
NICE = 15


@dataclass(frozen=True)
class Failed:
    """A fit came to nothing: what was raised, and where if nobody foresaw it."""

    reason: str
    foreseen: bool = False

    @staticmethod
    def of(error: BaseException) -> Failed:
        """From what a fit has raised. What gapd refuses says its remedy itself."""
        if isinstance(error, GapdError):
            return Failed(str(error), foreseen=True)
        place = traceback.extract_tb(error.__traceback__)[-1:]
        where = "".join(f" ({os.path.basename(p.filename)}:{p.lineno})" for p in place)  # noqa: PTH119  of a string
        return Failed(f"{type(error).__name__}: {error}{where}")


class Fitter:
    """Runs one job at a time; `cpu_s` is what fits have cost so far, in seconds of one core."""

    def __init__(self, robot: Robot, learned: Learned | None) -> None:
        """Fit with the gap model of the bundle, or with finite differences where there is none."""
        self.cpu_s = 0.0
        self._robot, self._learned = robot, learned
        self._pool = ThreadPoolExecutor(1, "fit", _be_nice)
        self._future: Future[Report] | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is running or its report has not been taken."""
        return self._future is not None

    def start(self, job: Job) -> None:
        """Begin a job."""
        self._future = self._pool.submit(self._run, job)

    def take(self, timeout_s: float = 0.0) -> Report | Failed | None:
        """What has become of the job, once it has ended: a fit that fails is no reason to stop."""
        if self._future is None or not (self._future.done() or timeout_s > 0):
            return None
        error = self._future.exception(timeout_s or None)
        result = self._future.result() if error is None else Failed.of(error)
        self._future = None
        return result

    def close(self) -> None:
        """Wait for a running fit: MuJoCo's threads must not outlive the interpreter."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, job: Job) -> Report:
        began = time.thread_time()
        try:
            return run(self._robot, job.prepared, job.standing, self._learned)
        finally:
            self.cpu_s += time.thread_time() - began


def _be_nice() -> None:
    """Niceness belongs to the thread on Linux; elsewhere a fit has the priority of the process."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
