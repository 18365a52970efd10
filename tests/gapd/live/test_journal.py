"""The log: one line for each thing that happens, and what is wrong has a remedy."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import numpy as np
import pytest
from live_robot import decisions

from gapd.link import link_events
from gapd.link.link_events import Event
from gapd.live import journal
from gapd.live.events import Decided, Drifted, Judged, Monitored, Outdated, Unsettled
from gapd.live.pipeline import Dropped, Gated, Happening, Pipeline
from gapd.live.telemetry import open_log
from gapd.live.trial_period import Return
from gapd.measured.frame_rows import Refusal
from gapd.measured.verdicts import Gate
from gapd.messages import link
from gapd.messages.frames import Frame
from gapd.model.robot import Robot

CORRECTION = link.Correction(1, 5, 1.0, 0, (0.0,), (0.1,), (), b"", (), (), "test", 2.0, 1.0, 9)


def lines(*happened: Happening | Event, robot: Robot) -> list[dict[str, Any]]:
    stream = io.StringIO()
    log = open_log(stream)
    for event in happened:
        if isinstance(event, Event):
            journal.link(log, event)
        else:
            journal.write(log, event, robot)
    return [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]


@pytest.fixture(scope="module")
def decided(tiny: Robot, commissioning: list[Frame]) -> Decided:
    settings = msgspec.structs.replace(tiny.config.live.keeper, windows=100)
    happened = decisions(Pipeline(tiny, settings), commissioning)
    return next(event for event in happened if isinstance(event, Decided))


def test_a_decision_tells_why_what_and_how_much(tiny: Robot, decided: Decided) -> None:
    (line,) = lines(decided, robot=tiny)
    assert (line["event"], line["level"], line["action"], line["commissioned"]) == ("decision", "info", "correct", True)
    assert line["why"] == "commissioning"
    assert line["since_s"] is None
    assert line["floors_before"] > line["floors_after"]
    assert set(line["corrected"]) == {e.name for e in decided.report.decision.corrections if e.significant}
    assert line["reason"]
    assert line["remedy"]


def test_healthy_windows_are_news_once_a_minute(tiny: Robot) -> None:
    monitored = [Monitored(float(n), np.array([0.5, 2.0, np.nan]), 1.0) for n in range(100)]
    (line,) = lines(*monitored, robot=tiny)
    assert (line["worst"], line["worst_gap"]) == ("j/velocity", 2.0)


def test_a_window_in_which_nothing_was_measured_names_some_channel(tiny: Robot) -> None:
    (line,) = lines(Monitored(1.0, np.full(3, np.nan), np.nan), robot=tiny)
    assert line["gap_floors"] is None


def test_whatever_is_wrong_has_a_remedy(tiny: Robot, decided: Decided) -> None:
    check = decided.report.check
    refused = Refusal("unknown_name", "name 'elbow': no joint of the model", "correct the source", True)
    gate = Gate("missing", 1.0, "", 2.0, "2 frames in 0.2 s", "record faster")
    found = lines(
        Drifted("j/position", 1.0, 2.0, 9.5), Return(decided.z, decided.z + np.eye(4)[1], check),
        Judged("c1", check, decided.z), Gated(gate), refused, Dropped(3.0), Outdated(decided.job),
        Unsettled(decided.job, "nothing explains it"), robot=tiny,
    )  # fmt: skip
    assert [line["event"] for line in found] == [
        "drift", "correction_returned", "candidate", "window", "frame_refused", "windows_dropped",
        "fit_outdated", "fit_unsettled",
    ]  # fmt: skip
    levels = ["warning", "warning", "info", "warning", "warning", "warning", "info", "info"]
    assert [line["level"] for line in found] == levels
    assert found[0]["score"] == 9.5
    assert found[1]["returned"] == ["joint/j/damping"]
    assert all(found[n]["remedy"] for n in (0, 1, 6, 7))
    assert "record faster" in found[3]["reason"]
    assert found[4]["remedy"] == "correct the source"
    assert found[5]["remedy"]


def test_the_link_tells_its_state(tiny: Robot) -> None:
    candidate = link.Candidate("c1", 3, (0.0,), (0.1,), "gapd")
    found = lines(
        link_events.Connected(link.Welcome(2, 7, 3, ())),
        link_events.Disconnected("tcp://host:1: nothing listens there", "start gaptrain host there"),
        link_events.Refused("unknown_robot", "enrol it"),
        link_events.Acknowledged(8, 4),
        link_events.Rejected(9, CORRECTION, "stale_base", "fit again", 4, (0.0,)),
        link_events.EvidenceWanted("ab", 0),
        link_events.EvidenceWanted("ab", 49152),
        link_events.CandidateOffered(candidate),
        link_events.CandidateOffered(candidate),
        robot=tiny,
    )
    assert [(line["event"], line["level"]) for line in found] == [
        ("link_up", "info"), ("link_down", "warning"), ("link_refused", "error"), ("acknowledged", "info"),
        ("rejected", "warning"), ("evidence", "info"), ("offered", "info"),
    ]  # fmt: skip
    assert all(line["remedy"] for line in found if line["level"] != "info")
    assert (found[0]["epoch"], found[0]["high_water"], found[3]["version"]) == (2, 7, 4)
