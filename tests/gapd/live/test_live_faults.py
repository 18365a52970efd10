"""What goes wrong around a running daemon: one clear line with a remedy, the right exit code, and it goes on."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from link_peer import Host, until
from live_robot import AS_IT_IS, CHANGE, IN_HASTE, Gapd, Source, write_robot

from gapd.gap_model.bundle import open_bundle
from gapd.keys import write_keys
from gapd.messages.frames import Frame
from gapd.model.robot import Robot, open_robot
from gaptrain.host.database import read_state
from gaptrain.host.enrolment import enrol, revoke
from gaptrain.host.versions import Version, history

Start = Callable[..., Gapd]
MODELS = Path(__file__).parents[3] / "models"

# A link that gives up sooner, so that a test need not wait.
IMPATIENT = (
    "import gapd.link.hostlink as h; h.HEARTBEAT_S, h.SILENCE_S, h.ANSWER_S, h.LAST_RETRY_S = 0.5, 3.0, 1.0, 1.0; "
    + IN_HASTE
)
# Each turn ends with a correction: its first value tells its number.
TALKATIVE = """
import numpy as np
from gapd.live.daemon import Daemon
from gapd.messages.link import Correction
turn = Daemon.turn
def talk(self):
    turn(self)
    if self.host.post.pending < 20:
        z = self.pipeline.keeper.z
        z[0] += 1e-4
        self.pipeline.keeper.adopt(z)
        n = len(z)
        base = self.host.post.version
        self.host.put(Correction(0, 0, 1.0, base, tuple(z.tolist()), (0.1,) * n, (), b"", (), (), "test", 2.0, 1.0, 9))
Daemon.turn = talk
"""


def versions(host: Host) -> list[Version]:
    with closing(read_state(host.state)) as database:
        return history(database, "r1")


def refusals(host: Host) -> int:
    with closing(read_state(host.state)) as database:
        return int(database.execute("SELECT count(*) FROM refusals").fetchone()[0])


@contextmanager
def listening() -> Iterator[str]:
    """An address that is taken."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield f"tcp://127.0.0.1:{other.getsockname()[1]}"


def refused(folder: Path) -> tuple[int, str]:
    """Exit code and only line of a daemon that does not start."""
    daemon = Gapd(folder / "robot.toml", program=AS_IT_IS)
    code, line = daemon.refused()
    assert daemon.log().count("\n") == 1, daemon.log()
    assert ";" in line, "a refusal names the remedy after a semicolon"
    return code, line


def test_ports_that_are_taken(make_robot: Any, tiny_toml: str, source: Source, tmp_path: Path) -> None:
    with listening() as taken:
        write_robot(make_robot, tmp_path, tiny_toml, source.endpoint, f'[live.stream]\nendpoint = "{taken}"\n')
        code, line = refused(tmp_path)
    assert code == 2
    assert line.startswith(f"gapd: live.stream.endpoint = '{taken}': Address already in use; stop what uses it")


def test_a_key_that_others_can_read(linked: Host, tmp_path: Path) -> None:
    (tmp_path / "r1.key").chmod(0o644)
    code, line = refused(tmp_path)
    assert code == 2
    assert line.endswith(f"chmod 600 {tmp_path / 'r1.key'}")


