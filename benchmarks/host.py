"""The simulation host under load: acknowledgements per second and their latency with many robots."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import mujoco
import numpy as np
import zmq
from tables import write_table

from gapd.keys import read_public, read_secret, write_keys
from gapd.messages import link
from gapd.model.parameters import ParameterSet
from gapd.model.robot import open_robot
from gaptrain.host.enrolment import enrol
from gaptrain.host.feed import ParameterFeed
from gaptrain.host.program import host_keys

MODEL = Path(__file__).parents[1] / "models" / "arm7" / "robot.toml"
PROGRAM = """import sys
import gaptrain.host.service
gaptrain.host.service.MOST_IN_COMMIT = int(sys.argv.pop(1))
from gaptrain.cli import main
main()
"""
# As many as the host takes into one commit, and none together with another.
TOGETHER, ALONE = 128, 1


@dataclass
class Robot:
    """One connection with its latencies, s."""

    socket: zmq.Socket[bytes]
    epoch: int = 0
    sent: int = 0
    acknowledged: int = 0
    due_s: float = 0.0
    sent_s: dict[int, float] = field(default_factory=dict)
    latency_s: list[float] = field(default_factory=list)


class Fleet:
    """Robots that send corrections of all parameters and wait for the acknowledgements."""

    def __init__(self, folder: Path, bind: str, names: list[str], space: ParameterSet) -> None:
        """Connect and say hello."""
        self.space = space
        self.context = zmq.Context()
        self.poller = zmq.Poller()
        self.robots: dict[zmq.Socket[bytes], Robot] = {}
        server = read_public(folder / "host.pub")
        for name in names:
            keys, socket = read_secret(folder / f"{name}.key"), self.context.socket(zmq.DEALER)
            socket.set(zmq.LINGER, 0)
            socket.curve_publickey, socket.curve_secretkey, socket.curve_serverkey = keys.public, keys.secret, server
            socket.connect(bind)
            outbox = os.urandom(8).hex()
            socket.send(link.ENCODER.encode(link.Hello(link.PROTOCOL, name, outbox, space.fingerprint, "benchmark")))
            self.robots[socket] = Robot(socket)
            self.poller.register(socket, zmq.POLLIN)
        self.versions: dict[zmq.Socket[bytes], int] = {}
        while len(self.versions) < len(names):
            for socket, _ in self.poller.poll(10000):
                message = link.FROM_HOST.decode(socket.recv())
                if isinstance(message, link.Welcome):
                    self.robots[socket].epoch, self.versions[socket] = message.epoch, message.version

    def correction(self, robot: Robot, sequence: int) -> bytes:
        """A correction of all parameters with a covariance of all of them."""
        size = len(self.space)
        z = self.space.z_nominal + 1e-4 * sequence
        base = self.versions[robot.socket] + sequence - 1
        covariance = np.eye(size, dtype="<f4")[np.tril_indices(size)].tobytes()
        return link.ENCODER.encode(
            link.Correction(
                robot.epoch, sequence, 1.0, base, tuple(z.tolist()), (0.1,) * size, tuple(range(size)), covariance,
                self.space.names[:3], (), "benchmark", 3.0, 1.0, 12,
            )
        )  # fmt: skip

    def run(self, seconds: float, in_flight: int, period_s: float = 0.0) -> tuple[float, np.ndarray]:
        """Acknowledgements per second and latencies; a period spreads the sending evenly, else it is all they can."""
        began = time.perf_counter()
        for number, robot in enumerate(self.robots.values()):
            robot.due_s = began + period_s * number / len(self.robots)
        while time.perf_counter() - began < seconds:
            self._send(in_flight, period_s)
            self._receive()
        latencies = [np.array(robot.latency_s) for robot in self.robots.values()]
        return sum(map(len, latencies)) / (time.perf_counter() - began), np.concatenate(latencies)

    def _send(self, in_flight: int, period_s: float) -> None:
        now = time.perf_counter()
        for robot in self.robots.values():
            while robot.sent - robot.acknowledged < in_flight and now >= robot.due_s:
                robot.sent += 1
                message = self.correction(robot, robot.sent)
                robot.sent_s[robot.sent] = time.perf_counter()
                robot.socket.send(message)
                if period_s:
                    robot.due_s += period_s

    def _receive(self) -> None:
        for socket, _ in self.poller.poll(1):
            robot, message = self.robots[socket], link.FROM_HOST.decode(socket.recv())
            if isinstance(message, link.Ack):
                robot.acknowledged = message.sequence
                robot.latency_s.append(time.perf_counter() - robot.sent_s.pop(message.sequence))
            elif isinstance(message, link.Nack):
                raise RuntimeError(message.remedy)  # noqa: TRY004  nobody gave a wrong type

    def close(self) -> None:
        """Close all sockets."""
        self.context.destroy(linger=0)


@contextmanager
def host(state: Path, bind: str, in_commit: int) -> Iterator[tuple[float, int]]:
    """A host as a process; seconds from its start to its first log line, and its process number."""
    began = time.perf_counter()
    command = [sys.executable, "-c", PROGRAM, str(in_commit), "host", "--state", str(state), "--bind", bind]
    with (state.parent / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log)
    while '"ready"' not in (state.parent / "log").read_text():
        time.sleep(0.005)
    try:
        yield time.perf_counter() - began, process.pid
    finally:
        process.terminate()
        process.wait()


def cpu_s(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    """Memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True)
class Case:
    """One way to load the host."""

    name: str
    robots: int
    in_flight: int
    period_s: float = 0.0
    in_commit: int = TOGETHER
    port: int = 5597


