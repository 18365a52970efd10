"""The tiny robot alive, for the tests of the live loop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

# Tests are no package.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "gaptrain" / "host"))

from link_peer import Host, free_address
from link_rig import Context, Rig
from live_robot import CHANGE, FRICTION, Gapd, Part, Source, script, write_robot

from gapd.keys import write_keys
from gapd.link.outbox import Outbox
from gapd.messages.frames import Frame
from gapd.model.robot import Robot, open_robot
from gaptrain.host.enrolment import enrol
from gaptrain.host.program import host_keys
from gaptrain.structures import load_dependent_friction

LINK = """
[live.link]
name = "r1"
endpoint = "{endpoint}"
server_public_key = "host.pub"
secret_key = "r1.key"
"""


@pytest.fixture(scope="session")
def tiny_toml(tiny_folder: Path) -> str:
    return (tiny_folder / "robot.toml").read_text()


@pytest.fixture(scope="session")
def commissioning(tiny: Robot, recorded: Any) -> list[Frame]:
    """A robot that differs, for long enough to be commissioned."""
    return script(recorded, tiny, [Part(CHANGE, 15.0)])


@pytest.fixture(scope="session")
def story(tiny: Robot, recorded: Any) -> list[Frame]:
    """Commissioning, then friction changes, then it grows with load, which no parameter can express."""
    changed = CHANGE * FRICTION
    load = load_dependent_friction(tiny, "j", 0.3)
    return script(recorded, tiny, [Part(CHANGE, 15.0), Part(changed, 16.0), Part(changed, 16.0, load)])


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source(free_address())
    yield made
    made.close()


@pytest.fixture
def alive(make_robot: Any, tiny_toml: str, source: Source, tmp_path: Path) -> Robot:
    """The tiny robot in a folder of its own, with a source and without a host."""
    return write_robot(make_robot, tmp_path, tiny_toml, source.endpoint)


@pytest.fixture
def run(tmp_path: Path, source: Source) -> Iterator[Callable[..., Gapd]]:
    """Starts daemons on tmp_path/robot.toml and waits until each listens."""
    running: list[Gapd] = []

    def start(*arguments: str | Path, **options: Any) -> Gapd:
        running.append(Gapd(tmp_path / "robot.toml", arguments, **options).start())
        source.wait_for_listener()
        return running[-1]

    yield start
    for one in running:
        if one.alive:
            one.kill()


@pytest.fixture
def linked(make_robot: Any, tiny_toml: str, source: Source, tmp_path: Path) -> Iterator[Host]:
    """The tiny robot with a host that is not started yet; keys are there and the robot is enrolled."""
    bind, state = free_address(), tmp_path / "host" / "state"
    host_keys(state)
    (tmp_path / "host.pub").write_bytes((state / "host.pub").read_bytes())
    write_keys(tmp_path, "r1")
    write_robot(make_robot, tmp_path, tiny_toml, source.endpoint, LINK.format(endpoint=bind))
    enrol(state, "r1", tmp_path / "robot.toml", tmp_path / "r1.pub")
    host = Host(state, bind)
    yield host
    host.stop()


@pytest.fixture
def linked_robot(linked: Host, tmp_path: Path) -> Robot:
    return open_robot(tmp_path / "robot.toml")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    for name in ("robot", "host", "other"):
        write_keys(tmp_path, name)
    lines: list[str] = []
    context: Context = zmq.Context()
    with Outbox(tmp_path / "outbox.db", 2**20, lines.append) as outbox:
        rig = Rig(tmp_path, context, outbox, lines=lines)
        yield rig
        for link in rig.links:
            link.close()
    for host in rig.hosts:
        host.close()
    context.destroy(linger=0)
