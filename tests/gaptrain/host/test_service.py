"""The host as a process, over real sockets."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import zmq
from link_peer import FakeRobot, Host, correction, until

from gapd.keys import write_keys
from gapd.messages import link
from gaptrain.host.database import read_state
from gaptrain.host.enrolment import enrol, revoke
from gaptrain.host.versions import history

Make = Callable[..., FakeRobot]
Start = Callable[..., Host]

# Runs the command with torch made unimportable: whoever tries gets an error.
WITHOUT_TORCH = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "onnx", "onnxscript"):
            raise ImportError(f"{name} must not be imported here")
sys.meta_path.insert(0, Block())
from gaptrain.cli import main
main()
"""


def test_three_robots_each_have_their_own_values(enrolled: Make, host: Start, tmp_path: Path) -> None:
    robots = [enrolled(f"r{n}") for n in (1, 2, 3)]
    service = host(robots[0])
    for robot in robots:
        assert robot.connect().say_hello() == link.Welcome(1, 0, 0, ())
    for number, robot in enumerate(robots, 1):
        for sequence in range(1, number + 1):
            assert robot.ask(correction(robot.space, sequence, sequence - 1)) == link.Ack(1, sequence, sequence)
    assert [robots[n].say_hello().version for n in range(3)] == [1, 2, 3]
    assert service.stop() == 0
    with closing(read_state(tmp_path / "state")) as database:
        assert [len(history(database, f"r{n}")) for n in (1, 2, 3)] == [1, 2, 3]
    assert len(service.events("correction")) == 6
    assert service.events("stopped")[0]["refused"] == {}
    assert service.errors() == ""


def test_what_is_sent_again_after_a_lost_acknowledgement_is_applied_once(enrolled: Make, host: Start) -> None:
    robot = enrolled()
    host(robot)
    robot.connect().say_hello()
    for sequence in range(1, 9):
        robot.send(correction(robot.space, sequence, sequence - 1))
    robot.receive(link.Ack)
    robot.connect()  # the rest of the acknowledgements is lost with the old socket
    welcome = robot.say_hello()
    assert (welcome.epoch, welcome.high_water, welcome.version) == (1, 8, 8)
    for sequence in range(5, 9):
        assert robot.ask(correction(robot.space, sequence, sequence - 1)) == link.Ack(1, sequence, 8)
    nack = robot.ask(correction(robot.space, 9, 3))
    assert (nack.code, nack.version, nack.z) == ("stale_base", 8, correction(robot.space, 8, 7).z)


def test_a_new_outbox_gets_a_new_epoch(enrolled: Make, host: Start) -> None:
    robot = enrolled()
    host(robot)
    robot.connect().say_hello()
    robot.ask(correction(robot.space, 4, 0))
    welcome = robot.say_hello(outbox="another")
    assert (welcome.epoch, welcome.high_water, welcome.version) == (2, 0, 1)
    assert robot.ask(correction(robot.space, 1, 1, epoch=2)) == link.Ack(2, 1, 2)


def test_strangers_and_revoked_robots_stay_outside(
    enrolled: Make, host: Start, tiny_folder: Path, tmp_path: Path
) -> None:
    robot, stranger = enrolled(), enrolled("stranger", known=False)
    service = host(robot)
    stranger.connect()
    stranger.send(stranger.hello())
    assert stranger.silence(link.Message, 0.7)
    until(lambda: service.events("refused"))
    line = service.events("refused")[0]
    assert line["reason"] == "key_unknown"
    assert "gaptrain enrol" in line["remedy"]
    enrol(tmp_path / "state", "stranger", tiny_folder / "robot.toml", tmp_path / "stranger.pub")
    time.sleep(1.2)  # the running service looks every half second
    assert stranger.connect().say_hello().epoch == 1

    robot.connect().say_hello()
    robot.ask(correction(robot.space, 1, 0))
    revoke(tmp_path / "state", "r1")
    time.sleep(1.2)
    robot.send(correction(robot.space, 2, 1))  # on the connection that it still has
    assert robot.silence((link.Ack, link.Nack, link.Heartbeat), 0.7)
    robot.connect()
    robot.send(robot.hello())
    assert robot.silence(link.Message, 0.7)
    assert "key_revoked" in {line["reason"] for line in service.events("refused")}
    service.stop()
    counts = service.events("stopped")[0]["refused"]
    assert counts["key_unknown"] >= 1
    assert counts["key_revoked"] >= 2
    with closing(read_state(tmp_path / "state")) as database:
        assert len(history(database, "r1")) == 1


