"""From an escalation to the robot's verdict."""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from link_peer import FakeRobot, Host, correction, escalation, until, verdict

from gapd.errors import GapdError, InputError
from gapd.live.telemetry import open_log
from gapd.measured.evidence import pack
from gapd.measured.windows import Frames
from gapd.messages import link
from gapd.model.robot import Robot
from gaptrain.host import engines, jobs, refit_job, worker
from gaptrain.host.database import HostError, read_state
from gaptrain.host.evidence_files import EvidenceFiles
from gaptrain.host.recalibrate import recalibrate
from gaptrain.host.registry import the_robot
from gaptrain.host.store import Store

Make = Callable[..., FakeRobot]
Start = Callable[..., Host]

SECONDS = 20.0


@pytest.fixture(scope="module")
def truth(tiny: Robot) -> np.ndarray[Any, Any]:
    return tiny.parameters.nominal * [1.2, 1.8, 0.6, 1.3]


@pytest.fixture(scope="module")
def evidence(tiny: Robot, truth: np.ndarray[Any, Any], recorded: Any) -> bytes:
    return pack(recorded(tiny, truth, SECONDS, 7).frames)


@pytest.fixture
def given(enrolled: Make, tmp_path: Path) -> Callable[[bytes], Path]:
    """A state in which r1 has escalated with this evidence, on version 1."""

    def give(raw: bytes, **says: Any) -> Path:
        robot, state = enrolled(), tmp_path / "state"
        sha = hashlib.sha256(raw).hexdigest()
        store = Store(state, lambda: 1.0)
        record = the_robot(store.database, "r1")
        store.greet(record, robot.hello())
        store.apply(record, correction(robot.space, 1, 0))
        assert isinstance(store.apply(record, escalation(2, sha, len(raw), **says)), link.Ack)
        wanted, files = store.wanted("r1"), EvidenceFiles(state)
        assert wanted is not None
        for offset in range(0, len(raw), link.CHUNK_BYTES):
            data = raw[offset : offset + link.CHUNK_BYTES]
            taken = files.take(wanted, link.Chunk(sha, offset, len(raw), sha, data))
        assert taken == "complete"
        store.evidence_complete(wanted)
        store.close()
        return state

    return give


@pytest.mark.parametrize("engine", ["gapd", "sysid"])
def test_a_refit_is_offered_on_the_current_version(
    given: Any, evidence: bytes, truth: np.ndarray[Any, Any], tiny: Robot, engine: Any
) -> None:
    state = given(evidence)
    outcome = recalibrate(state, "r1", engine, threads=1)
    assert outcome.candidate
    with closing(read_state(state)) as database:
        offered = jobs.pending(database, "r1")
        ended = jobs.result(database, 1)
    assert offered is not None
    assert (offered.candidate, offered.base_version) == (outcome.candidate, 1)
    assert offered.source == f"recalibration 1, {engine}"
    found = tiny.parameters.to_physical(np.array(offered.z))
    np.testing.assert_allclose(found, truth, rtol=0.15)
    assert (ended["state"], ended["candidate"]) == ("offered", outcome.candidate)
    assert "accepted" in ended["reason"]


@pytest.fixture(scope="module")
def unchanged(tiny: Robot, recorded: Any) -> bytes:
    return pack(recorded(tiny, tiny.parameters.nominal, SECONDS, 8).frames)


NAMED = "the robot named j load friction (share 50 %); the refit: no parameter has changed by "
TO_DO = "look for backlash; if it is to stay, add it to the model, then run `gaptrain enrol r1` again"


def test_where_nothing_is_offered_the_terms_of_the_escalation_are_named(given: Any, unchanged: bytes) -> None:
    state = given(unchanged)
    outcome = recalibrate(state, "r1", threads=1)
    assert outcome.candidate == ""
    assert outcome.sentence.startswith(f"r1: nothing to offer: {NAMED}")
    assert outcome.remedy == TO_DO
    with closing(read_state(state)) as database:
        ended = jobs.result(database, 1)
        assert jobs.pending(database, "r1") is None
    assert (ended["state"], ended["reason"], ended["remedy"]) == ("nothing", outcome.reason, TO_DO)


def test_without_terms_the_refit_speaks_for_itself(given: Any, unchanged: bytes) -> None:
    outcome = recalibrate(given(unchanged, terms=()), "r1", threads=1)
    assert outcome.reason.startswith("no parameter has changed by ")
    assert (outcome.candidate, outcome.remedy) == ("", "nothing to do")


