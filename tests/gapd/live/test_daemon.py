"""The daemon as a process beside a robot and a host: start, end, restart, record, replay."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from link_peer import Host, until
from live_robot import AS_IT_IS, CHANGE, FRICTION, IN_HASTE, Gapd, InProcess, Source

from gapd.link.link_events import Acknowledged, Connected, Event, LinkStatus, Rejected
from gapd.link.outbox import Outbox, OutboxError
from gapd.live.daemon import Daemon
from gapd.live.status import Level
from gapd.messages.frames import Frame
from gapd.messages.link import Correction, Welcome
from gapd.model.robot import Robot
from gaptrain.host import jobs
from gaptrain.host.database import open_state, read_state
from gaptrain.host.versions import Version, history

Start = Callable[..., Gapd]
CORRECTION = Correction(0, 0, 1.0, 0, (0.0,), (0.1,), (), b"", (), (), "test", 2.0, 1.0, 9)


def versions(host: Host) -> list[Version]:
    with closing(read_state(host.state)) as database:
        return history(database, "r1")


def close_to(robot: Robot, z: Any, truth: Any) -> bool:
    return bool(np.allclose(robot.parameters.to_physical(np.asarray(z)), robot.parameters.nominal * truth, rtol=0.15))


def test_ready_then_sigterm_ends_cleanly(run: Start, alive: Robot) -> None:
    daemon = run(program=AS_IT_IS)
    ready = daemon.events("ready")[0]
    assert (ready["robot"], ready["state"], ready["host"]) == ("tiny", "commissioning", "none")
    assert daemon.stop(signal.SIGTERM) == 0
    assert daemon.events("stopped")
    assert not (daemon.state / "status.sock").exists()
    assert stat.S_IMODE(daemon.state.stat().st_mode) == 0o700
    assert "Traceback" not in daemon.log()


def test_an_end_in_the_middle_of_a_fit_is_clean_too(
    run: Start, alive: Robot, source: Source, commissioning: list[Frame]
) -> None:
    daemon = run()
    source.send(*commissioning)
    daemon.wait("fit")
    assert daemon.stop() == 0
    assert daemon.events("stopped")
    assert not daemon.events("decision")
    assert (daemon.state / "memory.json").exists()
    assert "Traceback" not in daemon.log()


def test_the_story_reaches_the_host_and_a_restart_goes_on(
    run: Start, linked: Host, linked_robot: Robot, source: Source, story: list[Frame], gapd: Any, tmp_path: Path
) -> None:
    linked.start()
    recordings = tmp_path / "recordings"
    daemon = run("--record", recordings)
    first = next(n for n, frame in enumerate(story) if frame.timestamp > 113.0)
    daemon.feed(source, story[:first])
    daemon.wait("acknowledged")
    assert daemon.stop() == 0
    memory = json.loads((daemon.state / "memory.json").read_text())
    assert memory["version"] == 1
    assert close_to(linked_robot, memory["memory"]["z"], CHANGE)

    daemon = run("--record", recordings)
    assert daemon.events("ready")[-1]["state"] == "watching"
    first_estimate = daemon.status()["estimates"][0]
    assert first_estimate["value"] == pytest.approx(6.0, rel=0.02)
    assert first_estimate["status"] == "estimated"
    daemon.feed(source, story[first:])
    daemon.wait("decision", 3)
    daemon.wait("acknowledged", 3)
    until(lambda: linked.events("evidence"))
    assert [d["action"] for d in daemon.events("decision")] == ["correct", "correct", "escalate"]
    assert [d["commissioned"] for d in daemon.events("decision")] == [True, False, False]
    told = gapd("status", "--config", tmp_path / "robot.toml")
    assert told.returncode == 1
    assert "problem   j: friction grows with load" in told.stdout
    assert daemon.stop(signal.SIGINT) == 0

    found = versions(linked)
    assert [v.source for v in found] == ["correction", "correction"]
    assert close_to(linked_robot, found[0].values.z, CHANGE)
    assert close_to(linked_robot, found[1].values.z, CHANGE * FRICTION)
    assert len(linked.events("escalation")) == 1
    _require_same_decisions(tmp_path, recordings, daemon)


def _require_same_decisions(folder: Path, recordings: Path, daemon: Gapd) -> None:
    """A replay of what was recorded gives what the log says."""
    files = sorted(recordings.glob("*.mcap"))
    assert len(files) == 2
    replayed = json.loads(_replay(folder, "--json", *files))
    live = [(d["action"], d["level"], f"{d['reason']}; {d['remedy']}") for d in daemon.events("decision")]
    words = {"info": "OK", "warning": "WARN", "error": "ERROR"}
    lines = [line for line in replayed if line["what"] != "drift"]
    assert [(x["what"], x["level"], x["text"]) for x in lines] == [(a, words[level], t) for a, level, t in live]
    assert len(replayed) - len(lines) == len(daemon.events("drift")) == 2


def _replay(folder: Path, *arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", IN_HASTE, "replay", "--config", folder / "robot.toml", *arguments],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout


@pytest.mark.slow
def test_in_real_time_the_replay_of_a_recording_decides_the_same(
    run: Start, alive: Robot, source: Source, story: list[Frame], gapd: Any, tmp_path: Path
) -> None:
    daemon = run("--record", tmp_path / "recordings", program=AS_IT_IS)
    source.in_time(story)
    daemon.wait("decision", 3)
    assert daemon.stop() == 0
    done = gapd(
        "replay", "--config", tmp_path / "robot.toml", "--json", *sorted((tmp_path / "recordings").glob("*.mcap"))
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line["text"] for line in json.loads(done.stdout) if line["what"] != "drift"]
    assert lines == [f"{d['reason']}; {d['remedy']}" for d in daemon.events("decision")]


def test_record_and_its_replay(
    source: Source, alive: Robot, commissioning: list[Frame], gapd: Any, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", AS_IT_IS, "record", "--config", tmp_path / "robot.toml", tmp_path / "mcap"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as recording:
        source.wait_for_listener()
        source.in_time(commissioning, speed=10.0)
        until(lambda: list((tmp_path / "mcap").glob("*.part")))
        time.sleep(0.2)
        recording.send_signal(signal.SIGTERM)
        output, errors = recording.communicate(timeout=20)
    assert (recording.returncode, output, errors) == (0, f"{len(commissioning)} frames\n", "")
    text = _replay(tmp_path, *sorted((tmp_path / "mcap").glob("*.mcap"))).splitlines()
    assert [line.split()[1:4] for line in text[:2]] == [["s", "OK", "correct"], []]
    assert any(line.startswith("state     watching") for line in text)
    kp = next(line.split() for line in text if line.startswith("actuator/servo/kp"))
    assert float(kp[1]) == pytest.approx(6.0, rel=0.02)


def test_record_without_frames_says_so(alive: Robot, gapd: Any, tmp_path: Path) -> None:
    done = gapd("record", "--config", tmp_path / "robot.toml", "--seconds", "0.2", tmp_path / "mcap")
    assert done.returncode == 1
    assert "no frames from tcp://127.0.0.1" in done.stderr
    assert "; start the robot" in done.stderr


def test_recordings_and_logs_do_not_mix(gapd: Any, alive: Robot, tmp_path: Path) -> None:
    config = tmp_path / "robot.toml"
    done = gapd("replay", "--config", config, "a.mcap", "a.csv")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "recordings (.mcap)" in done.stderr
    done = gapd("replay", "--config", config, "a.mcap")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "a.mcap: cannot be read" in done.stderr


def test_keygen_makes_folder_and_modes(gapd: Any, tmp_path: Path) -> None:
    done = gapd("keygen", "r1", "--folder", tmp_path / "new" / "keys")
    assert (done.returncode, done.stderr) == (0, "")
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "new" / "keys").iterdir()}
    assert modes == {"r1.key": 0o600, "r1.pub": 0o644}
    assert stat.S_IMODE((tmp_path / "new" / "keys").stat().st_mode) == 0o700
    again = gapd("keygen", "r1", "--folder", tmp_path / "new" / "keys")
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    (tmp_path / "file").write_text("")
    in_the_way = gapd("keygen", "r1", "--folder", tmp_path / "file")
    assert (in_the_way.returncode, in_the_way.stderr.count("\n")) == (2, 1)


def test_status_as_text_and_as_json(
    run: Start, alive: Robot, source: Source, commissioning: list[Frame], gapd: Any, tmp_path: Path
) -> None:
    config = tmp_path / "robot.toml"
    nobody = gapd("status", "--config", config)
    assert (nobody.returncode, nobody.stderr.count("\n")) == (1, 1)
    assert "no gapd runs with this state folder; start it with gapd run" in nobody.stderr
    daemon = run()
    daemon.feed(source, commissioning)
    daemon.wait("decision")
    with in_time(source, commissioning[:800]):
        text, plain = gapd("status", "--config", config), gapd("status", "--config", config, "--json")
    assert (text.returncode, plain.returncode, text.stderr) == (0, 0, "")
    told = json.loads(plain.stdout)
    assert (told["robot"], told["state"], told["level"], told["problems"]) == ("tiny", "watching", 0, [])
    assert told["counters"]["frames"] > len(commissioning)
    assert told["link"] is None
    lines = dict(line.split(maxsplit=1) for line in text.stdout.splitlines() if line.strip())
    assert (lines["level"], lines["robot"], lines["state"]) == ("OK", "tiny", "watching")
    assert lines["actuator/servo/kp"].split()[-1] == "estimated"
    assert lines["gap"].endswith("commissioned floors")


@contextmanager
def in_time(source: Source, frames: list[Frame]) -> Iterator[None]:
    """A robot that goes on meanwhile."""
    thread = threading.Thread(target=source.in_time, args=(frames, 1.0, 50.0))
    thread.start()
    yield
    thread.join()


class FakeLink:
    """A link that says what the test wants."""

    socket = None

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.closed = self.level = 0

    def step(self, _now_s: float) -> list[Event]:
        events, self.events = self.events, []
        return events

    def close(self) -> None:
        self.closed += 1

    def status(self, _timestamp: float) -> LinkStatus:
        raise OutboxError("outbox: disk I/O error; check the disk")


@pytest.fixture
def heard(alive: Robot, source: Source, tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """A daemon that has heard these events of its link."""
    with closing(Outbox(tmp_path / "outbox.sqlite", 2**20, lambda _: None)) as outbox:
        inside = InProcess(alive, source, outbox)
        link = FakeLink()
        inside.edges.link = link  # type: ignore[assignment]

        def hear(*events: Event) -> Daemon:
            link.events = list(events)
            inside.daemon.turn()
            return inside.daemon

        with closing(inside):
            yield hear


Z = (1.5, -2.9, -3.4, -4.5)


def test_the_values_of_the_host_are_taken_over(heard: Callable[..., Daemon], alive: Robot) -> None:
    daemon = heard(Connected(Welcome(1, 0, 7, Z)))
    assert (daemon.pipeline.keeper.memory.z, daemon.host.post.version) == (Z, 7)
    daemon = heard(Rejected(1, CORRECTION, "stale_base", "fit again", 8, Z[::-1]))
    assert daemon.host.post.version == 8
    assert daemon.problems.level == Level.WARN
    assert daemon.pipeline.keeper.memory.z != Z
    daemon = heard(Connected(Welcome(2, 0, 0, ())))
    assert daemon.pipeline.keeper.memory.z == tuple(alive.parameters.z_nominal.tolist())
    assert daemon.host.post.version == 0


def test_values_that_wait_for_the_host_are_not_overwritten(heard: Callable[..., Daemon]) -> None:
    daemon = heard(Connected(Welcome(1, 0, 7, Z)))
    daemon.host.put(CORRECTION)
    assert heard(Connected(Welcome(1, 0, 6, Z[::-1]))).pipeline.keeper.memory.z == Z
    assert daemon.host.post.version == 8


def test_a_version_that_is_not_expected_asks_for_the_values(heard: Callable[..., Daemon]) -> None:
    daemon = heard(Connected(Welcome(1, 0, 7, Z)), Acknowledged(1, 7))
    assert daemon.edges.link is not None
    assert vars(daemon.edges.link)["closed"] == 0
    heard(Acknowledged(2, 9))
    assert vars(daemon.edges.link)["closed"] == 1


def test_what_the_host_refuses_for_good_is_told(heard: Callable[..., Daemon]) -> None:
    daemon = heard(Connected(Welcome(1, 0, 7, Z)))
    daemon.host.post.version = 8
    heard(Rejected(1, CORRECTION, "invalid", "widen the bounds", 7, Z))
    assert daemon.host.post.version == 7
    assert daemon.status().problems == ("the host refused a message (invalid); widen the bounds",)
    heard(Acknowledged(2, 7))
    assert daemon.problems.level == Level.OK


def test_an_outbox_that_cannot_be_read_is_part_of_the_status(heard: Callable[..., Daemon]) -> None:
    told = heard().status()
    assert told.link is not None
    assert told.link.error == "outbox: disk I/O error; check the disk"


@pytest.mark.slow
def test_a_candidate_of_the_host_is_judged_and_its_replay_says_the_same(
    run: Start, linked: Host, linked_robot: Robot, source: Source, commissioning: list[Frame], tmp_path: Path
) -> None:
    linked.start()
    daemon = run("--record", tmp_path / "recordings")
    daemon.feed(source, commissioning)
    daemon.wait("acknowledged")
    space = linked_robot.parameters
    with closing(open_state(linked.state)) as database:
        jobs.add_candidate(database, "r1", 1, space.fingerprint, space.z_nominal, space.z_nominal * 0 + 0.1, "test", 1)
    daemon.wait("offered")
    daemon.feed(source, [msgspec.structs.replace(f, timestamp=f.timestamp + 16.0) for f in commissioning])
    judged = daemon.wait("candidate")
    assert judged["verdict"] == "rejected"
    daemon.wait("acknowledged", 2)
    assert daemon.stop() == 0
    lines = json.loads(_replay(tmp_path, "--json", *sorted((tmp_path / "recordings").glob("*.mcap"))))
    assert [line["what"] for line in lines] == ["correct", "candidate"]
    assert lines[1]["text"] == f"{judged['candidate']} rejected: {judged['reason']}"
