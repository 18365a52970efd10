"""A stand-in robot: a simulation with hidden parameters and noise that publishes frames in real time, as robots do."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from types import FrameType

import click
import numpy as np
import zmq

from gapd.errors import ConfigError, GapdError
from gapd.limits import number_fault
from gapd.messages.frames import ENCODER, Frame
from gapd.model.robot import Robot, open_robot
from gaptrain.settings import load_training
from gaptrain.standin_plant import Array, Motion, Plant, Sample, Scene, Setup
from gaptrain.standin_scenes import Script, demo_script, hidden_parameters, load_script, resolve, truth

TOPIC = b"frames"
# After a stall, so many frames go out at once, then for so many periods none: readers' queues must not overflow.
BURST = 50
PAUSE_PERIODS = 10
# Frames simulated at a time, ahead of when they are due: one at a time takes half as much CPU time again, because
# caches are cold after each wait.
AHEAD = 10
# Frames kept for a reader that does not read: 10 s at 500 Hz.
SEND_QUEUE = 5000
# What has not been sent this long after the end is given up.
LINGER_MS = 500


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    config: Path
    bind: str
    seed: int = 1
    speed: float = 1.0
    rate_hz: float | None = None  # the model's step rate
    scene: Path | None = None
    demo: bool = False
    change_s: float = 25.0
    stop_s: float = 50.0
    seconds: float | None = None
    truth: Path | None = None

    def check(self) -> None:
        """Raise ConfigError where a number makes no sense or options contradict each other."""
        faults = {
            "--speed": (self.speed, number_fault(self.speed, 1e-3, 1e3, "a factor")),
            "--seconds": (self.seconds, "" if self.seconds is None else number_fault(self.seconds, 0, 1e9)),
            "--change-s": (self.change_s, number_fault(self.change_s, 0, 1e9)),
            "--stop-s": (self.stop_s, number_fault(self.stop_s, self.change_s, 1e9, "a time after --change-s,")),
        }
        for key, (value, fault) in faults.items():
            if fault:
                raise ConfigError(f"{key} {value}: {fault}")
        if self.demo and self.scene is not None:
            raise ConfigError("--demo and --scene: both say what happens; give one")


class StandIn:
    """A robot that no one but `scenes` knows: equal seeds give equal frames."""

    def __init__(self, options: Options) -> None:
        """Open the robot, draw its parameters and motion, place its stops."""
        options.check()
        robot = open_robot(options.config)
        excitation = load_training(options.config.parent / "train.toml").excitation
        # Independent streams: a script must change neither parameters nor motion nor noise.
        parameters, motion, noise, script = (
            np.random.default_rng(s) for s in np.random.SeedSequence(options.seed).spawn(4)
        )
        substeps = _substeps(options.rate_hz, robot.layout.step_s)
        self.setup = Setup(robot, excitation, Motion.draw(excitation, motion), substeps)
        hidden = hidden_parameters(robot, parameters)
        self.scenes: tuple[Scene, ...] = resolve(self.setup, hidden, self._script(options, hidden, script))
        self._noise, self._fields = noise, _Fields(robot)

    def _script(self, options: Options, hidden: Array, rng: np.random.Generator) -> Script:
        if options.demo:
            return demo_script(self.setup, hidden, rng, options.change_s, options.stop_s)
        return Script() if options.scene is None else load_script(options.scene, self.setup.robot)

    def frames(self) -> Iterator[Frame]:
        """Frames without end. InputError if the simulation diverges."""
        plant, sd = Plant(self.setup, self.scenes), self.setup.robot.layout.noise
        for sequence in count():
            sample = plant.sample()
            yield self._fields.frame(sample, sample.measured + sd * self._noise.normal(size=len(sd)), sequence)


class _Fields:
    """Which channel goes where in a frame."""

    def __init__(self, robot: Robot) -> None:
        layout = robot.layout
        self._names = layout.joints
        self._by_joint = (layout.position, layout.velocity, layout.effort)
        used = set(np.concatenate(self._by_joint).tolist())
        self._others = [(c, name) for c, name in enumerate(layout.channels) if c not in used]
        self._context = dict(zip(robot.config.context_names, robot.context_nominal.tolist(), strict=True))

    def frame(self, sample: Sample, measured: Array, sequence: int) -> Frame:
        """The sample with what was measured (C,)."""
        padded = np.append(measured, np.nan)  # ABSENT is -1: the NaN
        position, velocity, effort = (
            tuple(padded[channels].tolist()) if (channels >= 0).any() else () for channels in self._by_joint
        )
        return Frame(
            timestamp=sample.time_s,
            name=self._names,
            position=position,
            velocity=velocity,
            effort=effort,
            command=tuple(sample.command.tolist()),
            sensors={name: float(measured[c]) for c, name in self._others},
            context=self._context,
            sequence=sequence,
        )


def _substeps(rate_hz: float | None, step_s: float) -> int:
    if rate_hz is None:
        return 1
    fault = number_fault(rate_hz, 1e-3, 1e6, "a rate in Hz")
    if fault:
        raise ConfigError(f"--rate-hz {rate_hz}: {fault}")
    substeps = max(round(1.0 / (rate_hz * step_s)), 1)
    if abs(substeps * step_s * rate_hz - 1.0) > 1e-6:
        raise ConfigError(
            f"--rate-hz {rate_hz:g}: a frame must come each whole number of the model's steps of {step_s:g} s; "
            f"use {1 / (substeps * step_s):g}"
        )
    return substeps


class Pacer:
    """Says when frames go out: on an absolute schedule, so that nothing drifts. Times are monotonic, in s."""

    def __init__(self, period_s: float, start_s: float) -> None:
        """Frame k is due at start_s + k period_s."""
        self.sent = 0
        self.late = 0  # frames that went out more than a period after they were due
        self.worst_s = 0.0
        self._period_s, self._start_s, self._burst = period_s, start_s, 0

    def wait_s(self, now_s: float) -> float:
        """How long the next frame has to wait; ask again after that."""
        early_s = -self._behind_s(now_s)
        if early_s > 0:
            return early_s
        if self._burst >= BURST:
            self._burst = 0
            return PAUSE_PERIODS * self._period_s
        return 0.0

    def note(self, now_s: float) -> None:
        """Count a frame that has gone out."""
        behind_s = self._behind_s(now_s)
        late = behind_s > self._period_s
        self.late += late
        self.worst_s = max(self.worst_s, behind_s)
        self._burst = self._burst + 1 if late else 0
        self.sent += 1

    def _behind_s(self, now_s: float) -> float:
        return now_s - (self._start_s + self.sent * self._period_s)


class _Stopping:
    """Whether SIGTERM or SIGINT came."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True


