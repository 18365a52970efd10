"""Frames of a simulated arm, played back at 1 kHz, and a control loop: processes beside the daemon."""

from __future__ import annotations

import gc
import multiprocessing as mp
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from gapd.messages.frames import ENCODER, Frame
from gapd.model.robot import open_robot
from gaptrain.settings import load_training
from gaptrain.standin_plant import Motion, Plant, Sample, Scene, Setup

MODEL = Path(__file__).parents[1] / "models" / "arm7"
RATE_HZ = 1000
VALUES = 50  # in a frame: 21 channels and 7 commands of the arm, the others are sensors that robot.toml ignores
EXTRA = tuple(f"extra/{n}" for n in range(VALUES - 28))
CHANGED, FACTOR = "body/payload/mass", 1.5
LATE_START_S = 0.5
PERIOD_S = 1 / RATE_HZ
SPAWN = mp.get_context("spawn")

# Frames are simulated at the model's step, half as long as needed; in between the command holds and the rest is linear.


def write_frames(path: Path, seconds: float, change_s: float | None) -> None:
    """Simulate an arm, nominal but for changes of the payload each change_s; each frame with its length before it."""
    robot = open_robot(MODEL / "robot.toml")
    excitation = load_training(MODEL / "train.toml").excitation
    rng = np.random.default_rng(1)
    nominal = robot.parameters.nominal
    heavy = np.where([name == CHANGED for name in robot.parameters.names], FACTOR, 1.0) * nominal
    scenes = [Scene(0.0, nominal)]
    if change_s is not None:
        begins = np.arange(change_s / 6, seconds, change_s)
        scenes += [Scene(float(s), (heavy, nominal)[n % 2]) for n, s in enumerate(begins)]
    plant = Plant(Setup(robot, excitation, Motion.draw(excitation, rng)), scenes)
    if robot.layout.step_s != 2 * PERIOD_S:
        raise RuntimeError(f"the model's step is {robot.layout.step_s} s; frames are made for {2 * PERIOD_S} s")
    with path.open("wb") as file:
        before = plant.sample()
        for step in range(round(seconds * RATE_HZ / 2)):
            after = plant.sample()
            between = (before.measured + after.measured) / 2
            for half, clean in enumerate((before.measured, between)):
                measured = clean + robot.layout.noise * rng.normal(size=len(clean))
                packed = ENCODER.encode(_frame(robot.layout.joints, before, measured.tolist(), 2 * step + half))
                file.write(struct.pack("<I", len(packed)) + packed)
            before = after


def _frame(joints: tuple[str, ...], sample: Sample, measured: list[float], sequence: int) -> Frame:
    n = len(joints)
    position, velocity, effort = (tuple(measured[k * n : (k + 1) * n]) for k in range(3))
    sensors = dict(zip(EXTRA, measured + measured, strict=False))
    return Frame(
        sequence * PERIOD_S, joints, position, velocity, effort, tuple(sample.command.tolist()), sensors,
        sequence=sequence,
    )  # fmt: skip


# Processes beside the daemon.


def publish(path: Path, bind: str, seconds: float, pipe: Connection) -> None:
    """Play frames back; tells when the first is due, once somebody listens, and in the end how many it sent."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.set(zmq.SNDHWM, 20 * RATE_HZ)
    socket.bind(bind)
    pipe.send("bound")
    socket.recv()
    raw, at, sent, worst_s = path.read_bytes(), 0, 0, 0.0
    start_s = time.monotonic() + LATE_START_S
    pipe.send(start_s)
    while at < len(raw) and sent < seconds * RATE_HZ:
        (size,) = struct.unpack_from("<I", raw, at)
        due_s = start_s + sent * PERIOD_S
        wait_s = due_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        socket.send_multipart([b"frames", raw[at + 4 : at + 4 + size]])
        worst_s = max(worst_s, -wait_s)
        at, sent = at + 4 + size, sent + 1
    pipe.send((sent, worst_s, time.process_time()))
    pipe.recv()  # stays until everything has been read
    context.destroy(0)


def control(pipe: Connection) -> None:
    """Wake up each millisecond until asked to stop; sends how late it was each time, s."""
    gc.disable()
    pipe.send("ready")
    late: list[float] = []
    due_s = time.monotonic()
    while not (len(late) % 100 == 0 and pipe.poll()):
        due_s += PERIOD_S
        wait_s = due_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)  # to an absolute time
        late.append(time.monotonic() - due_s)
        if late[-1] > 10 * PERIOD_S:
            due_s = time.monotonic()
    pipe.send(np.array(late))


@contextmanager
def beside(target: Any, *arguments: object) -> Iterator[Connection]:
    """A function as a process, and the pipe that it talks through."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    try:
        yield ours
    finally:
        with suppress(OSError):
            ours.send("stop")
        process.join(5)
        if process.is_alive():
            process.terminate()
