"""SIGKILL at any moment under load: nothing acknowledged is lost, nothing is applied twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from link_peer import PATIENCE_S, FakeRobot
from senders import Sender, load, require_exact, settle

Make = Callable[..., FakeRobot]

# Imports once and forks for each start, which then takes milliseconds.
SPRING = """
import os, sys
from pathlib import Path
from gaptrain.host.program import serve
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        serve(Path(sys.argv[1]), sys.argv[2], auto=False)
        os._exit(0)
    print("pid", pid, file=sys.stderr, flush=True)
    os.waitpid(pid, 0)
    print("ended", file=sys.stderr, flush=True)
"""


class Hosts:
    """One host after the other on the same state."""

    def __init__(self, state: Path, bind: str) -> None:
        self.log = state.parent / "log"
        with self.log.open("w") as log:
            self.spring = subprocess.Popen(
                [sys.executable, "-c", SPRING, state, bind],
                stdin=subprocess.PIPE, stdout=log, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        self.pid = 0

    def _next(self) -> str:
        assert self.spring.stderr is not None
        return self.spring.stderr.readline()

    def start(self) -> None:
        assert self.spring.stdin is not None
        self.spring.stdin.write("\n")
        self.spring.stdin.flush()
        self.pid = int(self._next().split()[1])

    def end(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)
        assert self._next() == "ended\n"

    def close(self) -> None:
        assert self.spring.stdin is not None
        assert self.spring.stderr is not None
        self.spring.stdin.close()
        self.spring.wait(PATIENCE_S)
        self.spring.stderr.close()


@pytest.fixture
def hosts(senders: list[Sender], tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path / "state", senders[0].peer.bind)
    yield made
    made.close()


@pytest.mark.fault
@pytest.mark.parametrize("kills", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_a_killed_host_loses_and_doubles_nothing(
    senders: list[Sender], hosts: Hosts, tmp_path: Path, kills: int
) -> None:
    seed = int(time.time())
    sys.stdout.write(f"seed {seed}\n")
    rng = np.random.default_rng(seed)
    for _ in range(kills):
        hosts.start()
        load(senders, rng.uniform(0.0, 0.5), True)
        hosts.end(signal.SIGKILL)
    hosts.start()
    load(senders, 1.0, True)
    settle(senders)
    hosts.end(signal.SIGTERM)
    sizes = [require_exact(sender, tmp_path / "state") for sender in senders]
    sys.stdout.write(f"{kills} kills, {sum(sizes)} messages\n")
    assert min(sizes) > kills
