"""The tiny robot alive: scripted frames, a publisher of them, and the daemon as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zmq
from link_peer import until
from numpy.typing import NDArray

from gapd.fit.cycle import run
from gapd.link.outbox import Outbox
from gapd.live.daemon import Daemon
from gapd.live.edges import Edges
from gapd.live.events import Decided
from gapd.live.pipeline import Happening, Pipeline
from gapd.live.state_folder import StateFolder
from gapd.live.status import StatusSocket, ask, status_path
from gapd.live.telemetry import ServiceManager, open_log
from gapd.measured.windows import Frames
from gapd.messages.frames import ENCODER, Frame
from gapd.model.robot import Robot
from gapd.sources.zmq_frames import FrameSource
from gaptrain.simulate import Structure

Array = NDArray[np.float64]

CHANGE = np.array([1.5, 2.0, 0.6, 1.8])
FRICTION = np.array([1.0, 1.0, 2.5, 1.0])
# Between two parts of a script nothing is sent: the robot is not where it was.
HOLE_S = 1.0
KEEPER = """
[live.keeper]
windows = 100
min_interval_s = 10
"""
# What tells a fast publisher from a clock that jumps is the one thing that a test cannot wait for.
IN_HASTE = "import gapd.measured.frame_rows as f; f.CLOCK_LIMIT_S = 1e9; from gapd.cli import main; main()"
AS_IT_IS = "from gapd.cli import main; main()"
FIELDS = ("timestamp", "position", "velocity", "effort", "command")
# Frames under way that fit into the daemon's queue with room to spare.
UNDER_WAY = 1500


@dataclass(frozen=True)
class Part:
    """A stretch of a script: the robot is `truth` times nominal for that long."""

    truth: Array
    seconds: float
    structure: Structure | None = None


def script(recorded: Any, robot: Robot, parts: Sequence[Part], seed: int = 5) -> list[Frame]:
    """Frames of one part after the other, with holes in between."""
    found: list[Frame] = []
    for number, part in enumerate(parts):
        begin_s = found[-1].timestamp + HOLE_S if found else 100.0
        truth = robot.parameters.nominal * part.truth
        recording: Frames = recorded(robot, truth, part.seconds, seed + number, part.structure).frames
        found += list(_frames(recording, begin_s, len(found)))
    return found


def _frames(recording: Frames, begin_s: float, first: int) -> Iterator[Frame]:
    columns = recording.timestamp, recording.measured, recording.command
    for number, (at, measured, command) in enumerate(zip(*columns, strict=True)):
        position, velocity, effort = measured.tolist()
        yield Frame(
            begin_s + float(at), ("j",), (position,), (velocity,), (effort,), tuple(command.tolist()),
            sequence=first + number,
        )  # fmt: skip


def decisions(pipeline: Pipeline, frames: Sequence[Frame]) -> list[Happening]:
    """Everything that happens, each job run at once."""
    happened: list[Happening] = []
    for frame in frames:
        happened += pipeline.add(frame)
        while pipeline.keeper.job is not None:
            job = pipeline.keeper.job
            happened += pipeline.keeper.finish(run(pipeline.keeper.robot, job.prepared, job.standing))
    return happened


def told(happened: Sequence[Happening]) -> list[str]:
    """What two runs must have in common: every event, to the bit, without what no `repr` shows."""
    return [repr(event.report.decision) + repr(event.z) if isinstance(event, Decided) else repr(event)
            for event in happened]  # fmt: skip


class Source:
    """A robot that publishes frames at the address of robot.toml; it knows when somebody listens."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint, self.sent, self._context = endpoint, 0, zmq.Context()
        self.listening = False
        self.open()

    def open(self) -> None:
        self.socket = self._context.socket(zmq.XPUB)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.SNDHWM, 0)
        self.socket.set(zmq.XPUB_VERBOSE, 1)
        until(self._bound)

    def _bound(self) -> bool:
        try:
            self.socket.bind(self.endpoint)
        except zmq.ZMQError:
            return False
        return True

    def wait_for_listener(self) -> None:
        """Until somebody has subscribed since the last call."""
        while self.socket.poll(15000):
            if self.socket.recv()[:1] == b"\1":
                return
        raise TimeoutError("nobody listens")

    def send_raw(self, *parts: bytes) -> None:
        self.socket.send_multipart(parts)
        self.sent += 1

    def send(self, *frames: Frame) -> None:
        for frame in frames:
            self.send_raw(b"frames", ENCODER.encode(frame))

    def in_time(self, frames: Sequence[Frame], speed: float = 1.0, shift_s: float = 0.0) -> None:
        """One frame after the other as a robot does."""
        began, first = time.monotonic(), frames[0].timestamp
        for frame in frames:
            time.sleep(max(0.0, began + (frame.timestamp - first) / speed - time.monotonic()))
            self.send(msgspec.structs.replace(frame, timestamp=frame.timestamp + shift_s))

    def close(self) -> None:
        self._context.destroy(linger=0)


