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
from link_peer import free_address, until
from numpy.typing import NDArray

from gapd.cycle import run
from gapd.daemon import Daemon, Edges
from gapd.keeper import Memory
from gapd.messages.frames import ENCODER, Frame
from gapd.outbox import Outbox
from gapd.pipeline import Happening, Pipeline
from gapd.robot import Robot
from gapd.sources.zmq_frames import FrameSource
from gapd.state_folder import StateFolder
from gapd.status import StatusSocket, ask, status_path
from gapd.telemetry import ServiceManager, open_log
from gapd.windows import Frames
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
IN_HASTE = "import gapd.frame_rows as f; f.CLOCK_LIMIT_S = 1e9; from gapd.cli import main; main()"
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


def script(recorded: Any, robot: Robot, parts: Sequence[Part], seed: int = 2) -> list[Frame]:
    """Frames of one part after the other, with holes in between."""
    found: list[Frame] = []
    for number, part in enumerate(parts):
        begin_s = found[-1].timestamp + HOLE_S if found else 100.0
        truth = robot.parameters.nominal * part.truth
        recording: Frames = recorded(robot, truth, part.seconds, seed + number, part.structure).frames
        found += [f for f in _frames(recording, begin_s, len(found))]
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
            happened += pipeline.finish(run(pipeline.keeper.robot, job.prepared, job.standing))
    return happened
