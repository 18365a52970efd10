"""From frames to decisions to messages: the same each time, and such that the host takes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from live_robot import CHANGE, FRICTION, decisions, told

from gapd.keys import write_keys
from gapd.live import outgoing
from gapd.live.events import Decided, Drifted
from gapd.live.pipeline import EVIDENCE_S, Gated, Happening, Pipeline
from gapd.measured.evidence import pack, unpack
from gapd.messages.frames import Frame
from gapd.messages.link import Ack, Correction, Escalation, Hello, Nack, Welcome
from gapd.model.robot import Robot, open_robot
from gaptrain.host.enrolment import enrol
from gaptrain.host.registry import the_robot
from gaptrain.host.store import Store
from gaptrain.host.versions import history


@pytest.fixture(scope="module")
def robot(make_robot: Any, tiny_toml: str, tmp_path_factory: pytest.TempPathFactory) -> Robot:
    found: Robot = make_robot(
        tmp_path_factory.mktemp("pipeline"),
        robot=tiny_toml + "[live.keeper]\nwindows = 100\nmin_interval_s = 10\n",
    )
    return found


@pytest.fixture(scope="module")
def pipeline(robot: Robot) -> Pipeline:
    return Pipeline(robot, robot.config.live.keeper)


@pytest.fixture(scope="module")
def happened(pipeline: Pipeline, story: list[Frame]) -> list[Happening]:
    return decisions(pipeline, story)


@pytest.fixture(scope="module")
def decided(happened: list[Happening]) -> list[Decided]:
    return [event for event in happened if isinstance(event, Decided)]


@pytest.fixture
def store(robot: Robot, tmp_path: Path) -> Iterator[Store]:
    write_keys(tmp_path, "r1")
    enrol(tmp_path / "state", "r1", robot.config.path("robot.toml"), tmp_path / "r1.pub")
    with closing(Store(tmp_path / "state", lambda: 1.0)) as made:
        yield made


def test_commissioned_corrected_and_escalated(robot: Robot, happened: list[Happening], decided: list[Decided]) -> None:
    assert [d.report.decision.action for d in decided] == ["correct", "correct", "escalate"]
    assert [d.commissioned for d in decided] == [True, False, False]
    assert sum(isinstance(event, Drifted) for event in happened) == 2
    for event, truth in zip(decided, (CHANGE, CHANGE * FRICTION), strict=False):
        np.testing.assert_allclose(robot.parameters.to_physical(event.z), robot.parameters.nominal * truth, rtol=0.15)
    assert "friction grows with load" in decided[2].report.decision.reason


def test_the_host_takes_what_becomes_of_them(robot: Robot, store: Store, decided: list[Decided]) -> None:
    enrolled = the_robot(store.database, "r1")
    hello = Hello(1, "r1", "outbox", robot.parameters.fingerprint, "test")
    welcome = store.greet(enrolled, hello)
    assert isinstance(welcome, Welcome)
    messages: list[Correction | Escalation] = [
        outgoing.correction(decided[0], 1.0),
        outgoing.correction(decided[1], 2.0),
        outgoing.escalation(decided[2], 3.0, "0" * 64, 100),
    ]
    for sequence, message in enumerate(messages, 1):
        sent = msgspec.structs.replace(message, epoch=welcome.epoch, sequence=sequence, base_version=sequence - 1)
        assert store.apply(enrolled, sent) == Ack(welcome.epoch, sequence, min(sequence, 2))
    versions = history(store.database, "r1")
    for version, event in zip(versions, decided, strict=False):
        np.testing.assert_array_equal(version.values.z, event.z)
    late = msgspec.structs.replace(messages[0], epoch=welcome.epoch, sequence=9)
    answer = store.apply(enrolled, late)
    assert isinstance(answer, Nack)
    assert (answer.code, answer.z) == ("stale_base", tuple(decided[1].z.tolist()))


def test_two_runs_decide_the_same_to_the_bit(robot: Robot, happened: list[Happening], story: list[Frame]) -> None:
    assert told(decisions(Pipeline(robot, robot.config.live.keeper), story)) == told(happened)


def test_a_restart_in_the_middle_goes_on(robot: Robot, story: list[Frame], decided: list[Decided]) -> None:
    half = next(n for n, frame in enumerate(story) if frame.timestamp > 113.0)
    first = Pipeline(robot, robot.config.live.keeper)
    decisions(first, story[:half])
    second = Pipeline(robot, robot.config.live.keeper, first.keeper.memory)
    assert second.keeper.state == "watching"
    later = [e for e in decisions(second, story[half:]) if isinstance(e, Decided)]
    assert [e.report.decision.action for e in later] == ["correct", "escalate"]
    np.testing.assert_array_equal(later[0].z, decided[1].z)


def test_the_evidence_is_the_newest_minute(pipeline: Pipeline, happened: list[Happening], story: list[Frame]) -> None:
    evidence = pipeline.evidence(float("nan"))
    assert evidence is not None
    assert evidence.timestamp[-1] == pytest.approx(story[-1].timestamp, abs=0.4)
    assert story[-1].timestamp - evidence.timestamp[0] <= EVIDENCE_S + 1.0
    assert len(unpack(pack(evidence), "evidence")) == len(evidence)


def test_evidence_begins_with_the_change_and_may_be_none(
    robot: Robot, pipeline: Pipeline, happened: list[Happening], story: list[Frame]
) -> None:
    since_s = story[-1].timestamp - 5.0
    evidence = pipeline.evidence(since_s)
    assert evidence is not None
    assert since_s - 1.0 < evidence.timestamp[0] <= since_s
    assert Pipeline(robot, robot.config.live.keeper).evidence(since_s) is None


def test_a_verdict_is_news_when_it_changes(robot: Robot, commissioning: list[Frame]) -> None:
    silent = [msgspec.structs.replace(f, position=(float("nan"),)) for f in commissioning[400:800]]
    pipeline = Pipeline(robot, robot.config.live.keeper)
    happened = decisions(pipeline, [*commissioning[:400], *silent, *commissioning[800:1000]])
    verdicts = [event.gate.verdict for event in happened if isinstance(event, Gated)]
    assert len(verdicts) < 10
    assert pipeline.rows.not_finite == len(silent)
    refused = sum(pipeline.verdicts.values()) - pipeline.verdicts["ok"]
    assert refused >= len(silent) // 40


def test_a_config_without_live_tables_has_defaults(tiny_folder: Path) -> None:
    assert open_robot(tiny_folder / "robot.toml").config.live.keeper.windows == 60