def test_values_that_cannot_be_replayed_are_no_start(
    given: Any, evidence: bytes, tiny: Robot, truth: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run, from the present values, diverges; the second one starts from nominal."""
    starts: list[Any] = []

    def diverges_first(*arguments: Any, **options: Any) -> Any:
        starts.append(arguments[2] if len(arguments) > 2 else None)
        if len(starts) == 1:
            raise InputError("the replay diverges in 66 of 66 windows; correct them")
        return run(*arguments, **options)

    run = engines.run
    monkeypatch.setattr(engines, "run", diverges_first)
    state = given(evidence)
    outcome = recalibrate(state, "r1")
    assert outcome.candidate
    assert starts[1] is None
    with closing(read_state(state)) as database:
        offered = jobs.pending(database, "r1")
    assert offered is not None
    np.testing.assert_allclose(tiny.parameters.to_physical(np.array(offered.z)), truth, rtol=0.1)


def test_failures_are_recorded_with_a_remedy(given: Any, evidence: bytes, tiny: Robot, recorded: Any) -> None:
    frames = recorded(tiny, tiny.parameters.nominal, 0.5, 8).frames
    state = given(pack(frames))
    with pytest.raises(GapdError, match="too few"):
        recalibrate(state, "r1", threads=1)
    with closing(read_state(state)) as database:
        ended = jobs.result(database, 1)
        assert jobs.next_job(database) is None  # it is not tried for ever
        (name,) = database.execute("SELECT evidence FROM jobs").fetchone()
    assert ended["state"] == "failed"
    assert "too few" in ended["reason"]
    other = Frames(np.zeros(3), np.zeros((3, 9)), np.zeros((3, 1)), np.zeros((3, 0)))
    (state / "evidence" / name).write_bytes(pack(other))
    with pytest.raises(HostError, match="9, 1, 0"):
        recalibrate(state, "r1", threads=1)
    (state / "evidence" / name).unlink()
    with pytest.raises(HostError, match="the recording is gone"):
        recalibrate(state, "r1", threads=1)


def test_without_evidence_there_is_nothing_to_do(enrolled: Make, tmp_path: Path) -> None:
    enrolled()
    with pytest.raises(HostError, match="no escalation with complete evidence"):
        recalibrate(tmp_path / "state", "r1")


def test_automatic_from_the_escalation_to_the_new_version(
    enrolled: Make, host: Start, evidence: bytes, truth: np.ndarray[Any, Any], tiny: Robot
) -> None:
    robot = enrolled()
    service = host(robot, "--recalibrate", "auto")
    sha = hashlib.sha256(evidence).hexdigest()
    robot.connect().say_hello()
    robot.send(escalation(1, sha, len(evidence)))
    offered = _give(robot, evidence, lambda message: isinstance(message, link.Candidate))
    assert robot.ask(verdict(2, offered.candidate, 0)) == link.Ack(1, 2, 1)
    found = tiny.parameters.to_physical(np.array(robot.say_hello().z))
    np.testing.assert_allclose(found, truth, rtol=0.15)
    until(lambda: service.events("recalibrated"))
    assert service.events("recalibrated")[0]["state"] == "offered"


def _give(robot: FakeRobot, raw: bytes, done: Callable[[Any], Any]) -> Any:
    """Be a robot that gives its evidence when it is asked, until what the host says is what the test waits for."""
    sha, end = hashlib.sha256(raw).hexdigest(), time.monotonic() + 60.0
    while not done(message := robot.receive((link.EvidenceRequest, link.Candidate, link.Ack, link.Heartbeat), 30.0)):
        assert time.monotonic() < end
        if isinstance(message, link.EvidenceRequest):
            data = raw[message.offset : message.offset + link.CHUNK_BYTES]
            robot.send(link.Chunk(sha, message.offset, len(raw), sha, data))
        elif isinstance(message, link.Heartbeat):
            robot.send(link.Heartbeat(0))
    return message


def test_automatic_and_nothing_to_offer(enrolled: Make, host: Start, unchanged: bytes) -> None:
    robot = enrolled()
    service = host(robot, "--recalibrate", "auto")
    robot.connect().say_hello()
    robot.send(escalation(1, hashlib.sha256(unchanged).hexdigest(), len(unchanged)))
    _give(robot, unchanged, lambda _: service.events("recalibrated"))
    (line,) = service.events("recalibrated")
    assert (line["state"], line["candidate"], line["remedy"]) == ("nothing", "", TO_DO)
    assert line["reason"].startswith(NAMED)


def test_automatic_failures_are_told_and_left(enrolled: Make, host: Start, tmp_path: Path) -> None:
    robot = enrolled()
    service = host(robot, "--recalibrate", "auto")
    raw = msgspec.msgpack.encode({"kind": "nonsense"})
    sha = hashlib.sha256(raw).hexdigest()
    robot.connect().say_hello()
    robot.send(escalation(1, sha, len(raw)))
    robot.receive(link.EvidenceRequest)
    robot.send(link.Chunk(sha, 0, len(raw), sha, raw))
    line = until(lambda: service.events("recalibrated"))[0]
    assert line["state"] == "failed"
    assert "no recording of gapd" in line["reason"]
    assert "gaptrain recalibrate" in line["remedy"]
    assert robot.silence(link.Candidate, 1.0)
    assert len(service.events("recalibrating")) == 1


ENDS_AT_ONCE = "import sys; sys.exit('no memory left')"


@pytest.mark.parametrize("fails", ["process", "start"])
def test_a_process_that_does_not_begin_its_job_is_not_tried_for_ever(
    given: Any, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    if fails == "process":
        monkeypatch.setattr(worker, "_PROGRAM", ENDS_AT_ONCE)
    else:
        monkeypatch.setattr(worker.subprocess, "Popen", _no_process)
    state, stream = given(b"evidence"), io.StringIO()
    working, now_s = worker.Worker(state, open_log(stream, environ={})), itertools.count(0.0, worker.RETRY_S / 3)
    with closing(Store(state, lambda: 1.0)) as store:

        def given_up() -> bool:
            working.step(store, next(now_s))
            return jobs.result(store.database, 1)["state"] == "failed"

        until(given_up)
        ended = jobs.result(store.database, 1)
        assert jobs.next_job(store.database) is None
    reason = {"process": "no memory left", "start": "[Errno 11] too many processes"}[fails]
    assert ended["reason"] == f"not begun in 3 attempts: {reason}"
    assert ended["remedy"] == "run `gaptrain recalibrate r1` and read its output"
    lines = [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]
    failed = [line for line in lines if line["event"] == "recalibration_failed"]
    assert [(line["state"], line["reason"]) for line in failed] == [(s, reason) for s in ("ready", "ready", "failed")]
    assert {line["remedy"].split()[0] for line in failed} == {"run" if fails == "process" else "check"}


def _no_process(*_arguments: Any, **_options: Any) -> None:
    raise OSError(errno.EAGAIN, "too many processes")


def test_after_a_process_that_did_not_begin_its_job_the_next_one_waits(
    given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.subprocess, "Popen", _no_process)
    state = given(b"evidence")
    working = worker.Worker(state, open_log(io.StringIO(), environ={}))

    def attempts() -> int:
        job = jobs.numbered(store.database, 1)
        assert job is not None
        return job.attempts

    with closing(Store(state, lambda: 1.0)) as store:
        found = []
        for now_s in (0.0, worker.RETRY_S - 1.0, worker.RETRY_S):
            working.step(store, now_s)
            found.append(attempts())
    assert found == [1, 1, 2]


def test_a_recalibration_that_was_cut_off_is_taken_up_three_times_at_most(given: Any, evidence: bytes) -> None:
    state = given(evidence)
    store = Store(state, lambda: 1.0)
    for _ in range(jobs.MOST_ATTEMPTS):
        job = jobs.next_job(store.database)
        assert job is not None
        jobs.begin_job(store.database, job.number, 1.0)
        (cut_off,) = jobs.interrupted(store.database)
        jobs.resume_job(store.database, cut_off, 2.0)
    assert jobs.next_job(store.database) is None
    ended = jobs.result(store.database, 1)
    store.close()
    assert (ended["state"], ended["reason"]) == ("failed", "cut off 3 times")


# `gaptrain` with a fit, or an import of what fits, that says that it has begun and takes its time.
SLOW = {
    "fit": """
from gaptrain.host import engines
def fit(*_):
    print("begun", flush=True)
    time.sleep(60)
engines.ENGINES["gapd"] = fit
""",
    "import": """
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "gaptrain.host.refit_job":
            print("begun", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
""",
}
RUN = "import sys, time\n{}\nfrom gaptrain.cli import main\nmain()"


def _begun(state: Path, slow: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN.format(SLOW[slow]), "recalibrate", "r1", "--state", str(state)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def _row(state: Path) -> list[Any]:
    with closing(read_state(state)) as database:
        return database.execute("SELECT * FROM jobs").fetchall()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("slow", ["fit", "import"])
@pytest.mark.parametrize("was", ["ready", "offered"])
def test_what_is_interrupted_leaves_the_job_as_it_was(
    given: Any, evidence: bytes, number: signal.Signals, slow: str, was: str
) -> None:
    state = given(evidence)
    if was == "offered":
        recalibrate(state, "r1", threads=1)
    before = _row(state)
    process = _begun(state, slow)
    assert (_row(state) != before) == (slow == "fit")  # it is marked as running
    process.send_signal(number)
    said = process.communicate(timeout=15)
    assert (process.returncode, *said) == (130, "", "gaptrain: interrupted; everything is as it was before\n")
    assert _row(state) == before


def test_a_killed_recalibration_counts_and_an_interrupted_one_after_it_makes_the_job_ready(
    given: Any, evidence: bytes
) -> None:
    state = given(evidence)
    for number in (signal.SIGKILL, signal.SIGINT):
        process = _begun(state, "fit")
        process.send_signal(number)
        process.communicate(timeout=15)
    with closing(read_state(state)) as database:
        job = jobs.numbered(database, 1)
    assert job is not None
    assert (job.state, job.attempts) == ("ready", 1)


def test_a_signal_after_the_fit_is_too_late(given: Any, evidence: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is recorded: nothing of it can be half."""

    def record(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return real(*arguments)

    real = refit_job._record
    monkeypatch.setattr(refit_job, "_record", record)
    state = given(evidence)
    assert recalibrate(state, "r1", threads=1).candidate
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
