"""The stand-in robot: its frames are those of its parameters, its changes come in time, and it keeps pace."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import zmq
from numpy.typing import NDArray

from gapd.errors import ConfigError, InputError
from gapd.gap.replay import Replay, gap
from gapd.measured.frame_rows import FrameRows, Row
from gapd.measured.windows import Frames, cut, window_starts
from gapd.messages.frames import DECODER, ENCODER, Frame
from gapd.model.robot import Robot
from gaptrain.standin import BURST, Options, Pacer, StandIn
from gaptrain.standin_plant import Motion, Scene, Stop
from gaptrain.standin_scenes import FELT, stop_gap

Array = NDArray[np.float64]

PROGRAM = Path(sys.executable).with_name("gaptrain")
TRAIN = """
[excitation]
home = [0.0]
amplitude = [1.2]
low_hz = 0.3
high_hz = 2.0
"""
DEMO = {"demo": True, "change_s": 3.0, "stop_s": 6.0}


@pytest.fixture(scope="session")
def models(request: pytest.FixtureRequest) -> Path:
    return request.config.rootpath / "models"


@pytest.fixture(scope="session")
def tiny_config(tiny_folder: Path) -> Path:
    (tiny_folder / "train.toml").write_text(TRAIN)
    return tiny_folder / "robot.toml"


def standin(config: Path, seed: int = 1, **options: object) -> StandIn:
    return StandIn(Options(config, "", seed, **options))  # type: ignore[arg-type]


def taken(robot: StandIn, seconds: float) -> list[Frame]:
    return list(islice(robot.frames(), round(seconds / robot.setup.period_s)))


def table(frames: list[Frame], robot: Robot) -> Frames:
    """Frames as the daemon takes them."""
    reader = FrameRows(robot)
    rows = [row for frame in frames if isinstance(row := reader.row(frame), Row)]
    assert len(rows) == len(frames)
    assert reader.lost == 0
    return Frames(*(np.array(column) for column in list(zip(*rows, strict=True))[:4]))


def floors(frames: Frames, robot: Robot, physical: Array) -> Array:
    """RMS gap (C,) of all windows in the simulator with parameters (P,), initial states as measured."""
    windows = cut(frames, robot.layout, window_starts(frames, robot.layout))
    gaps = gap(windows, Replay(robot).run(windows, physical), robot.layout.noise)
    return np.asarray(np.sqrt(np.mean(gaps**2, axis=(0, 1))))


def test_equal_seeds_give_equal_frames(tiny_config: Path) -> None:
    first, again, other = (taken(standin(tiny_config, seed, **DEMO), 8) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_frames_are_regular_and_complete(models: Path) -> None:
    robot = standin(models / "arm7" / "robot.toml", rate_hz=250)
    frames = taken(robot, 0.2)
    assert [f.sequence for f in frames] == list(range(50))
    np.testing.assert_allclose([f.timestamp for f in frames], np.arange(50) / 250, atol=1e-12)
    joints = tuple(f"joint{i}" for i in range(1, 8))
    for frame in frames:
        assert frame.name == joints
        assert {len(v) for v in (frame.position, frame.velocity, frame.effort, frame.command)} == {7}
        assert DECODER.decode(ENCODER.encode(frame)) == frame


@pytest.mark.parametrize("rate_hz", [200, 100])
def test_frames_replay_to_the_floor_with_the_parameters_of_their_scene(tiny_config: Path, rate_hz: float) -> None:
    robot = standin(tiny_config, rate_hz=rate_hz, **DEMO)
    opened, frames = robot.setup.robot, table(taken(robot, 6), robot.setup.robot)
    first, second = (scene.physical for scene in robot.scenes[:2])
    before, after = frames.between(0, 2.999), frames.between(3, 6)
    # The measured initial state is worth a little more than the noise.
    assert (floors(before, opened, first) < 1.6).all()
    assert (floors(after, opened, second) < 1.6).all()
    assert floors(after, opened, first).max() > 2
    assert floors(before, opened, opened.parameters.nominal).max() > 5


def test_an_arm_replays_to_the_floor_and_a_command_one_step_late_does_not(models: Path) -> None:
    robot = standin(models / "arm7" / "robot.toml")
    opened = robot.setup.robot
    frames = table(taken(robot, 3), opened)
    right = floors(frames, opened, robot.scenes[0].physical)
    late = Frames(frames.timestamp[1:], frames.measured[1:], frames.command[:-1], frames.context[1:])
    assert np.sqrt(np.mean(right**2)) == pytest.approx(1.0, abs=0.1)
    assert floors(late, opened, robot.scenes[0].physical).max() > 3


def test_a_change_acts_from_its_time_on(tiny_config: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text('[[change]]\nat_s = 1.0\nfactor = { "joint/j/damping" = 3.0 }\n')
    plain, changed = standin(tiny_config), standin(tiny_config, scene=script)
    assert changed.scenes[1].changed == ("joint/j/damping",)
    assert changed.scenes[1].physical[1] == pytest.approx(3 * plain.scenes[0].physical[1])
    was, now = taken(plain, 2), taken(changed, 2)
    assert first_difference(was, now) in (200, 201)  # a step of 5 ms later it shows


def first_difference(one: list[Frame], other: list[Frame]) -> int:
    return next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)


@pytest.mark.parametrize(("side", "quantile"), [("upper", 0.75), ("lower", 0.25)])
def test_a_stop_at_a_quantile_pushes_back_and_only_back(
    tiny_config: Path, tmp_path: Path, side: str, quantile: float
) -> None:
    script = tmp_path / "script.toml"
    text = f'joint = "j"\nquantile = {quantile}\nside = "{side}"\nstiffness = 20.0\ndamping = 0.2\n'
    script.write_text("[[change]]\nat_s = 1.0\n[[change.stop]]\n" + text)
    free, stopped = standin(tiny_config), standin(tiny_config, scene=script)
    stop = stopped.scenes[1].stops[0]
    was, now = (np.array([f.position[0] for f in taken(robot, 11)])[200:] for robot in (free, stopped))
    assert np.mean(stop.depth(was) > 0) == pytest.approx(0.25, abs=0.1)
    assert 0 < stop.depth(now).max() < 0.5 * stop.depth(was).max()
    assert np.sign(stop.force(stop.at_rad + np.sign(quantile - 0.5) * 0.1, 0.0)) == np.sign(0.5 - quantile)
    assert stop.force(stop.at_rad, 1.0) == 0
    assert stop.force(stop.at_rad + np.sign(quantile - 0.5) * 0.1, -100 * np.sign(quantile - 0.5)) == 0


@pytest.mark.parametrize("seed", [1, 4])
def test_the_demo_doubles_a_friction_changes_the_payload_and_then_stops_another_joint(models: Path, seed: int) -> None:
    robot = standin(models / "arm7" / "robot.toml", seed, demo=True)
    space, (hidden, changed, stopped) = robot.setup.robot.parameters, robot.scenes
    ratio = dict(zip(space.names, changed.physical / hidden.physical, strict=True))
    friction, payload = changed.changed
    assert friction.endswith("/frictionloss")
    assert ratio[friction] == 2
    assert payload == "body/payload/mass"
    assert ratio[payload] in (0.5, 2)
    assert (stopped.physical == changed.physical).all()
    assert stopped.stops[0].joint not in friction
    assert [s.start_s for s in robot.scenes] == [0, 25, 50]
    for scene in robot.scenes:
        assert (scene.physical > space.min).all()
        assert (scene.physical < space.max).all()
    without = Scene(stopped.start_s, stopped.physical)
    assert stop_gap(robot.setup, without, stopped.stops[0]) >= FELT


def test_every_joint_moves_all_the_time(models: Path) -> None:
    excitation = standin(models / "arm7" / "robot.toml").setup.excitation
    motion = Motion.draw(excitation, np.random.default_rng(5))
    reference = np.array([motion.at(t)[0] for t in np.arange(0, 200, 0.02)])
    span = np.ptp(reference.reshape(100, 100, 7), axis=1)  # within each 2 s
    assert (span > 0.25 * np.array(excitation.amplitude)).all()
    assert (np.abs(reference - excitation.home) <= excitation.amplitude).all()
    before, after = motion.at(1.0 - 1e-6)[0], motion.at(1.0 + 1e-6)[0]
    np.testing.assert_allclose((after - before) / 2e-6, motion.at(1.0)[1], atol=1e-6)


def test_a_stop_that_makes_the_simulation_diverge_is_refused(tiny_config: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    text = "[[change]]\nat_s = 0.1\n[[change.stop]]\njoint = 'j'\nat_rad = -3.0\nstiffness = 1e9\ndamping = 1e9\n"
    script.write_text(text)
    with pytest.raises(InputError, match=r"tiny diverges at 0\.\d+ s; use another seed, or smaller"):
        taken(standin(tiny_config, scene=script), 2)


@pytest.mark.parametrize("model", ["servo_pendulum", "ballscrew"])
def test_other_models_have_their_demo_too(models: Path, model: str) -> None:
    robot = standin(models / model / "robot.toml", demo=True, change_s=0.2, stop_s=0.4)
    frames = taken(robot, 0.6)
    assert frames[-1].context.keys() == set(robot.setup.robot.config.context_names)
    assert np.isfinite([f.position for f in frames]).all()


def simulated_clock(pacer: Pacer, frames: int, stall_at: int, stall_s: float) -> list[float]:
    """Times at which frames go out when sending takes no time, but the process stalls once."""
    now, sent = 0.0, []
    while len(sent) < frames:
        while (wait_s := pacer.wait_s(now)) > 0:
            now += wait_s
        if len(sent) == stall_at:
            now += stall_s
        pacer.note(now)
        sent.append(now)
    return sent


def test_after_a_stall_it_catches_up_in_bursts(tiny_config: Path) -> None:
    pacer = Pacer(0.002, 0.0)
    sent = simulated_clock(pacer, 1000, 100, 0.5)
    np.testing.assert_allclose(sent[-100:], np.arange(900, 1000) * 0.002, atol=1e-9)
    assert pacer.worst_s == pytest.approx(0.5)
    assert 250 <= pacer.late < 400
    together, longest = 1, 1
    for one, next_one in pairwise(sent):
        together = together + 1 if next_one - one < 1e-6 else 1
        longest = max(longest, together)
    assert longest <= BURST + 1


class Running:
    """`gaptrain standin` as a process, and a reader of its frames."""

    def __init__(self, *arguments: str | Path) -> None:
        command = [PROGRAM, "standin", *arguments, "--bind", "tcp://127.0.0.1:*"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.set(zmq.RCVTIMEO, 5000)
        self.socket.subscribe(b"frames")
        if self.ready:
            self.socket.connect(self.ready.split()[-1])

    def frame(self) -> Frame:
        topic, packed = self.socket.recv_multipart()
        assert topic == b"frames"
        return DECODER.decode(packed)

    def close(self) -> None:
        self.context.destroy(linger=0)
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def running() -> Iterator[list[Running]]:
    made: list[Running] = []
    yield made
    for one in made:
        one.close()


def test_it_publishes_in_real_time_until_told_to_stop(models: Path, running: list[Running], tmp_path: Path) -> None:
    truth = tmp_path / "truth.json"
    running.append(one := Running("--config", models / "arm7" / "robot.toml", "--truth", truth, "--seed", "3"))
    assert one.ready.startswith("ready: arm7, seed 3, 500 frames/s")
    received = []
    for _ in range(1000):
        frame = one.frame()
        received.append((frame.timestamp, time.monotonic()))
    stamps, arrivals = np.array(received).T
    np.testing.assert_allclose(np.diff(stamps), 0.002, atol=1e-9)
    assert np.median(np.abs((arrivals - arrivals[0]) - (stamps - stamps[0]))) < 0.02  # other tests share the machine
    assert np.median(np.diff(arrivals)) == pytest.approx(0.002, rel=0.5)
    one.process.send_signal(signal.SIGTERM)
    out, err = one.process.communicate(timeout=5)
    assert one.process.returncode == 0
    assert not err
    assert out.startswith("stopped: ")
    assert out.count("\n") == 1
    written = json.loads(truth.read_text())
    expected = standin(models / "arm7" / "robot.toml", 3)
    names = expected.setup.robot.parameters.names
    assert written["scenes"][0]["parameters"] == dict(zip(names, expected.scenes[0].physical.tolist(), strict=True))


def test_it_ends_after_its_seconds_at_its_speed(tiny_config: Path, running: list[Running]) -> None:
    running.append(one := Running("--config", tiny_config, "--seconds", "10", "--speed", "20"))
    out, _ = one.process.communicate(timeout=10)
    assert one.process.returncode == 0
    assert out.startswith("stopped: 2000 frames, 10.000 s of its clock")


STOP = '[[change]]\nat_s = 1\n[[change.stop]]\njoint = "j"\nstiffness = 1.0\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            '[[change]]\nat_s = 1\nfactor = { "joint/j/dampin" = 2.0 }',
            "no such parameter; did you mean 'joint/j/damping'",
        ),
        ('[[change]]\nat_s = 1\nfactor = { "joint/j/damping" = 0.0 }', "must be a factor from 0.001 to 1000"),
        ("[[change]]\nat_s = 1", r"change\[0\].at_s = 1.0: nothing changes then"),
        (f'{STOP}quantile = 0.5\n[[change]]\nat_s = 0.5\nfactor = {{ "joint/j/damping" = 2.0 }}', "must be a time"),
        (STOP, "give either at_rad or quantile"),
        (f"{STOP}quantile = 1.5", "quantile = 1.5: must be a number from 0 to 1"),
        (f"{STOP}at_rad = nan", "at_rad = nan: must be"),
        (f'{STOP}at_rad = 1.0\nside = "left"', "Invalid enum value 'left'"),
        (STOP.replace('"j"', '"k"') + "at_rad = 1.0", "no such joint"),
        ("[[chang]]", "unknown key 'chang'; did you mean 'change'"),
    ],
)
def test_a_wrong_script_is_refused(tiny_config: Path, tmp_path: Path, text: str, reason: str) -> None:
    script = tmp_path / "script.toml"
    script.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        standin(tiny_config, scene=script)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rate_hz": 150.0}, "--rate-hz 150: a frame must come each whole number .* use 200"),
        ({"rate_hz": 1000.0}, "use 200"),
        ({"speed": float("nan")}, "--speed nan: must be a factor"),
        ({"seconds": -1.0}, "--seconds -1.0: must be"),
        ({"change_s": 30.0, "stop_s": 20.0}, "--stop-s 20.0: must be a time after --change-s, from 30"),
        ({"demo": True, "scene": Path("x.toml")}, "--demo and --scene: both say what happens"),
        ({"scene": Path("none.toml")}, "none.toml: no such file"),
    ],
)
def test_wrong_options_are_refused(tiny_config: Path, options: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        standin(tiny_config, **options)


def test_a_taken_address_is_one_line(tiny_config: Path, running: list[Running]) -> None:
    running.append(one := Running("--config", tiny_config))
    done = subprocess.run(
        [PROGRAM, "standin", "--config", tiny_config, "--bind", one.ready.split()[-1]],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.endswith("Address already in use; stop what uses it, or give another --bind\n")
    assert done.stderr.count("\n") == 1


def test_a_stop_damps_towards_it_and_never_pulls() -> None:
    stop = Stop("j", 0.5, stiffness=10.0, damping=1.0)
    assert stop.force(0.6, 0.0) == pytest.approx(-1.0)
    assert stop.force(0.6, 1.0) == pytest.approx(-2.0)
    assert stop.force(0.6, -5.0) == 0
    assert stop.force(0.4, 5.0) == 0
