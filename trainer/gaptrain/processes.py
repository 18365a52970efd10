"""Jobs in processes of this computer, which end when it does, however it ends."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar, cast

from gapd.errors import GapdError, InputError

Common = TypeVar("Common")
Job = TypeVar("Job")
Result = TypeVar("Result")

# Processes that may be killed one after the other without any job getting done in between.
KILLED_IN_A_ROW = 3
# Not forked: MuJoCo and torch have threads in this process, and a fork would hold locks that nobody frees.
_CONTEXT = multiprocessing.get_context("spawn")


@dataclass
class _Worker(Generic[Job]):
    process: BaseProcess
    ours: Connection
    job: Job

    def end(self) -> None:
        """Whatever it is doing; its result is not wanted."""
        self.process.kill()
        self.process.join()
        self.ours.close()


class Processes(Generic[Common, Job, Result]):
    """Up to `count` processes that run function(common, job) for jobs, started when there are jobs for them."""

    def __init__(
        self, function: Callable[[Common, Job], Result], common: Common, jobs: Iterable[Job], count: int
    ) -> None:
        """Start nothing yet."""
        self._does = (function, common)
        self._jobs = iter(jobs)
        self._count = count
        self._workers: dict[Connection, _Worker[Job]] = {}
        self._killed = 0

    def results(self) -> Iterator[tuple[Job, Result]]:
        """Jobs with their results, in order of completion; each process waits with at most one."""
        try:
            for job in itertools.islice(self._jobs, self._count):
                self._start(job)
            while self._workers:
                for ready in wait(list(self._workers)):
                    yield from self._result(self._workers.pop(cast("Connection", ready)))
        finally:
            for worker in self._workers.values():
                worker.end()

    def _start(self, job: Job) -> None:
        ours, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=_serve, args=(theirs, *self._does), daemon=True)
        with _deaf_to_ctrl_c():
            process.start()
        theirs.close()  # so that its end is seen here
        self._give(_Worker(process, ours, job))

    def _give(self, worker: _Worker[Job]) -> None:
        self._workers[worker.ours] = worker
        with contextlib.suppress(OSError):  # it was killed: reading from it says so
            worker.ours.send(worker.job)

    def _result(self, worker: _Worker[Job]) -> Iterator[tuple[Job, Result]]:
        """What a process has to say; it gets its next job before anybody deals with its result."""
        try:
            done, value = worker.ours.recv()
        except (EOFError, OSError):
            worker.end()
            self._again(worker)
            return
        job = worker.job
        if not done:
            worker.end()
            raise value
        self._killed = 0
        following = [*itertools.islice(self._jobs, 1)]
        if following:
            worker.job = following[0]
            self._give(worker)
        else:
            worker.end()
        yield job, value

    def _again(self, worker: _Worker[Job]) -> None:
        """Run a job whose process was killed in a new one."""
        self._killed += 1
        if self._killed >= KILLED_IN_A_ROW:
            raise InputError(
                f"{worker.job}: its process ended {self._killed} times before it was done (exit code "
                f"{worker.process.exitcode}); is memory short? Use fewer --threads"
            )
        self._start(worker.job)


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes started meanwhile do not hear Ctrl-C, which goes to all, from their first moment on; this one later."""
    resource_tracker.ensure_running()  # would take the block away
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(theirs: Connection, function: Callable[[Any, Any], Any], common: object) -> None:
    """Run in a process of its own: answer each job with (True, result) or (False, error)."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            theirs.send(_answer(function, common, theirs.recv()))


def _answer(function: Callable[[Any, Any], Any], common: object, job: object) -> tuple[bool, object]:
    try:
        return True, function(common, job)
    except Exception as error:  # noqa: BLE001 - raised again by whoever gave the job
        return False, portable(error)


def portable(error: Exception) -> Exception:
    """The error, or one that says the same where it cannot be sent; with where it comes from if it is no GapdError."""
    if not isinstance(error, GapdError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - what was made here a moment ago
    except Exception:  # noqa: BLE001 - any class may need other arguments than it keeps
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _end_with_parent() -> None:
    """End at once when the process that gives the jobs is gone: nobody would take the result."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
