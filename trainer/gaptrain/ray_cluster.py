"""Jobs on the computers of a Ray cluster."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from gapd.errors import ConfigError, InputError

Common = TypeVar("Common")
Job = TypeVar("Job")
Result = TypeVar("Result")

ANSWER_S = 5.0
# Jobs that are handed over for each that can run: enough that no computer waits for the next one.
AHEAD = 2


class RayCluster:
    """Jobs as tasks of a Ray cluster, `threads` cores each.

    Every computer of the cluster needs the same gapd with the extra `cluster`. Ray itself runs a task again whose worker
    or computer is lost.
    """

    def __init__(self, address: str, threads: int = 1) -> None:
        """Connect to nothing yet. The address is host:port, ray://host:port, or auto for a cluster of this computer."""
        self.address = address
        self.threads = threads

    def map(
        self, function: Callable[[Common, Job], Result], common: Common, jobs: Iterable[Job]
    ) -> Iterator[tuple[Job, Result]]:
        """As Executor. ConfigError where there is no Ray or no answer, InputError where the cluster fails."""
        ray = _ray()
        _connect(ray, self.address)
        try:
            yield from self._results(ray, function, common, jobs)
        except ray.exceptions.RayTaskError as error:
            raise _cause(error) from None
        except (ray.exceptions.RayError, ConnectionError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"Ray at {self.address}: {reason}; run again to go on with what is missing") from None
        finally:
            ray.shutdown()

    def _results(
        self, ray: Any, function: Callable[[Common, Job], Result], common: Common, jobs: Iterable[Job]
    ) -> Iterator[tuple[Job, Result]]:
        task = ray.remote(function).options(num_cpus=self.threads)
        shared, waiting = ray.put(common), iter(jobs)
        flying: dict[Any, Job] = {}
        while True:
            room = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 0) // self.threads))
            while len(flying) < room:
                job = next(waiting, None)
                if job is None:
                    break
                flying[task.remote(shared, job)] = job
            if not flying:
                return
            (done, *_), _ = ray.wait([*flying], num_returns=1)
            job, result = flying.pop(done), ray.get(done)
            del done  # or the cluster would keep the result
            yield job, result


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigError('--ray: Ray is not installed; pip install "gapd[cluster]" or leave --ray out') from None
    return ray


def _connect(ray: Any, address: str) -> None:
    """ConfigError in a few seconds where nobody answers; Ray itself would try for minutes and end the process."""
    _require_answer(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    except Exception as error:
        raise ConfigError(f"--ray {address}: {error}") from None


def _require_answer(address: str) -> None:
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"--ray {address}: no address; give host:port, ray://host:port or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--ray {address}: nobody answers ({error}); start Ray there or correct the address") from None


def _cause(error: Any) -> Exception:
    """What the job raised, as it was."""
    cause = error.cause
    if isinstance(cause, ModuleNotFoundError):
        return ConfigError(f"the cluster's computers cannot import {cause.name}; install the same gapd on each of them")
    return cause if isinstance(cause, Exception) else error
