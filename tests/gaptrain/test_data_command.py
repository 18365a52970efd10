"""`gaptrain data` as a user runs it: the same files however they are made, and whatever stops it, nothing is lost."""

import hashlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gapd.errors import ConfigError
from gapd.model.robot import Robot, open_robot
from gaptrain import dataset, shipment
from gaptrain.fingerprint import robot_facts
from gaptrain.settings import load_training
from gaptrain.shard_folder import only_maker

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package

from data_runs import SHARD, ask_for, hashes, made, start, wait_for_shards

SHARDS = 6
# Far more than a test waits for: it is stopped in the middle.
ENDLESS = 100_000


@pytest.fixture
def model(make_robot: Callable[[Path], Robot], tmp_path: Path) -> Path:
    """The tiny robot with shards of 16 windows."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    make_robot(folder)
    ask_for(folder, 16 * (SHARDS - 1))
    return folder


@pytest.fixture
def whole(model: Path) -> dict[str, str]:
    """What one thread of one process makes; taken away again."""
    assert made(model, "--threads", "1") == (0, "")
    found = hashes(model)
    assert len(found) == SHARDS
    for path in (model / ".data").glob(SHARD):
        path.unlink()
    return found


@pytest.mark.parametrize("threads", ["2", "3"])
def test_the_same_files_come_out_of_any_number_of_processes(model: Path, whole: dict[str, str], threads: str) -> None:
    assert made(model, "--threads", threads) == (0, "")
    assert hashes(model) == whole


def test_the_same_files_come_out_of_any_number_of_threads_in_a_shard(model: Path, whole: dict[str, str]) -> None:
    robot, training = open_robot(model / "robot.toml"), load_training(model / "train.toml")
    for threads in (2, 3):
        shipped = shipment.ship(robot, training, threads)
        raw = dataset.shard_bytes(shipped, dataset.Shard("train", 1))
        assert hashlib.sha256(raw).hexdigest() == whole["train-0001.npz"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_ended_goes_on_where_it_was(model: Path, whole: dict[str, str], number: signal.Signals) -> None:
    ask_for(model, ENDLESS)
    process = start(model, "--threads", "2")
    wait_for_shards(model, 3)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    _, said = process.communicate(timeout=60)
    there = hashes(model)
    assert {name: there[name] for name in there if name in whole} == {n: whole[n] for n in there if n in whole}
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert said == "gaptrain: interrupted; the same command goes on where it was\n"
    else:
        assert process.returncode == -number
    for path in (model / ".data").glob("*/train-*.npz"):
        if path.name not in whole:
            path.unlink()
    kept = [p.stat().st_mtime_ns for p in sorted((model / ".data").glob(SHARD))[:3]]
    ask_for(model, 16 * (SHARDS - 1))
    assert made(model, "--threads", "2") == (0, "")
    assert hashes(model) == whole
    assert set(kept) <= {p.stat().st_mtime_ns for p in (model / ".data").glob(SHARD)}


def test_what_a_killed_run_was_writing_is_never_taken_for_whole(model: Path, whole: dict[str, str]) -> None:
    (folder,) = (model / ".data").glob("*")
    (folder / "train-0001.npz.part").write_bytes(b"PK half of a shard")
    assert made(model) == (0, "")
    assert hashes(model) == whole
    assert list(folder.glob("*.part")) == []


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(model: Path, whole: dict[str, str]) -> None:
    for threads in ("1", "2"):
        code, said = made(model, "--threads", threads, file_bytes=5000)
        assert code == 1
        assert said.count("\n") == 1
        assert "held_out-0000.npz: File too large; mend it and run again" in said or "train-" in said
        assert hashes(model) == {}
        assert list((model / ".data").glob("*/*.part")) == []
    assert made(model) == (0, "")
    assert hashes(model) == whole


def test_a_damaged_shard_is_said_and_made_again(model: Path, whole: dict[str, str]) -> None:
    assert made(model)[0] == 0
    (path,) = (model / ".data").glob("*/train-0002.npz")
    path.write_bytes(path.read_bytes()[:-100])
    process = start(model, "--threads", "2")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.count("train-0002.npz: damaged") == 1
    assert hashes(model) == whole


def test_simulations_that_diverge_are_one_line_once(model: Path) -> None:
    parameters = model / "parameters.toml"
    text = parameters.read_text()
    stiff = text.replace("nominal = 4\nmin = 1\nmax = 16", "nominal = 2e8\nmin = 1e8\nmax = 1e9")
    assert stiff != text
    parameters.write_text(stiff)
    code, said = made(model, "--threads", "2")
    assert code == 2
    assert said.count("\n") == 1
    assert "diverge, allowed 20%: narrow the bounds" in said


def test_two_at_a_time_are_refused(model: Path) -> None:
    robot, training = open_robot(model / "robot.toml"), load_training(model / "train.toml")
    with only_maker(dataset.data_folder(robot, training)):
        code, said = made(model)
    assert code == 1
    assert said.endswith(": another gaptrain makes these data; wait for it or end it\n")
    assert made(model)[0] == 0


def test_a_robot_that_is_sent_is_the_same_robot(arm: Robot) -> None:
    training = load_training(Path(arm.config.folder) / "train.toml")
    received = shipment.replay_of(shipment.ship(arm, training, 1)).robot
    assert robot_facts(received) == robot_facts(arm)
    assert received.parameters.names == arm.parameters.names


def test_a_computer_with_other_code_is_refused(tiny: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    training = load_training(Path(__file__).parents[2] / "models" / "arm7" / "train.toml")
    sent = shipment.ship(tiny, training, 1)
    monkeypatch.setattr(shipment, "code", lambda: "gapd 9.9.9")
    monkeypatch.setattr(shipment, "_open", {})
    with pytest.raises(ConfigError, match=r"has gapd 9\.9\.9, where the data are asked for is gapd .*install the same"):
        shipment.replay_of(sent)


@contextmanager
def listening(answer: bytes) -> Iterator[int]:
    """A server that is no Ray, on a port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(100)
                peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def test_an_address_without_a_ray_is_one_line_within_seconds(model: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        for address, said in (
            (f"127.0.0.1:{port}", "nobody answers"),
            (f"ray://127.0.0.1:{port}", "nobody answers"),
            ("127.0.0.1", "no address; give host:port"),
            ("127.0.0.1:99999", "nobody answers"),
        ):
            assert_refused(model, address, said)
    with listening(b"HTTP/1.0 400 Bad Request\r\n\r\n") as port:
        assert_refused(model, f"127.0.0.1:{port}", "that is no Ray; give the port of `ray start --head`")


def assert_refused(model: Path, address: str, said: str) -> None:
    began = time.monotonic()
    code, line = made(model, "--ray", address)
    assert code == 2
    assert line.startswith(f"gaptrain: --ray {address}: {said}")
    assert line.count("\n") == 1
    assert time.monotonic() - began < 20


def test_ray_that_is_not_installed_is_one_line(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "ray.py").write_text("raise ModuleNotFoundError('ray')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'path'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    code, said = made(model, "--ray", "auto")
    assert code == 2
    assert said == 'gaptrain: --ray: Ray is not installed; pip install "gapd[cluster]" or leave --ray out\n'