@dataclass
class Gapd:
    """`gapd run` as a process of its own, its log in a file."""

    config: Path
    arguments: tuple[str | Path, ...] = ()
    program: str = IN_HASTE
    process: subprocess.Popen[str] | None = None

    @property
    def state(self) -> Path:
        return self.config.parent / "state"

    @property
    def _log(self) -> Path:
        return self.config.parent / "log"

    def launch(self) -> subprocess.Popen[str]:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", self.program, "run", "--config", self.config, *self.arguments],
                stdout=log, stderr=log, text=True, env=environment, cwd=self.config.parent,
            )  # fmt: skip
        return self.process

    def start(self) -> Gapd:
        wanted, process = len(self.events("ready")) + 1, self.launch()
        until(lambda: len(self.events("ready")) >= wanted or process.poll() is not None, 30.0)
        assert process.poll() is None, self.log()
        return self

    def refused(self) -> tuple[int, str]:
        """Exit code and last line of one that is not to start."""
        code = self.launch().wait(30.0)
        return code, self.log().splitlines()[-1]

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = [msgspec.json.decode(line) for line in self.log().splitlines() if line[:1] + line[-1:] == "{}"]
        return [line for line in lines if line["event"] == event]

    def wait(self, event: str, count: int = 1, timeout_s: float = 30.0) -> dict[str, Any]:
        """The newest line of that event, once there are so many."""
        until(lambda: len(self.events(event)) >= count or not self.alive, timeout_s)
        found = self.events(event)
        assert len(found) >= count, self.log()
        return found[-1]

    def status(self) -> dict[str, Any]:
        return ask(status_path(self.state), 10.0)

    def counter(self, name: str) -> int:
        return int(self.status()["counters"].get(name, 0))

    def feed(self, source: Source, frames: Sequence[Frame]) -> None:
        """As fast as the daemon takes them."""
        taken = self._taken()
        for first in range(0, len(frames), UNDER_WAY):
            source.send(*frames[first : first + UNDER_WAY])
            least = taken + min(first + UNDER_WAY, len(frames)) - UNDER_WAY // 2
            until(lambda least=least: self._taken() >= least, 60.0)  # type: ignore[misc]
        until(lambda: self._taken() >= taken + len(frames), 60.0)

    def _taken(self) -> int:
        return sum(n for name, n in self.status()["counters"].items() if name.startswith(("frames", "messages_")))

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(number)
        return self.process.wait(60.0)


class InProcess:
    """A daemon in this process, with real sockets and files; tests turn it, and may break what it stands on.

    Arrivals are not told, so that frames may come as fast as they are taken.
    """

    def __init__(self, robot: Robot, source: Source, outbox: Outbox | None = None) -> None:
        folder = robot.config.path("state")
        self.log = folder.parent / "log"
        self.source, self.context = source, zmq.Context()
        self.stream = self.log.open("a", encoding="utf-8")
        state = StateFolder(folder, robot)
        status = StatusSocket(status_path(folder))
        frames = FrameSource(self.context, robot.config.live.frames)
        self.edges = Edges(frames, state, status, open_log(self.stream), ServiceManager(), outbox)
        self.daemon = Daemon(robot, None, self.edges)
        add = self.daemon.pipeline.add
        self.daemon.pipeline.add = lambda frame, _: add(frame)  # type: ignore[misc,assignment]
        source.wait_for_listener()

    def turn(self, condition: Callable[[], Any], timeout_s: float = 30.0) -> Any:
        end = time.monotonic() + timeout_s
        while not (value := condition()):
            assert time.monotonic() < end, self.log.read_text()
            self.daemon.turn()
        return value

    def feed(self, frames: Sequence[Frame]) -> None:
        for first in range(0, len(frames), UNDER_WAY):
            wanted = self.daemon.pipeline.rows.accepted + len(frames[first : first + UNDER_WAY])
            self.source.send(*frames[first : first + UNDER_WAY])
            self.turn(lambda wanted=wanted: self.daemon.pipeline.rows.accepted >= wanted)  # type: ignore[misc]

    def settle(self) -> None:
        """Until no fit runs."""
        self.turn(lambda: self.daemon.pipeline.keeper.job is None and not self.daemon.fitter.busy)

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = [msgspec.json.decode(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line["event"] == event]

    def close(self) -> None:
        self.daemon.fitter.close()
        self.edges.state.close()
        self.edges.status.close()
        self.edges.frames.close()
        self.context.destroy(linger=0)
        self.stream.close()


def write_robot(make_robot: Any, folder: Path, robot_toml: str, endpoint: str, more: str = "") -> Robot:
    """The tiny robot's files with the tables of the live loop."""
    live = f'[live]\nstate = "state"\n[live.frames]\nendpoint = "{endpoint}"\n'
    found: Robot = make_robot(folder, robot=robot_toml + live + KEEPER + more)
    return found
