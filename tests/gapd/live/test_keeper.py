"""The keeper over a robot's life: commissioned, corrected, found changed; window by window."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from keeper_life import HIDDEN, LATER, SETTINGS, again, decisions, lived, windows_of_frames

from gapd.fit.cycle import run
from gapd.live.events import Drifted, Event, Monitored, Outdated
from gapd.live.floors import moved
from gapd.live.keeper import Keeper
from gapd.live.memory import Memory
from gapd.live.monitor import Drift
from gapd.live.trial_period import Return
from gapd.live_config import KeeperSettings
from gapd.measured.windows import Windows
from gapd.model.robot import Robot


def test_the_first_accepted_fit_corrects_and_sets_the_floor(
    tiny: Robot, commissioned: tuple[Keeper, list[Event]]
) -> None:
    keeper, events = commissioned
    made = decisions(events)
    assert [d.report.decision.action for d in made] == ["correct"]
    assert made[0].commissioned
    assert made[0].job.why == "commissioning"
    np.testing.assert_allclose(tiny.parameters.to_physical(keeper.z), tiny.parameters.nominal * HIDDEN, rtol=0.1)
    assert np.array(keeper.memory.floor) == pytest.approx(1.0, abs=0.15)
    assert keeper.state == "watching"
    seen = [e for e in events if isinstance(e, Monitored)]
    assert len(seen) == 150
    assert np.isnan(seen[0].floors)
    # A little above the floor: the monitor takes initial states as measured, the check clears them.
    assert 0.9 < np.median([e.floors for e in seen[-40:]]) < 1.4


def test_a_healthy_robot_is_only_watched(
    tiny: Robot, commissioned: tuple[Keeper, list[Event]], scenes: list[list[Windows]]
) -> None:
    keeper = again(tiny, commissioned[0])
    events = lived(keeper, scenes[1])
    assert {type(e) for e in events} == {Monitored}
    assert keeper.memory.z == commissioned[0].memory.z


def test_a_change_is_found_as_one_and_corrected_from_what_came_after(
    tiny: Robot, commissioned: tuple[Keeper, list[Event]], scenes: list[list[Windows]]
) -> None:
    keeper = again(tiny, commissioned[0])
    events = lived(keeper, [*scenes[1][-20:], *scenes[2]])
    drift = next(e for e in events if isinstance(e, Drifted))
    assert 59.5 <= drift.since_s <= 61.0
    assert drift.now_s < 63.0
    made = decisions(events)
    assert [d.report.decision.action for d in made] == ["correct"]
    assert made[0].job.prepared.windows.start_s.min() >= 60.0
    assert made[0].job.since_s == drift.since_s
    assert not made[0].commissioned
    assert "joint/j/frictionloss" in made[0].report.decision.reason
    np.testing.assert_allclose(tiny.parameters.to_physical(keeper.z), tiny.parameters.nominal * LATER, rtol=0.05)


def test_a_channel_that_did_not_move_gets_its_floor_when_it_does(
    tiny: Robot, commissioned: tuple[Keeper, list[Event]], scenes: list[list[Windows]]
) -> None:
    still = msgspec.structs.replace(commissioned[0].memory, floor=(np.nan, *commissioned[0].memory.floor[1:]))
    keeper = Keeper(tiny, SETTINGS, still)
    made = decisions(lived(keeper, scenes[2]))
    assert [d.report.decision.action for d in made] == ["correct"]
    assert not made[0].commissioned
    assert keeper.memory.floor[0] == pytest.approx(1.0, abs=0.15)
    assert keeper.memory.floor[1:] == still.floor[1:]


def test_a_channel_at_rest_sets_no_floor(tiny: Robot, scenes: list[list[Windows]]) -> None:
    rest = [Windows(**{**vars(w), "measured": w.measured.copy()}) for w in scenes[0]]
    rng = np.random.default_rng(0)
    for window in rest:  # a second sensor, of something that stands still
        window.measured[:, :, -1] = tiny.layout.noise[-1] * rng.normal(size=window.measured.shape[:2])
    assert moved(Windows.concatenate(scenes[0]), tiny.layout.noise).all()
    assert not moved(Windows.concatenate(rest), tiny.layout.noise)[-1]


def test_two_lives_are_the_same_to_the_bit_and_a_fit_that_takes_its_time_changes_nothing(
    tiny: Robot, commissioned: tuple[Keeper, list[Event]], scenes: list[list[Windows]]
) -> None:
    late, events = Keeper(tiny, SETTINGS), []
    for n, window in enumerate(scenes[0]):
        events += late.add(window)
        if late.job is not None and (n % 17 == 0 or n == len(scenes[0]) - 1):
            events += late.finish(run(tiny, late.job.prepared, late.job.standing))
    assert late.memory == commissioned[0].memory
    assert [type(e) for e in events] == [type(e) for e in commissioned[1]]


def test_a_fit_that_fails_is_tried_again_later(tiny: Robot, scenes: list[list[Windows]]) -> None:
    keeper = Keeper(tiny, SETTINGS)
    for window in scenes[0]:
        keeper.add(window)
    assert keeper.state == "fitting"
    assert keeper.waiting > 0
    first = keeper.job
    keeper.abandon()
    assert keeper.job is not None
    assert keeper.job is not first
    assert keeper.job.prepared.windows.start_s.max() >= first.prepared.windows.start_s.max() + 2.0  # type: ignore[union-attr]


def test_values_that_turn_out_worse_come_back(
    tiny: Robot, commissioned: tuple[Keeper, list[Event]], scenes: list[list[Windows]]
) -> None:
    """The change was a passing one: right after the correction the robot is as before."""
    keeper = again(tiny, commissioned[0])
    before = keeper.memory.z
    events: list[Event] = []
    for window in [*scenes[1][-10:], *scenes[2]]:
        events += lived(keeper, [window])
        if decisions(events):
            break
    assert keeper.memory.z != before
    later = [Windows(**{**vars(w), "start_s": w.start_s + 100.0}) for w in scenes[1]]
    events = lived(keeper, later[:30])
    assert any(isinstance(e, Return) for e in events)
    assert keeper.memory.z == before


def test_a_clock_that_begins_anew_parts_the_windows_and_stops_nothing(tiny: Robot, scenes: list[list[Windows]]) -> None:
    """Episodes of 8 s, each from 0 on: commissioned all the same, and a fit waits as long as it should."""
    keeper, events, episode = Keeper(tiny, SETTINGS), [], 40
    for first in range(0, len(scenes[0]), episode):
        part = scenes[0][first : first + episode]
        begin_s = part[0].start_s
        keeper.restart()
        events += lived(keeper, [Windows(**{**vars(w), "start_s": w.start_s - begin_s}) for w in part])
    assert [d.report.decision.action for d in decisions(events)] == ["correct"]
    sources = decisions(events)[0].job.prepared.windows.source
    assert len(np.unique(sources)) > 1
    assert keeper.missing_s < 20.0


def test_a_change_that_is_noticed_with_its_last_window_is_fitted_all_the_same(
    tiny: Robot, commissioned: tuple[Keeper, list[Event]], scenes: list[list[Windows]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow drift: only the newest window is loud, so that none is left to begin with."""
    keeper = again(tiny, commissioned[0])
    test = keeper._test
    assert test is not None
    found = iter([Drift(0, 1, 9.0)])
    monkeypatch.setattr(test, "update", lambda _: next(found, None))
    events = lived(keeper, scenes[2])
    assert sum(isinstance(e, Drifted) for e in events) >= 1
    assert [d.report.decision.action for d in decisions(events)] == ["correct"]


