"""Shards made on a Ray cluster of two computers, both of them processes here: the same files, whatever is killed."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gapd.errors import ConfigError
from gapd.model.robot import Robot
from gaptrain.executor import Local
from gaptrain.ray_cluster import RayCluster

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package; the workers get the path

import executor_jobs as jobs
from data_runs import SHARD, ask_for, hashes, made, start, wait_for_shards

ray = pytest.importorskip("ray", reason="Ray is not installed: make cluster")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SHARDS = 12


@dataclass
class Cluster:
    """A head with one core and a second computer with one."""

    address: str
    client_address: str
    head: subprocess.Popen[bytes]
    second: subprocess.Popen[bytes]

    def workers(self) -> list[int]:
        """Processes of both that make a shard right now."""
        return [pid for pid, args in processes(self.head, self.second) if args.startswith("ray::shard_bytes")]


def processes(*computers: subprocess.Popen[bytes]) -> list[tuple[int, str]]:
    """Number and command of all processes in the sessions of these."""
    said = subprocess.run(["ps", "-eo", "pid,sid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in said.splitlines()[1:]]
    sessions = {str(computer.pid) for computer in computers}
    return [(int(pid), args) for pid, session, args in rows if session in sessions]


def kill(computer: subprocess.Popen[bytes]) -> None:
    """As if its power went."""
    for pid, _ in processes(computer):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    computer.wait()


def ray_start(*options: str) -> subprocess.Popen[bytes]:
    """One computer of a cluster, in a session of its own."""
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [Path(sys.executable).with_name("ray"), "start", "--block", "--num-cpus=1", "--disable-usage-stats", *options],
        env=os.environ | {"PYTHONPATH": path}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder, (port, client_port) = tmp_path_factory.mktemp("r"), free_ports(2)
    address = f"127.0.0.1:{port}"
    head = ray_start(
        "--head", f"--port={port}", f"--ray-client-server-port={client_port}", "--include-dashboard=false",
        f"--temp-dir={folder}",
    )  # fmt: skip
    wait_for_cores(address, 1, head)
    second = ray_start(f"--address={address}")
    wait_for_cores(address, 2, second)
    yield Cluster(address, f"ray://127.0.0.1:{client_port}", head, second)
    for computer in (second, head):
        kill(computer)


def free_ports(count: int) -> list[int]:
    """Free a moment ago; above those that Ray gives to its workers."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def wait_for_cores(address: str, cores: int, computer: subprocess.Popen[bytes]) -> None:
    """Ask from a process of its own: Ray keeps what it knows of a cluster in the process that asked."""
    script = f"import ray; ray.init({address!r}, log_to_driver=False); print(int(ray.cluster_resources()['CPU']))"
    end, said = time.monotonic() + 90, ""
    while said.split()[-1:] != [str(cores)]:
        assert computer.poll() is None, "ray start has failed"
        assert time.monotonic() < end, f"the cluster does not come: {said}"
        time.sleep(1)
        asked = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        try:
            said, _ = asked.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            asked.kill()
            asked.communicate()


@pytest.fixture
def model(make_robot: Callable[[Path], Robot], tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    make_robot(folder)
    ask_for(folder, 16 * (SHARDS - 1))
    return folder


@pytest.fixture
def whole(model: Path) -> dict[str, str]:
    """What this computer makes; taken away again."""
    assert made(model, "--threads", "1") == (0, "")
    found = hashes(model)
    assert len(found) == SHARDS
    for path in (model / ".data").glob(SHARD):
        path.unlink()
    return found


def test_a_cluster_makes_the_same_files_whatever_is_killed(
    cluster: Cluster, model: Path, whole: dict[str, str]
) -> None:
    for address in (cluster.address, cluster.client_address):
        assert made(model, "--ray", address) == (0, "")
        assert hashes(model) == whole
        for path in (model / ".data").glob("*/train-*.npz"):
            path.unlink()

    # A worker and then a whole computer are killed in the middle: the run goes on.
    ask_for(model, 16 * 100)
    process = start(model, "--ray", cluster.address)
    wait_for_shards(model, 3)
    killed = kill_one(cluster)
    kill(cluster.second)
    _, said = process.communicate(timeout=200)
    assert (process.returncode, said) == (0, ""), killed
    assert {name: found for name, found in hashes(model).items() if name in whole} == whole
    for path in (model / ".data").glob("*/train-*.npz"):
        path.unlink()

    # The driver is killed: the next run makes what is missing.
    process = start(model, "--ray", cluster.address)
    wait_for_shards(model, 4)
    process.kill()
    process.communicate(timeout=60)
    kept = hashes(model)
    ask_for(model, 16 * (SHARDS - 1))
    assert made(model, "--ray", cluster.address) == (0, "")
    found = hashes(model)
    assert found | whole == found
    assert found | kept == found


def kill_one(cluster: Cluster) -> int:
    """Kill a process that is making a shard."""
    end = time.monotonic() + 30
    while not (workers := cluster.workers()):
        assert time.monotonic() < end, "nobody works"
    os.kill(workers[0], signal.SIGKILL)
    return workers[0]


def test_results_errors_and_too_many_cores(cluster: Cluster) -> None:
    here = {job: result for job, (result, _) in Local().map(jobs.squared, 10, range(8))}
    there = list(RayCluster(cluster.address).map(jobs.squared, 10, range(8)))
    assert {job: result for job, (result, _) in there} == here
    assert os.getpid() not in {pid for _, (_, pid) in there}
    with pytest.raises(ConfigError, match=r"^value 1 is out of range; lower it$"):
        list(RayCluster(cluster.address).map(jobs.refused, None, range(4)))
    with pytest.raises(ConfigError, match=r"--threads 2: the computers at .* have \[1, 1\] cores; use fewer"):
        list(RayCluster(cluster.address, threads=2).map(jobs.squared, 0, range(1)))


def test_a_cluster_that_goes_away_is_one_line_and_loses_nothing(
    cluster: Cluster, model: Path, whole: dict[str, str]
) -> None:
    ask_for(model, 16 * 1000)
    process = start(model, "--ray", cluster.address)
    wait_for_shards(model, 3)
    kill(cluster.head)
    _, said = process.communicate(timeout=200)
    assert process.returncode != 0
    assert "Traceback" not in said
    ask_for(model, 16 * (SHARDS - 1))
    assert made(model) == (0, "")
    found = hashes(model)
    assert found | whole == found
