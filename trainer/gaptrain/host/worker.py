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
from gaptrain.host.rows import RESTORE
from gaptrain.host.store import Store

# A fit takes seconds to minutes; what takes longer hangs.
LONGEST_S = 3600.0
# After a process that did not begin its job, the next one waits: memory that is short may be free again.
RETRY_S = 30.0
NICE = 10
_SHORT = "check processes, memory and temporary files of this computer"
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
        self._not_before_s = float("-inf")

    def step(self, store: Store, now_s: float) -> None:
        """Look after the process that runs, or start the next one; now_s is monotonic."""
        self._fail_damaged(store)
        if self._running is None:
            if now_s >= self._not_before_s:
                self._next(store, now_s)
        elif self._running.process.poll() is not None:
            self._ended(store, self._running, now_s)
        elif now_s - self._running.began_s > LONGEST_S:
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

    def _fail_damaged(self, store: Store) -> None:
        for number, error in jobs.fail_damaged(store.database, time.time()):
            canonical(
                self._log, "recalibrated", level="warning", robot=error.robot, job=number, state="failed",
                reason=error, remedy=RESTORE, candidate="",
            )  # fmt: skip

    def _next(self, store: Store, now_s: float) -> None:
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
            self._start(store, job, now_s)

    def _start(self, store: Store, job: jobs.Job, now_s: float) -> None:
        try:
            self._running = self._process(job, now_s)
        except OSError as error:  # no process, no memory: of this computer, not of the disk that holds the state
            self._not_begun(store, job, str(error), _SHORT, now_s)
            return
        canonical(self._log, "recalibrating", robot=job.robot, job=job.number, evidence=job.evidence)

    def _process(self, job: jobs.Job, now_s: float) -> _Running:
        arguments = ["recalibrate", job.robot, "--state", str(self._state), "--job", str(job.number)]
        command = ["nice", "-n", str(NICE), sys.executable, "-c", _PROGRAM, *arguments]
        errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  closed in _ended
        try:
            process = subprocess.Popen(  # noqa: S603  no shell, own arguments
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, text=True
            )
        except OSError:
            errors.close()
            raise
        return _Running(job, process, errors, now_s)

    def _ended(self, store: Store, running: _Running, now_s: float) -> None:
        """Note the end of a process, whatever it came to: its job is never left as if it were still to end."""
        self._running = None
        reason = _last_words(running)
        job = jobs.numbered(store.database, running.job.number) or running.job
        if job.state == "ready":
            self._not_begun(store, job, reason, jobs.by_hand(job), now_s)
            return
        if job.state == "running":  # it has not recorded its result
            jobs.end_job(store.database, job.number, "failed", reason, jobs.by_hand(job), time.time())
        result = jobs.result(store.database, job.number)
        canonical(
            self._log, "recalibrated", robot=job.robot, job=job.number, state=result["state"], reason=result["reason"],
            remedy=result["remedy"], candidate=result["candidate"],
        )  # fmt: skip

    def _not_begun(self, store: Store, job: jobs.Job, reason: str, remedy: str, now_s: float) -> None:
        """Try a job again later whose process did not begin it, but not for ever."""
        self._not_before_s = now_s + RETRY_S
        jobs.count_attempt(store.database, job, reason, time.time())
        state = jobs.result(store.database, job.number)["state"]
        canonical(
            self._log, "recalibration_failed", level="warning", robot=job.robot, job=job.number, state=state,
            reason=reason, remedy=remedy,
        )  # fmt: skip


def _last_words(running: _Running) -> str:
    """The last line of what an ended process wrote to standard error."""
    with running.errors as errors:
        errors.seek(0)
        said = errors.read().strip().splitlines()
    return (said[-1] if said else f"ended with code {running.process.returncode}")[:1000]
