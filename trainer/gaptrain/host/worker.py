"""Runs recalibrations that are due in a process of their own, one at a time."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gapd.live.telemetry import Logger, canonical
from gaptrain.host import jobs
from gaptrain.host.database import HostError
from gaptrain.host.locks import RECALIBRATION, only_one
from gaptrain.host.store import Store

# A fit takes seconds to minutes; what takes longer hangs.
LONGEST_S = 3600.0
NICE = 10
_PROGRAM = "from gaptrain.cli import main; main()"
STOP_S = 5.0


@dataclass
class _Running:
    job: jobs.Job
    process: subprocess.Popen[str]
    errors: IO[str]
    began_s: float


class Worker:
    """Starts `gaptrain recalibrate` for jobs whose evidence is complete."""

    def __init__(self, state: Path, log: Logger) -> None:
        """Work on the jobs of this state."""
        self._state, self._log = state, log
        self._running: _Running | None = None

    def step(self, store: Store, now: float) -> None:
        """Look after the process that runs, or start the next one."""
        if self._running is None:
            self._next(store, now)
        elif self._running.process.poll() is not None:
            self._ended(store, self._running)
        elif now - self._running.began_s > LONGEST_S:
            self._running.process.kill()

    def stop(self) -> None:
        """End the process that runs; its job is taken up again after the next start."""
        if self._running is not None:
            self._running.process.terminate()
            try:
                self._running.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._running.process.kill()
                self._running.process.wait()
            self._running.errors.close()
            self._running = None

    def _next(self, store: Store, now: float) -> None:
        cut_off = jobs.interrupted(store.database)
        job = jobs.next_job(store.database)
        if not cut_off and job is None:
            return
        try:  # a process that outlived an earlier service may run, or a person's
            with only_one(self._state, RECALIBRATION, "busy"):
                for other in cut_off:
                    jobs.resume_job(store.database, other, time.time())
        except HostError:
            return
        job = jobs.next_job(store.database)
        if job is not None:
            self._start(job, now)

    def _start(self, job: jobs.Job, now: float) -> None:
        errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  closed in _ended
        arguments = ["recalibrate", job.robot, "--state", str(self._state), "--job", str(job.number)]
        command = ["nice", "-n", str(NICE), sys.executable, "-c", _PROGRAM, *arguments]
        process = subprocess.Popen(  # noqa: S603  no shell, own arguments
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, text=True
        )
        self._running = _Running(job, process, errors, now)
        canonical(self._log, "recalibrating", robot=job.robot, job=job.number, evidence=job.evidence)

    def _ended(self, store: Store, running: _Running) -> None:
        self._running = None
        running.errors.seek(0)
        said = running.errors.read().strip().splitlines()
        running.errors.close()
        code = running.process.returncode
        reason = (said[-1] if said else f"ended with code {code}")[:1000]
        for job in jobs.interrupted(store.database):
            if job.number == running.job.number:  # it has not recorded its result
                remedy = f"run `gaptrain recalibrate {job.robot}` and read its output"
                jobs.end_job(store.database, job.number, "failed", reason, remedy, time.time())
        result = jobs.result(store.database, running.job.number)
        canonical(
            self._log, "recalibrated", robot=running.job.robot, job=running.job.number, state=result["state"],
            reason=result["reason"], remedy=result["remedy"], candidate=result["candidate"],
        )  # fmt: skip