def test_an_hour_has_so_many_fits(tiny: Robot, scenes: list[list[Windows]]) -> None:
    """A fit that always fails: the next ones come after the interval, and then not before the hour is over."""
    keeper = Keeper(tiny, KeeperSettings(windows=100, min_interval_s=2.0, fits_per_hour=2))
    made = []
    for window in [*scenes[0], *scenes[1], *scenes[2]]:
        keeper.add(window)
        if keeper.job is not None:
            made.append(float(keeper.job.prepared.windows.start_s.max()))
            keeper.abandon()
    assert len(made) == 2
    assert 2.0 <= made[1] - made[0] < 3.0
    late = Windows(**{**vars(scenes[2][-1]), "start_s": scenes[2][-1].start_s + 3600.0})
    keeper.add(late)
    assert keeper.job is not None


def test_memory_survives_as_json(commissioned: tuple[Keeper, list[Event]]) -> None:
    import msgspec

    memory = commissioned[0].memory
    assert msgspec.json.decode(msgspec.json.encode(memory), type=Memory) == memory


def test_a_fit_of_values_that_were_replaced_meanwhile_counts_for_nothing(
    tiny: Robot, scenes: list[list[Windows]]
) -> None:
    keeper = Keeper(tiny, SETTINGS)
    rest = iter(scenes[0])
    while keeper.job is None:
        keeper.add(next(rest))
    report = run(tiny, keeper.job.prepared, keeper.job.standing)
    other = np.clip(tiny.parameters.z_nominal + 0.3, tiny.parameters.z_min, tiny.parameters.z_max)
    keeper.adopt(other)
    assert [type(e) for e in keeper.finish(report)] == [Outdated]
    np.testing.assert_array_equal(keeper.z, other)


def test_a_rejected_fit_is_no_commissioning(tiny: Robot, recorded: Any) -> None:
    """A sign the wrong way round: what is left must not become normal."""
    frames = recorded(tiny, tiny.parameters.nominal * HIDDEN, 30.0, 1).frames
    frames.measured[:, 0] *= -1
    keeper = Keeper(tiny, SETTINGS)
    made = decisions(lived(keeper, windows_of_frames(tiny, frames, 0.0)))
    assert {d.report.decision.action for d in made} == {"reject"}
    assert keeper.state == "commissioning"
    assert keeper.memory.floor == ()
    assert keeper.memory.baseline is None
