"""A host as a process of its own, and robots that speak the bare protocol: what they send is up to the test."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import zmq

from gapd.keys import read_public, read_secret
from gapd.messages import link
from gapd.model.parameters import ParameterSet

T = TypeVar("T")

PATIENCE_S = 15.0


def correction(space: ParameterSet, sequence: int, base: int, epoch: int = 1, **other: Any) -> link.Correction:
    """A valid correction whose first value tells its sequence."""
    z = space.z_nominal + 1e-6 * sequence
    fields: dict[str, Any] = {
        "epoch": epoch, "sequence": sequence, "timestamp": 1.0, "base_version": base, "z": tuple(z.tolist()),
        "z_sd": (0.1,) * len(space), "active": (0, 2), "covariance": np.array([0.01, 0.0, 0.01], "<f4").tobytes(),
        "changed": (space.names[0],), "effective": (), "reason": "test", "gap_before": 3.0, "gap_after": 1.0,
        "windows": 9,
    }  # fmt: skip
    return link.Correction(**fields | other)


TERM = link.Term("j", "load friction", 0.1, 0.01, "N·m", 0.5)


def escalation(sequence: int, evidence: str = "", size: int = 0, epoch: int = 1, **other: Any) -> link.Escalation:
    """A valid escalation that names one term."""
    says = "load friction in j", "look for backlash", (TERM,)
    message = link.Escalation(epoch, sequence, 1.0, 0, *says, evidence, size)
    return msgspec.structs.replace(message, **other)


def verdict(sequence: int, candidate: str, base: int, says: str = "accepted", epoch: int = 1) -> link.Verdict:
    return link.Verdict(epoch, sequence, 1.0, candidate, base, says, "better", 3.0, 1.0, 9)  # type: ignore[arg-type]


@dataclass
class FakeRobot:
    """The robot's end of the link, without an outbox."""

    name: str
    space: ParameterSet
    folder: Path
    bind: str
    outbox: str = "outbox-1"
    context: zmq.Context[zmq.Socket[bytes]] = field(default_factory=zmq.Context.instance)
    socket: zmq.Socket[bytes] | None = None

    def connect(self) -> FakeRobot:
        keys, server = read_secret(self.folder / f"{self.name}.key"), read_public(self.folder / "host.pub")
        self.close()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.curve_publickey, self.socket.curve_secretkey = keys.public, keys.secret
        self.socket.curve_serverkey = server
        self.socket.connect(self.bind)
        return self

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()

    def send(self, message: link.Message) -> None:
        self.send_raw(link.ENCODER.encode(message))

    def send_raw(self, *parts: bytes) -> None:
        assert self.socket is not None
        self.socket.send_multipart(parts)

    def hello(self, **other: Any) -> link.Hello:
        message = link.Hello(link.PROTOCOL, self.name, self.outbox, self.space.fingerprint, "test")
        return msgspec.structs.replace(message, **other)

    def receive(self, kind: type[T], timeout_s: float = PATIENCE_S) -> T:
        """The next message of that kind, without those of other kinds."""
        assert self.socket is not None
        end = time.monotonic() + timeout_s
        while self.socket.poll(max(0, round(1e3 * (end - time.monotonic())))):
            message = link.FROM_HOST.decode(self.socket.recv())
            if isinstance(message, kind):
                return message
        raise TimeoutError(f"{self.name}: no {kind} within {timeout_s} s")

    def silence(self, kinds: type[link.Message] | Any, wait_s: float) -> bool:
        """Whether none of these kinds comes."""
        try:
            self.receive(kinds, wait_s)
        except TimeoutError:
            return True
        return False

    def say_hello(self, **other: Any) -> link.Welcome:
        self.send(self.hello(**other))
        return self.receive(link.Welcome)

    def ask(self, message: link.Message) -> Any:
        self.send(message)
        return self.receive((link.Ack, link.Nack))  # type: ignore[arg-type]


@dataclass
class Host:
    """`gaptrain host` as a process."""

    state: Path
    bind: str
    arguments: tuple[str, ...] = ()
    process: subprocess.Popen[str] | None = None

    def start(self, program: tuple[str, ...] = ("-c", "from gaptrain.cli import main; main()")) -> Host:
        environment = os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        wanted = self.log().count('"ready"') + 1
        with (self.state.parent / "log").open("a") as log, (self.state.parent / "errors").open("a") as errors:
            process = self.process = subprocess.Popen(
                [sys.executable, *program, "host", "--state", self.state, "--bind", self.bind, *self.arguments],
                stdout=log, stderr=errors, text=True, env=environment,
            )  # fmt: skip
        until(lambda: self.log().count('"ready"') >= wanted or process.poll() is not None)
        return self

    def log(self) -> str:
        path = self.state.parent / "log"
        return path.read_text() if path.exists() else ""

    def errors(self) -> str:
        return (self.state.parent / "errors").read_text()

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = [msgspec.json.decode(line) for line in self.log().splitlines() if line.endswith("}")]
        return [line for line in lines if line["event"] == event]

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process is None or self.process.poll() is not None:
            return 0
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


def until(condition: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    """What the condition gives, as soon as it is true."""
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError("it did not become true")
        time.sleep(0.02)
    return value


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"