def row(folder: Path, names: list[str], space: ParameterSet, case: Case, seconds: float) -> list[str]:
    """One line of the table."""
    bind = f"tcp://127.0.0.1:{case.port}"
    with host(folder / "state", bind, case.in_commit) as (_, pid):
        fleet = Fleet(folder, bind, names[: case.robots], space)
        used = cpu_s(pid)
        rate, latency = fleet.run(seconds, case.in_flight, case.period_s)
        share, memory = (cpu_s(pid) - used) / seconds, rss_mb(pid)
        fleet.close()
    p50, p99, worst = 1e3 * np.percentile(latency, [50, 99, 100])
    return [
        case.name, f"{rate:.0f}", f"{p50:.1f}", f"{p99:.1f}", f"{worst:.1f}", f"{100 * share:.0f} %", f"{memory:.0f}"
    ]  # fmt: skip


COLUMNS = (
    "load", "acknowledged per s", "p50 ms", "p99 ms", "worst ms", "host's share of a core", "host's memory MB",
)  # fmt: skip
CASES = (
    Case("100 robots, each a correction per second", 100, 8, 1.0),
    Case("100 robots, one in flight each", 100, 1),
    Case("100 robots, eight in flight each", 100, 8),
    Case("100 robots, eight in flight each, one message per commit", 100, 8, in_commit=ALONE),
    Case("1 robot, one in flight", 1, 1),
)


def feed_us(state: Path) -> tuple[float, float]:
    """Median time of `apply` without news and with, µs."""
    robot = open_robot(MODEL)
    with ParameterFeed(state, "r0") as feed:
        feed.apply(robot.model)
        idle, written = [], []
        for _ in range(2000):
            began = time.perf_counter()
            feed.apply(robot.model)
            idle.append(time.perf_counter() - began)
        for _ in range(50):
            model = mujoco.MjModel.from_xml_path(str(robot.config.path(robot.config.model)))
            feed.apply(model)
            feed._written.clear()  # noqa: SLF001  the model is to be written again, with its binding known
            began = time.perf_counter()
            feed.apply(model)
            written.append(time.perf_counter() - began)
    return 1e6 * float(np.median(idle)), 1e6 * float(np.median(written))


def prepare(folder: Path, robots: int) -> list[str]:
    """A host's state with so many robots enrolled; their names."""
    state = folder / "state"
    host_keys(state)
    (folder / "host.pub").write_bytes((state / "host.pub").read_bytes())
    names = [f"r{n}" for n in range(robots)]
    for robot in names:
        write_keys(folder, robot)
        enrol(state, robot, MODEL, folder / f"{robot}.pub")
    return names


def measure(folder: Path, cases: Sequence[Case], seconds: float) -> tuple[list[list[str]], list[str]]:
    """Rows of the table, and the notes below it."""
    state, space = folder / "state", open_robot(MODEL).parameters
    names = prepare(folder, max(case.robots for case in cases))
    with host(state, f"tcp://127.0.0.1:{cases[0].port}", TOGETHER) as (starts_s, _):
        pass
    rows = [row(folder, names, space, case, seconds) for case in cases]
    idle, written = feed_us(state)
    size_mb = (state / "host.sqlite").stat().st_size / 2**20
    return rows, [
        (
            f"Corrections of {len(space)} parameters with their covariance, over loopback and CURVE, each "
            "committed with `synchronous=FULL` before it is acknowledged; a log line for each. Robots share the "
            "machine: one process plays all of them."
        ),
        f"Start to ready with {len(names)} robots enrolled: {starts_s:.2f} s. State at the end: {size_mb:.0f} MB.",
        (
            f"`ParameterFeed.apply` between two steps: {idle:.0f} µs without news, {written:.0f} µs when it writes "
            "(arm7, with `mj_setConst`)."
        ),
    ]


def main() -> None:
    """Measure and write docs/results/host.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each row")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as name:
        rows, notes = measure(Path(name), CASES, seconds)
    write_table("host", "The simulation host under load", list(COLUMNS), rows, notes)


if __name__ == "__main__":
    main()
