"""Jobs on the computers of a Ray cluster."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from gapd.errors import ConfigError, InputError

Common = TypeVar("Common")
Job = TypeVar("Job")
Result = TypeVar("Result")

ANSWER_S = 5.0
# What gRPC, which Ray speaks, begins with: the client's preface and empty settings; the server's settings are frame 4.
_HELLO, _SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]), 4
# Jobs that are handed over for each that can run: enough that no computer waits for the next one.
AHEAD = 2


class RayCluster:
    """Jobs as tasks of a Ray cluster, `threads` cores each.

    Every computer of it needs the same gapd with the extra `cluster`. Ray itself runs a task again whose worker or
    computer is lost.
    """

    def __init__(self, address: str, threads: int = 1) -> None:
        """Connect to nothing yet. The address is host:port, ray://host:port, or auto for a cluster of this computer."""
        self.address = address
        self.threads = threads

    def map(
        self, function: Callable[[Common, Job], Result], common: Common, jobs: Iterable[Job]
    ) -> Iterator[tuple[Job, Result]]:
        """As Executor. ConfigError where there is no Ray or no answer, InputError where the cluster fails."""
        _require_answer(self.address)
        ray = _ray()
        _connect(ray, self.address, self.threads)
        try:
            yield from self._results(ray, function, common, jobs)
        except ray.exceptions.RayTaskError as error:
            raise _cause(error) from None
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise InputError(
                f"Ray at {self.address}: {_line(error)}; run again to go on with what is missing"
            ) from None
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
    # The first error ends the run in one line; Ray would print those of all other tasks besides.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigError('--ray: Ray is not installed; pip install "gapd[cluster]" or leave --ray out') from None
    return ray


def _connect(ray: Any, address: str, threads: int) -> None:
    """ConfigError where there is no cluster, or no computer with the cores of a job: it would wait for ever."""
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    except Exception as error:  # noqa: BLE001 - Ray raises many classes, down to plain ones
        raise ConfigError(f"--ray {address}: {_line(error)}; start Ray there or correct the address") from None
    cores = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    if max(cores, default=0) < threads:
        ray.shutdown()
        raise ConfigError(f"--threads {threads}: the computers at --ray {address} have {cores} cores; use fewer")


def _require_answer(address: str) -> None:
    """ConfigError within seconds where no Ray can be: it would itself try for minutes."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"--ray {address}: no address; give host:port, ray://host:port or auto")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_S) as peer:
            peer.sendall(_HELLO)
            frame = peer.recv(4)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--ray {address}: nobody answers ({error}); start Ray there or correct the address"
        ) from None
    if len(frame) < 4 or frame[3] != _SETTINGS:
        raise ConfigError(f"--ray {address}: that is no Ray; give the port of `ray start --head`")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _cause(error: Any) -> Exception:
    """What the job raised, as it was."""
    cause = error.cause
    if isinstance(cause, ModuleNotFoundError):
        return ConfigError(f"the cluster's computers cannot import {cause.name}; install the same gapd on each of them")
    return cause if isinstance(cause, Exception) else error
