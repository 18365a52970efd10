"""The live demo: a stand-in robot, the daemon and the host as processes, and a simulation that is kept true.

    make demo                              or      .venv/bin/python benchmarks/demo.py --seed 7

The robot starts with hidden parameters. After 22 s the friction of one joint doubles and the payload changes, after
45 s a soft stop, which no parameter can express, appears on another joint. Exit 0 only if both corrections took away
95 % of the excess squared gap, the changed parameters are right, and the escalation names the joint of the stop.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mujoco
import zmq
from demo_judge import Watched, judge
from ports import free_ports

from gapd.model.robot import load_model
from gaptrain.host.feed import ParameterFeed

MODEL = Path(__file__).parents[1] / "models" / "arm7"
BIN = Path(sys.executable).parent
ROBOT = "arm7-01"
CHANGE_S, STOP_S, END_S = 22.0, 45.0, 120.0  # the end comes with the last escalation, at about 75 s
LIVE = """
[live]
state = "state"
[live.frames]
endpoint = "tcp://127.0.0.1:{frames}"
[live.link]
name = "{name}"
endpoint = "tcp://127.0.0.1:{host}"
server_public_key = "host/host.pub"
secret_key = "keys/{name}.key"
[live.stream]
endpoint = "tcp://127.0.0.1:{stream}"
frames_every = 0
[live.keeper]
min_interval_s = 5
"""
# Events of the daemon's log that tell the story; the rest is in the file.
SHOWN = ("ready", "link_up", "drift", "fit", "decision", "acknowledged", "link_down", "correction_returned")


@dataclass
class Processes:
    """Programs of the demo with their log files, stopped in the reverse order."""

    folder: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, log: str, program: str, *arguments: str | Path) -> Path:
        """Start a program of the environment with its output in a file."""
        path = self.folder / log
        with path.open("wb") as file:
            command = [BIN / program, *map(str, arguments)]
            self.running.append(subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=self.folder))
        return path

    def stop(self) -> None:
        """Ask all to end, and wait."""
        for process in reversed(self.running):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self.running):
            process.wait(30)

    def require_alive(self) -> None:
        """End the demo if a program has ended by itself."""
        for process in self.running:
            if process.poll() not in (None, 0):
                sys.exit(f"{process.args[0]} ended with {process.returncode}: see the logs in {self.folder}")  # type: ignore[index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="hidden parameters, motion, noise, and what changes")
    parser.add_argument("--out", type=Path, default=MODEL.parents[1] / "out" / "demo")
    arguments = parser.parse_args()
    folder = arguments.out.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config, ports = configure(folder)
    _run("gapd", "keygen", ROBOT, "--folder", folder / "keys")
    with ExitStack() as stack:
        processes = Processes(folder)
        stack.callback(processes.stop)
        host_log = processes.start(
            "host.log", "gaptrain", "host", "--state", "host", "--bind", f"tcp://127.0.0.1:{ports['host']}"
        )
        _wait_for(host_log, '"ready"', processes)
        _run(
            "gaptrain",
            "enrol",
            "--state",
            folder / "host",
            ROBOT,
            "--config",
            config,
            "--key",
            folder / f"keys/{ROBOT}.pub",
        )
        daemon_log = processes.start("gapd.log", "gapd", "run", "--config", config)
        _wait_for(daemon_log, '"ready"', processes)
        watched = stack.enter_context(listening(ports["stream"]))
        stack.enter_context(simulation(folder / "host"))
        robot_log = processes.start(
            "robot.log", "gaptrain", "standin", "--config", MODEL / "robot.toml", "--demo", "--change-s", CHANGE_S,
            "--stop-s", STOP_S, "--bind", f"tcp://127.0.0.1:{ports['frames']}", "--seed", arguments.seed,
            "--truth", folder / "truth.json",
        )  # fmt: skip
        _wait_for(robot_log, "ready:", processes)
        print(f"robot, daemon, host and simulation run, seed {arguments.seed}; logs in {folder}\n", flush=True)
        events = follow(daemon_log, processes)
    sys.exit(0 if judge(folder, config, events, watched) else 1)


def configure(folder: Path) -> tuple[Path, dict[str, int]]:
    """robot.toml of the demo: the model's, with absolute paths and the live tables."""
    ports = dict(zip(("frames", "host", "stream"), free_ports(3), strict=True))
    text = (MODEL / "robot.toml").read_text(encoding="utf-8")
    for name in ("model.xml", "parameters.toml", "bundle"):
        text = text.replace(f'= "{name}"', f'= "{MODEL / name}"')
    config = folder / "robot.toml"
    config.write_text(text + LIVE.format(name=ROBOT, **ports), encoding="utf-8")
    return config, ports


@contextmanager
def listening(port: int) -> Iterator[Watched]:
    """Gaps and estimates of the daemon's stream, as any tool may read them."""
    watched, stopped = Watched(), threading.Event()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket_ = context.socket(zmq.SUB)
    socket_.subscribe("")
    socket_.connect(f"tcp://127.0.0.1:{port}")

    def listen() -> None:
        while not stopped.is_set():
            if socket_.poll(100):
                watched.take(*socket_.recv_multipart())
        socket_.close(0)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield watched
    finally:
        stopped.set()
        thread.join()
        context.destroy(0)


@contextmanager
def simulation(state: Path) -> Iterator[None]:
    """What is kept true: a simulation that runs on, with the newest values written into it between two steps."""
    stopped = threading.Event()

    def simulate() -> None:
        model = load_model(MODEL / "model.xml")
        data = mujoco.MjData(model)
        with ParameterFeed(state, ROBOT) as feed:
            while not stopped.wait(10 * model.opt.timestep):
                if feed.apply(model) and feed.version:
                    print(
                        f"          simulation: version {feed.version} applied at {data.time:.1f} s of its time",
                        flush=True,
                    )
                mujoco.mj_step(model, data, 10)

    thread = threading.Thread(target=simulate)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def follow(log: Path, processes: Processes) -> list[dict[str, Any]]:
    """Show the daemon's log while the scenes pass; ends when the stop has been escalated, or after END_S."""
    events: list[dict[str, Any]] = []
    began, place = time.monotonic(), 0
    while time.monotonic() - began < END_S:
        processes.require_alive()
        with log.open("rb") as file:
            file.seek(place)
            whole = file.read().rpartition(b"\n")[0]
        place += len(whole) + 1 if whole else 0
        for line in whole.splitlines():
            events.append({"at_s": time.monotonic() - began, **json.loads(line)})
            show(events[-1])
        if any(e["event"] == "decision" and e["action"] == "escalate" and e["at_s"] > STOP_S for e in events):
            time.sleep(2.0)  # the host's acknowledgement
            return events
        time.sleep(0.2)
    return events


def show(event: dict[str, Any]) -> None:
    """One line of the story."""
    if event["event"] not in SHOWN:
        return
    told = {
        "decision": "{action}: {reason}; {remedy}",
        "drift": "{channel} is not what it was, since {since_s} s",
        "fit": "{windows} windows: {why}",
        "acknowledged": "by the host, version {version}",
    }.get(event["event"], "")
    print(f"{event['at_s']:6.1f} s  {event['level']:<8}{event['event']:<13}{told.format_map(event)}", flush=True)


def _run(program: str, *arguments: str | Path) -> None:
    subprocess.run([BIN / program, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def _wait_for(log: Path, text: str, processes: Processes) -> None:
    end = time.monotonic() + 30
    while text not in log.read_text(encoding="utf-8"):
        processes.require_alive()
        if time.monotonic() > end:
            sys.exit(f"{log}: nothing is ready after 30 s")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