def serve(options: Options) -> None:
    """Publish the frames of a stand-in until SIGTERM, Ctrl-C or the end of --seconds."""
    stopping = _Stopping()
    standin = StandIn(options)
    period_s = standin.setup.period_s
    name = standin.setup.robot.config.robot
    with _publisher(options.bind) as socket:
        if options.truth is not None:
            _write_truth(options.truth, standin, options.seed)
        address = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        click.echo(f"ready: {name}, seed {options.seed}, {1 / period_s:g} frames/s of its clock on {address}")
        most = None if options.seconds is None else round(options.seconds / period_s)
        pacer = Pacer(period_s / options.speed, time.monotonic())
        _publish(islice(standin.frames(), most), socket, pacer, stopping)
    click.echo(
        f"stopped: {pacer.sent} frames, {pacer.sent * period_s:.3f} s of its clock, {pacer.late} late, the worst by "
        f"{1e3 * pacer.worst_s:.1f} ms"
    )


def _publish(frames: Iterator[Frame], socket: zmq.Socket[bytes], pacer: Pacer, stopping: _Stopping) -> None:
    for packed in _packed(frames):
        while not stopping.asked and (wait_s := pacer.wait_s(time.monotonic())) > 0:
            time.sleep(wait_s)
        if stopping.asked:
            return
        socket.send_multipart([TOPIC, packed])
        pacer.note(time.monotonic())


def _packed(frames: Iterator[Frame]) -> Iterator[bytes]:
    while block := [ENCODER.encode(frame) for frame in islice(frames, AHEAD)]:
        yield from block


@contextmanager
def _publisher(bind: str) -> Iterator[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.PUB)
    socket.set(zmq.LINGER, LINGER_MS)
    socket.set(zmq.SNDHWM, SEND_QUEUE)
    try:
        try:
            socket.bind(bind)
        except zmq.ZMQError as error:
            taken = error.errno == zmq.EADDRINUSE
            why = "stop what uses it, or give another --bind" if taken else "give --bind like tcp://127.0.0.1:5571"
            raise GapdError(f"{bind}: {os.strerror(error.errno or 0)}; {why}") from None
        yield socket
    finally:
        socket.close()
        context.term()


def _write_truth(path: Path, standin: StandIn, seed: int) -> None:
    """Write the truth in one go: whoever waits for the file finds all of it."""
    text = json.dumps(truth(standin.setup.robot, seed, standin.setup.period_s, standin.scenes), indent=2)
    part = path.with_name(path.name + ".part")
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(path)
