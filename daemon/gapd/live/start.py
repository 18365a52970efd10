"""From robot.toml to a running daemon: opens everything, and closes it in the right order."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TypeVar

import msgspec
import numpy as np
import zmq

from gapd.config import Config
from gapd.errors import InputError
from gapd.gap_model.bundle import open_active, open_bundle
from gapd.gap_model.learned import Learned
from gapd.link.hostlink import HostLink
from gapd.link.outbox import Outbox
from gapd.live.daemon import FRAMES_PER_TURN, TURN_MS, Daemon
from gapd.live.edges import Edges
from gapd.live.recorder import Recorder
from gapd.live.recording import recover
from gapd.live.state_folder import StateFolder
from gapd.live.status import StatusSocket, status_path
from gapd.live.stream import Publisher
from gapd.live.telemetry import Logger, ServiceManager, canonical, open_log
from gapd.live_config import Link, Stream
from gapd.model.robot import Robot, open_robot
from gapd.sources.zmq_frames import FrameSource

OUTBOX_BYTES = 64 * 2**20
T = TypeVar("T", bound=msgspec.Struct)


def run_daemon(config: Path, recordings: Path | None = None) -> None:
    """Run until SIGTERM or SIGINT; what cannot work is refused before it is ready."""
    log = open_log()
    robot = open_active(config)
    learned = Learned(open_bundle(robot), robot) if robot.config.bundle else None
    stopped = _until_stopped()
    with _edges(robot, log, recordings) as edges:
        daemon = Daemon(robot, learned, edges)
        canonical(
            log, "ready", robot=robot.config.robot, frames=robot.config.live.frames.endpoint,
            host=robot.config.live.link.endpoint if robot.config.live.link else "none",
            state=daemon.pipeline.keeper.state, seed=robot.config.seed,
        )  # fmt: skip
        edges.manager.ready()
        try:
            while not stopped.is_set():
                daemon.turn()
        finally:
            edges.manager.stopping()
            daemon.close()
            canonical(log, "stopped", counters=daemon.status().counters)


@contextmanager
def _edges(robot: Robot, log: Logger, recordings: Path | None) -> Iterator[Edges]:
    live = robot.config.live
    with ExitStack() as stack:
        manager = ServiceManager()
        stack.callback(manager.close)
        folder = robot.config.path(live.state)
        state = StateFolder(folder, robot)
        stack.callback(state.close)
        status = StatusSocket(status_path(folder))
        stack.callback(status.close)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        stack.callback(context.destroy, 0)
        frames = FrameSource(context, _absolute(robot.config, live.frames))
        stack.callback(frames.close)
        outbox = link = None
        if live.link is not None:
            # Scaled values of other parameters must not reach the host as if they were of these.
            path = folder / f"outbox-{robot.parameters.fingerprint[:12]}.sqlite"
            _tell_others(log, path)
            outbox = Outbox(path, OUTBOX_BYTES, lambda text: canonical(log, "outbox", level="warning", reason=text))
            stack.callback(outbox.close)
            link = _link(robot, _absolute(robot.config, live.link), outbox, context)
            stack.callback(link.close)
        stream = _stream(robot) if live.stream is not None else None
        if stream is not None:
            stack.callback(stream.close)
        recorder = _recorder(robot, log, recordings) if recordings is not None else None
        yield Edges(frames, state, status, log, manager, outbox, link, stream, recorder)


def _stream(robot: Robot) -> Publisher:
    live, path = robot.config.live, robot.config.path
    remote = live.remote_stream
    if remote is not None:
        allowed = tuple(str(path(key)) for key in remote.allowed)
        remote = msgspec.structs.replace(remote, secret_key=str(path(remote.secret_key)), allowed=allowed)
    return Publisher(robot, live.stream or Stream(), remote)


def _tell_others(log: Logger, path: Path) -> None:
    """Name outboxes of other parameters: what waits in them is not sent."""
    for other in sorted(path.parent.glob("outbox-*.sqlite")):
        if other != path:
            remedy = "to send what waits there go back to its parameters.toml; else remove the file"
            canonical(log, "outbox", level="warning", reason=f"{other.name} is of other parameters", remedy=remedy)


def _link(robot: Robot, config: Link, outbox: Outbox, context: zmq.Context[zmq.Socket[bytes]]) -> HostLink:
    space = robot.parameters
    rng = np.random.default_rng()  # many robots must not try again in step
    return HostLink(context, config, outbox, space.fingerprint, len(space), rng)


def _recorder(robot: Robot, log: Logger, folder: Path) -> Recorder:
    if folder.is_dir():
        for found in recover(folder):
            canonical(log, "recovered", path=str(found.path), messages=found.messages, damage=found.damage)
    return Recorder(folder, robot.config.robot)


def _absolute(config: Config, table: T) -> T:
    """The table with the paths of its keys resolved against the folder of robot.toml."""
    keys = ("server_public_key", "secret_key")
    paths = {key: str(config.path(getattr(table, key))) for key in keys if getattr(table, key)}
    return msgspec.structs.replace(table, **paths)


def record(config: Path, folder: Path, seconds: float | None) -> int:
    """Write frames into a folder until SIGTERM, SIGINT or for so many seconds; how many that were."""
    robot = open_robot(config)
    stopped = _until_stopped()
    count, began = 0, time.monotonic()
    with ExitStack() as stack:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        stack.callback(context.destroy, 0)
        source = FrameSource(context, _absolute(robot.config, robot.config.live.frames))
        stack.callback(source.close)
        recorder = _recorder(robot, open_log(), folder)
        stack.callback(recorder.close)
        while not stopped.is_set() and (seconds is None or time.monotonic() - began < seconds):
            source.socket.poll(TURN_MS)
            for frame in source.read(FRAMES_PER_TURN):
                recorder.frame(frame)
                count += 1
    if not count:
        raise InputError(f"no frames from {robot.config.live.frames.endpoint}; start the robot, or correct live.frames")
    return count


def _until_stopped() -> threading.Event:
    """Set by SIGTERM and SIGINT."""
    stopped = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return stopped
