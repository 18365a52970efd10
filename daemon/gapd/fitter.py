"""Fits beside the loop: one low-priority thread, because a fit takes seconds and frames come every millisecond."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from gapd.cycle import Report, run
from gapd.keeper import Job
from gapd.learned import Learned
from gapd.robot import Robot

# Niceness of the fit: whatever else the robot computer does comes first.
NICE = 15


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

    def take(self, timeout_s: float = 0.0) -> Report | None:
        """The report, once there is one; what the fit raised, if it did."""
        if self._future is None or not (self._future.done() or timeout_s > 0):
            return None
        report = self._future.result(timeout_s or None)
        self._future = None
        return report

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
