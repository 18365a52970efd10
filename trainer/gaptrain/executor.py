"""Where independent jobs run: in this process, in processes of this computer, or on a Ray cluster.

A job is a plain value (a shard's number, a seed). What it gives must depend on nothing else than the function, `common`
and the job, so that results are the same however they are executed, in whatever order they come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from gaptrain.processes import Processes

Common = TypeVar("Common")
Job = TypeVar("Job")
Result = TypeVar("Result")


class Executor(Protocol):
    """Runs jobs. `threads` is what each job may use."""

    threads: int

    def map(
        self, function: Callable[[Common, Job], Result], common: Common, jobs: Iterable[Job]
    ) -> Iterator[tuple[Job, Result]]:
        """Jobs with function(common, job), in order of completion.

        `function` must be importable by its name, the values must be picklable. Jobs are taken from the iterable when
        there is room for them: neither jobs nor results pile up, however many there are. What a job raises is raised
        here, once, and ends the others; so does closing the iterator. A job whose process was killed runs again.
        """
        ...


class Local:
    """Jobs in processes of this computer; with one process in this one, one after the other."""

    def __init__(self, processes: int = 1, threads: int = 1) -> None:
        """Use up to processes x threads cores."""
        self.processes = processes
        self.threads = threads

    def map(
        self, function: Callable[[Common, Job], Result], common: Common, jobs: Iterable[Job]
    ) -> Iterator[tuple[Job, Result]]:
        """As Executor. At most `processes` results wait; InputError if jobs are killed again and again."""
        if self.processes > 1:
            yield from Processes(function, common, jobs, self.processes).results()
        else:
            for job in jobs:
                yield job, function(common, job)