def test_a_plaintext_peer_and_a_wrong_server_key_get_nothing(enrolled: Make, host: Start, tmp_path: Path) -> None:
    robot = enrolled()
    host(robot)
    with zmq.Context.instance().socket(zmq.DEALER) as plain:
        plain.set(zmq.LINGER, 0)
        plain.connect(robot.bind)
        plain.send(link.ENCODER.encode(robot.hello()))
        assert not plain.poll(500)
    write_keys(tmp_path, "other")
    shutil.copy(tmp_path / "other.pub", tmp_path / "host.pub")
    robot.connect()
    robot.send(robot.hello())
    assert robot.silence(link.Message, 0.5)


def test_no_robot_speaks_for_another(enrolled: Make, host: Start, tmp_path: Path) -> None:
    robot, other = enrolled("r1"), enrolled("r2")
    service = host(robot)
    robot.connect().say_hello()
    robot.ask(correction(robot.space, 1, 0))
    other.connect()
    other.send(other.hello(robot="r1"))
    refused = other.receive(link.Refused)
    assert refused.code == "unknown_robot"
    assert "this key is of robot 'r2', not of 'r1'" in refused.remedy
    nack = other.ask(correction(other.space, 2, 1))  # no epoch of its own
    assert nack.code == "wrong_epoch"
    assert nack.z == ()
    other.say_hello()
    other.ask(correction(other.space, 1, 0, reason="mine"))
    service.stop()
    with closing(read_state(tmp_path / "state")) as database:
        assert [v.reason for v in history(database, "r1")] == ["test"]
        assert [v.reason for v in history(database, "r2")] == ["mine"]


def test_nonsense_is_counted_and_hurts_nobody(enrolled: Make, host: Start) -> None:
    robot, other = enrolled("r1"), enrolled("r2")
    service = host(robot)
    robot.connect().say_hello()
    other.connect().say_hello()
    good = link.ENCODER.encode(correction(robot.space, 1, 0))
    nonsense = [(b"",), (b"\xc1",), (good[:-5],), (good + b"x",), (b"", good), (b"a", b"b", b"c"), (b"\x91" * 5000,)]
    for parts in nonsense[:4] + nonsense[5:]:
        robot.send_raw(*parts)
    assert robot.ask(correction(robot.space, 1, 0)) == link.Ack(1, 1, 1)
    robot.send_raw(b"x" * (link.MAX_BYTES + 1))  # costs its own connection only
    assert other.ask(correction(other.space, 1, 0)) == link.Ack(1, 1, 1)
    assert robot.connect().say_hello().version == 1
    service.stop()
    assert service.events("stopped")[0]["refused"] == {"malformed": 6}
    assert len([line for line in service.events("refused") if line["reason"] == "malformed"]) == 1
    assert service.errors() == ""


def test_heartbeats_keep_a_quiet_link_up(enrolled: Make, host: Start) -> None:
    robot = enrolled()
    host(robot)
    robot.connect().say_hello()
    robot.ask(correction(robot.space, 1, 0))
    assert [robot.receive(link.Heartbeat).version for _ in range(2)] == [1, 1]


def test_it_starts_without_torch(enrolled: Make, tmp_path: Path) -> None:
    robot = enrolled()
    service = Host(tmp_path / "state", robot.bind).start(("-c", WITHOUT_TORCH))
    try:
        assert robot.connect().say_hello().epoch == 1
    finally:
        assert service.stop(signal.SIGINT) == 0
    assert service.errors() == ""