def test_a_state_folder_that_cannot_be(alive: Robot, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    code, line = refused(tmp_path)
    assert code == 2
    assert "name a folder that this user may write" in line


def test_a_second_daemon_with_the_same_state(run: Start, linked: Host, source: Source, tmp_path: Path) -> None:
    daemon = run()
    other = Gapd(tmp_path / "robot.toml", program=AS_IT_IS)
    code, line = other.refused()
    assert code == 2
    assert "another gapd runs with this state folder; stop it, or give each its own" in line
    assert daemon.status()["robot"] == "tiny"
    assert daemon.stop() == 0


def test_frames_that_are_wrong(
    run: Start, alive: Robot, source: Source, commissioning: list[Frame], gapd: Any, tmp_path: Path
) -> None:
    daemon = run(program=AS_IT_IS)
    source.in_time(commissioning[:250])
    good = commissioning[250]
    wrong = {
        "frames_wrong_length": msgspec.structs.replace(good, position=(1.0, 2.0)),
        "frames_unknown_name": msgspec.structs.replace(good, name=("elbow",)),
        "frames_repeated_name": msgspec.structs.replace(good, name=("j", "j"), position=(1.0, 2.0)),
        "frames_not_finite_time": msgspec.structs.replace(good, timestamp=float("nan")),
        "frames_backwards": msgspec.structs.replace(good, timestamp=commissioning[240].timestamp),
        "frames_clock_jump": msgspec.structs.replace(good, timestamp=good.timestamp + 3600.0),
    }
    for frame in wrong.values():
        source.send(frame, frame)  # a second one is no news
        source.send(good)
        good = msgspec.structs.replace(good, timestamp=good.timestamp + 0.005, sequence=None)
    for parts in ([b"frames", b"\xc1"], [b"frames"], [b"frames", msgspec.msgpack.encode({"time": 1})]):
        source.send_raw(*parts)
    until(lambda: daemon.counter("messages_not_a_frame"))
    told = daemon.status()["counters"]
    # The second frame after a jump begins a new grid, and what follows it is of the past.
    assert told["frames_clock_jump"] >= 1
    assert told["frames_backwards"] >= 2
    others = set(wrong) - {"frames_clock_jump", "frames_backwards"}
    assert {name: told.get(name, 0) for name in others} == dict.fromkeys(others, 2)
    assert (told["messages_not_messagepack"], told["messages_not_two_parts"]) == (1, 1)
    lines = [line for line in daemon.events("frame_refused") if "remedy" in line]
    assert len(lines) == len(wrong)
    assert all(line["reason"] and line["remedy"] for line in lines)
    hollow = [msgspec.structs.replace(f, position=(float("nan"),)) for f in commissioning[260:400]]
    source.in_time(hollow)
    until(lambda: daemon.counter("values_not_finite") >= len(hollow))
    assert any(line["reason"] for line in daemon.events("window"))
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log()


def test_a_source_that_stops_or_sends_what_is_of_no_use(
    run: Start, alive: Robot, source: Source, commissioning: list[Frame], gapd: Any, tmp_path: Path
) -> None:
    daemon = run(program=AS_IT_IS)
    source.in_time(commissioning[:100])
    assert daemon.status()["level"] == 0
    assert daemon.wait("source_silent")["remedy"]
    done = gapd("status", "--config", tmp_path / "robot.toml")
    assert done.returncode == 1
    assert done.stdout.startswith("level     STALE\n")
    assert "problem   no frames for" in done.stdout
    source.in_time(commissioning[100:200], shift_s=5.0)
    daemon.wait("source_back")
    assert daemon.status()["level"] == 0
    useless = [msgspec.structs.replace(f, name=("elbow",)) for f in commissioning[200:700]]
    source.in_time(useless, shift_s=5.0)
    told = daemon.status()
    assert (told["level"], told["problems"]) == (2, [told["problems"][0]])
    assert told["problems"][0].startswith("no frame can be used: name 'elbow': no joint of the model")
    assert ";" in told["problems"][0]


def test_a_host_that_is_away_gets_everything_once(run: Start, linked: Host, source: Source, story: list[Frame]) -> None:
    daemon = run(program=IMPATIENT)
    part = [f for f in story if f.timestamp < 132.5]
    daemon.feed(source, part)
    daemon.wait("decision", 2)
    told = daemon.status()
    assert (told["link"]["up"], told["link"]["pending"]) == (False, 2)
    assert any("start gaptrain host there" in problem for problem in told["problems"])
    assert len(daemon.events("link_down")) == 1
    assert all(line["remedy"] for line in daemon.events("link_down"))
    linked.start()
    until(lambda: len(versions(linked)) == 2, 30.0)
    until(lambda: daemon.status()["link"]["pending"] == 0)
    linked.kill()
    daemon.wait("link_down", 2)
    linked.start()
    daemon.wait("link_up", 2)
    assert not any("host" in problem for problem in daemon.status()["problems"])
    assert daemon.stop() == 0
    assert [v.number for v in versions(linked)] == [1, 2]
    assert refusals(linked) == 0


@pytest.mark.slow
@pytest.mark.fault
def test_a_key_that_the_host_does_not_know_or_no_more(
    run: Start, linked: Host, source: Source, story: list[Frame], tmp_path: Path
) -> None:
    config = tmp_path / "robot.toml"
    write_keys(tmp_path, "r1", force=True)
    linked.start()
    daemon = run(program=IMPATIENT)
    down = daemon.wait("link_down")
    assert down["remedy"].startswith("enrol public key ")
    daemon.feed(source, [f for f in story if f.timestamp < 114.0])
    assert daemon.wait("decision")["action"] == "correct"
    enrol(linked.state, "r1", config, tmp_path / "r1.pub")
    daemon.wait("acknowledged")
    assert len(versions(linked)) == 1

    revoke(linked.state, "r1")
    until(lambda: len(daemon.events("link_down")) >= 2, 30.0)
    until(lambda: daemon.events("link_down")[-1]["remedy"].startswith("enrol public key "), 30.0)
    told = daemon.status()
    assert any("enrol public key" in problem for problem in told["problems"])
    daemon.feed(source, [f for f in story if 114.0 <= f.timestamp < 132.5])
    daemon.wait("decision", 2)
    assert len(versions(linked)) == 1
    enrol(linked.state, "r1", config, tmp_path / "r1.pub")
    daemon.wait("acknowledged", 2)
    assert len(versions(linked)) == 2
    assert daemon.stop() == 0


@pytest.mark.slow
@pytest.mark.fault
def test_a_host_that_lost_its_state_is_told_again(
    run: Start, linked: Host, linked_robot: Robot, source: Source, story: list[Frame], tmp_path: Path
) -> None:
    linked.start()
    daemon = run(program=IMPATIENT)
    part = [f for f in story if f.timestamp < 115.0]
    daemon.feed(source, part)
    daemon.wait("acknowledged")
    linked.kill()
    for path in linked.state.glob("host.sqlite*"):
        path.unlink()
    enrol(linked.state, "r1", tmp_path / "robot.toml", tmp_path / "r1.pub")
    linked.start()
    daemon.wait("link_up", 2)
    daemon.feed(source, [msgspec.structs.replace(f, timestamp=f.timestamp + 16.0) for f in part])
    until(lambda: versions(linked), 30.0)
    truth = linked_robot.parameters.nominal * CHANGE
    np.testing.assert_allclose(linked_robot.parameters.to_physical(versions(linked)[-1].values.z), truth, rtol=0.15)
    assert daemon.stop() == 0


@pytest.mark.fault
@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_killed_at_any_moment_nothing_is_lost_or_doubled(
    run: Start, linked: Host, linked_robot: Robot, source: Source, kills: int
) -> None:
    seed = int(time.time())
    sys.stdout.write(f"seed {seed}\n")
    rng = np.random.default_rng(seed)
    linked.start()
    daemon = run(program=TALKATIVE + IMPATIENT)
    for _ in range(kills):
        time.sleep(rng.uniform(0.0, 1.0))
        which = rng.choice(["robot", "host", "both"])
        if which != "host":
            daemon.kill()
        if which != "robot":
            linked.kill()
            linked.start()
        if which != "host":
            daemon = run(program=TALKATIVE + IMPATIENT)
    until(lambda: len(versions(linked)) > 20, 30.0)
    assert daemon.stop() == 0
    daemon = run(program=IMPATIENT)
    until(lambda: daemon.status()["link"]["up"] and daemon.status()["link"]["pending"] == 0, 30.0)
    assert daemon.stop() == 0
    _require_exact(linked, linked_robot, json.loads((daemon.state / "memory.json").read_text()))
    assert "Traceback" not in daemon.log()
    assert "corrupt" not in daemon.log()


def _require_exact(host: Host, robot: Robot, stored: dict[str, Any]) -> None:
    """Each correction is there once, in its order, and both ends have the same values."""
    found = versions(host)
    numbers = [round((v.values.z[0] - robot.parameters.z_nominal[0]) * 1e4) for v in found]
    sys.stdout.write(f"{len(found)} corrections\n")
    assert numbers == list(range(1, len(found) + 1))
    assert refusals(host) == 0
    assert stored["version"] == len(found)
    np.testing.assert_array_equal(stored["memory"]["z"], found[-1].values.z)


def test_a_bundle_replaced_on_disk_is_refused_at_the_next_start(tmp_path: Path) -> None:
    folder = tmp_path / "servo_pendulum"
    shutil.copytree(MODELS / "servo_pendulum", folder, ignore=shutil.ignore_patterns(".data"))
    bundle = open_bundle(open_robot(folder / "robot.toml"))
    inputs = [np.zeros([n or 1 for n in _shape(entry)], np.float32) for entry in bundle.session.get_inputs()]
    before = bundle.run(*inputs)
    for path in (folder / "bundle").iterdir():
        path.write_bytes(b"another one")
    for name, value in bundle.run(*inputs).items():
        np.testing.assert_array_equal(value, before[name])
    code, line = refused(folder)
    assert code == 1
    assert "pin this one if you trust it" in line


def _shape(entry: Any) -> list[int]:
    return [n if isinstance(n, int) else 1 for n in entry.shape]
