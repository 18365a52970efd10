"""What no parameter explains, and what cannot be replayed: given up on, until it is over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from keeper_life import HIDDEN, SETTINGS, Array, again, decisions, lived, stop, windows_of_frames

from gapd.live.events import Decided, Diverged, EscalationOver, Event, Monitored, Unsettled
from gapd.live.keeper import Keeper
from gapd.live.monitor import Drift
from gapd.measured.windows import Windows
from gapd.model.robot import Robot


def test_what_no_parameter_explains_is_escalated_once_and_is_normal_until_it_goes_away(
    tiny: Robot, commissioned: tuple[Keeper, list[Event]], recorded: Any
) -> None:
    keeper, hidden = again(tiny, commissioned[0]), tiny.parameters.nominal * HIDDEN
    healthy = keeper.memory.baseline
    made = decisions(lived(keeper, windows_of_frames(tiny, recorded(tiny, hidden, 60.0, 5, stop(tiny)).frames, 30.0)))
    assert [d.report.decision.action for d in made] == ["escalate"]
    assert made[0].report.identification.findings[0].joint == "j"
    assert keeper.state == "watching"
    assert keeper.memory.earlier == healthy != keeper.memory.baseline
    keeper = again(tiny, keeper)
    events = lived(keeper, windows_of_frames(tiny, recorded(tiny, hidden, 70.0, 6).frames, 100.0))
    assert [type(e) for e in events if not isinstance(e, Monitored)] == [EscalationOver]
    assert keeper.memory.baseline == healthy
    assert keeper.memory.earlier is None


def test_a_robot_that_cannot_be_replayed_is_escalated_and_not_fitted(
    tiny: Robot, commissioned: tuple[Keeper, list[Event]], scenes: list[list[Windows]], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = again(tiny, commissioned[0])
    replayed = keeper._squared
    monkeypatch.setattr(keeper, "_squared", lambda *of: np.full_like(replayed(*of), np.inf))
    events = lived(keeper, scenes[1])
    told = [e for e in events if isinstance(e, Diverged)]
    assert not decisions(events)
    assert len(told) >= 2  # again, as often as a fit
    assert told[0].diverged == told[0].windows
    assert told[0].reason == (
        f"the replay with the present values diverges in {told[0].windows} of {told[0].windows} windows"
    )


def test_a_few_windows_that_cannot_be_replayed_are_left_out_of_the_fit(
    tiny: Robot, scenes: list[list[Windows]], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper(tiny, SETTINGS)
    replayed, lost = keeper._squared, scenes[0][3].start_s[0]

    def squared(windows: Windows, z: Array) -> Array:
        return np.full_like(replayed(windows, z), np.inf) if windows.start_s[0] == lost else replayed(windows, z)

    monkeypatch.setattr(keeper, "_squared", squared)
    for window in scenes[0]:
        keeper.add(window)
        if keeper.job is not None:
            break
    assert keeper.job is not None
    assert lost not in keeper.job.prepared.windows.start_s
    assert scenes[0][2].start_s[0] in keeper.job.prepared.windows.start_s


def test_what_nothing_explains_is_fitted_again_before_it_is_escalated(
    tiny: Robot, commissioned: tuple[Keeper, list[Event]], scenes: list[list[Windows]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change is dated too early, so that half of the first fit's windows are of before."""
    keeper = again(tiny, commissioned[0])
    begin = keeper._begin
    monkeypatch.setattr(keeper, "_begin", lambda found: begin(Drift(found.channel, 30, found.score)))
    events = lived(keeper, [*scenes[1], *scenes[2]])
    told = [e for e in events if isinstance(e, Unsettled | Decided)]
    assert [type(e) for e in told][:2] == [Unsettled, Decided]
    assert isinstance(told[1], Decided)
    assert told[1].report.decision.action == "correct"
    assert told[1].job.again


def test_an_escalation_at_commissioning_ends_too(tiny: Robot, recorded: Any) -> None:
    """Its floor was that of the cause: without it the robot gets another one."""
    keeper, hidden = Keeper(tiny, SETTINGS), tiny.parameters.nominal * HIDDEN
    made = decisions(lived(keeper, windows_of_frames(tiny, recorded(tiny, hidden, 30.0, 5, stop(tiny)).frames, 0.0)))
    assert [d.report.decision.action for d in made] == ["escalate"]
    assert keeper.memory.verdict == ("ERROR", made[0].report.decision.sentence)
    assert max(keeper.memory.floor) > 1.5
    healthy = windows_of_frames(tiny, recorded(tiny, hidden, 110.0, 6).frames, 40.0)
    events = lived(keeper, healthy)
    assert any(isinstance(e, EscalationOver) for e in events)
    assert [d.report.decision.action for d in decisions(events)] == ["correct"]
    assert decisions(events)[0].commissioned
    assert max(keeper.memory.floor) < 1.3
    assert keeper.memory.verdict == ("OK", "")
