"""Robots enrolled at a host, and hosts as processes of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gapd.keys import write_keys
from gapd.model.robot import open_robot
from gaptrain.host.enrolment import enrol
from gaptrain.host.program import host_keys

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package

from link_peer import FakeRobot, Host, free_address
from senders import Sender


@pytest.fixture
def enrolled(tiny_folder: Path, tmp_path: Path) -> Iterator[Callable[..., FakeRobot]]:
    """Makes robots of the tiny type and enrols them in tmp_path/state."""
    bind, config = free_address(), tiny_folder / "robot.toml"
    state = tmp_path / "state"
    host_keys(state)
    (tmp_path / "host.pub").write_bytes((state / "host.pub").read_bytes())
    space = open_robot(config).parameters
    made: list[FakeRobot] = []

    def make(name: str = "r1", known: bool = True) -> FakeRobot:
        write_keys(tmp_path, name)
        if known:
            enrol(state, name, config, tmp_path / f"{name}.pub")
        made.append(FakeRobot(name, space, tmp_path, bind))
        return made[-1]

    yield make
    for robot in made:
        robot.close()


@pytest.fixture
def host(enrolled: Callable[..., FakeRobot], tmp_path: Path) -> Iterator[Callable[..., Host]]:
    """Starts hosts on tmp_path/state; the address is that of the robots."""
    running: list[Host] = []

    def start(robot: FakeRobot, *arguments: str) -> Host:
        running.append(Host(tmp_path / "state", robot.bind, arguments).start())
        return running[-1]

    yield start
    for one in running:
        one.stop()


@pytest.fixture
def senders(enrolled: Callable[..., FakeRobot]) -> Iterator[list[Sender]]:
    """Three robots that never stop sending."""
    made = [Sender(enrolled(f"r{n}")) for n in range(3)]
    yield made
    for sender in made:
        sender.close()
