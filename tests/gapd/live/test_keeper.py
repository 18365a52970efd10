"""The keeper over a robot's life: commissioned, corrected, found changed, given up on; window by window."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from gapd.fit.cycle import run
from gapd.live.events import Decided, Diverged, Drifted, EscalationOver, Event, Judged, Monitored, Outdated, Unsettled
from gapd.live.floors import moved
from gapd.live.keeper import Keeper
from gapd.live.memory import Memory
from gapd.live.monitor import Drift
from gapd.live.trial_period import Return
from gapd.live_config import KeeperSettings
from gapd.measured.windows import Frames, Windows, cut, window_starts
from gapd.model.robot import Robot
from gaptrain.simulate import Structure

Array = NDArray[np.float64]
SETTINGS = KeeperSettings(windows=100, min_interval_s=2.0)
HIDDEN = np.array([1.5, 2.0, 0.6, 1.8])
LATER = np.array([1.5, 2.0, 1.8, 1.8])


def windows_of_frames(robot: Robot, frames: Frames, begin_s: float) -> list[Windows]:
    cut_out = cut(frames, robot.layout, window_starts(frames, robot.layout))
    moved = Windows(**{**vars(cut_out), "start_s": cut_out.start_s + begin_s})
    return [moved.take([n]) for n in range(len(moved))]


def lived(keeper: Keeper, windows: list[Windows]) -> list[Event]:
    """Feed windows; every fit is made at once."""
    events: list[Event] = []
    for window in windows:
        events += keeper.add(window)
        while keeper.job is not None:
            events += keeper.finish(run(keeper.robot, keeper.job.prepared, keeper.job.standing))
    return events


def decisions(events: list[Event]) -> list[Decided]:
    return [e for e in events if isinstance(e, Decided)]


@pytest.fixture(scope="module")
def scenes(tiny: Robot, recorded: Any) -> list[list[Windows]]:
    """Twice the hidden robot, then the same with three times the friction: 30 s each, one clock."""
    nominal = tiny.parameters.nominal
    parts = [(HIDDEN, 1), (HIDDEN, 2), (LATER, 3)]
    return [
        windows_of_frames(tiny, recorded(tiny, nominal * factor, 30.0, seed).frames, 30.0 * n)
        for n, (factor, seed) in enumerate(parts)
    ]


@pytest.fixture(scope="module")
def commissioned(tiny: Robot, scenes: list[list[Windows]]) -> tuple[Keeper, list[Event]]:
    keeper = Keeper(tiny, SETTINGS)
    return keeper, lived(keeper, scenes[0])


def again(tiny: Robot, keeper: Keeper) -> Keeper:
    """The same after a restart."""
    return Keeper(tiny, SETTINGS, keeper.memory)


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


def stop(robot: Robot) -> Structure:
    """A soft stop on one side of joint j."""
    dof = int(robot.model.joint("j").dofadr[0])

    def bind(sims: Any) -> Any:
        position, force = sims.bind("qpos"), sims.bind("qfrc_applied")

        def apply() -> None:
            force[:, dof] = -3.0 * np.maximum(position[:, dof] - 0.2, 0.0)

        return apply

    return bind


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


def test_a_candidate_is_taken_by_a_robot_that_cannot_be_replayed(
    tiny: Robot, commissioned: tuple[Keeper, list[Event]], scenes: list[list[Windows]], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, right = again(tiny, commissioned[0]), tiny.parameters.to_scaled(tiny.parameters.nominal * LATER)
    replayed = keeper._squared

    def squared(windows: Windows, z: Array) -> Array:
        return replayed(windows, z) if np.array_equal(z, right) else np.full_like(replayed(windows, z), np.inf)

    monkeypatch.setattr(keeper, "_squared", squared)
    keeper.offer("c1", right)
    judged = [e for e in lived(keeper, scenes[2][:60]) if isinstance(e, Judged)]
    assert [j.check.verdict for j in judged] == ["accepted"]
    np.testing.assert_array_equal(keeper.z, right)


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


def test_an_offer_is_judged_over_restarts_of_the_clock(
    tiny: Robot, commissioned: tuple[Keeper, list[Event]], scenes: list[list[Windows]]
) -> None:
    keeper, events = again(tiny, commissioned[0]), []
    keeper.offer("c1", keeper.z + 0.3)
    for first in range(0, 60, 5):
        keeper.restart()
        begin_s = scenes[1][first].start_s
        episode = [Windows(**{**vars(w), "start_s": w.start_s - begin_s}) for w in scenes[1][first : first + 5]]
        events += lived(keeper, episode)
    assert [j.check.verdict for j in events if isinstance(j, Judged)] == ["rejected"]


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


def test_a_candidate_outlives_a_fit_that_leaves_the_values(
    tiny: Robot, commissioned: tuple[Keeper, list[Event]], scenes: list[list[Windows]]
) -> None:
    """Offered while a fit is made, and judged on what comes after its decision, on values that have not moved."""
    keeper = Keeper(tiny, SETTINGS, Memory(commissioned[0].memory.z))  # to be commissioned with the right values
    offered, events = keeper.z + 0.3, []
    for window in scenes[1]:
        events += keeper.add(window)
        if keeper.job is not None:
            keeper.offer("c1", offered)
            events += keeper.finish(run(tiny, keeper.job.prepared, keeper.job.standing))
    assert [d.report.decision.action for d in decisions(events)] == ["hold"]
    assert [(j.candidate, j.check.verdict) for j in events if isinstance(j, Judged)] == [("c1", "rejected")]


def test_a_candidate_offered_in_place_of_values_that_have_moved_is_dropped(
    tiny: Robot, scenes: list[list[Windows]]
) -> None:
    keeper, events = Keeper(tiny, SETTINGS), []
    for window in scenes[0]:
        events += keeper.add(window)
        if keeper.job is not None:
            keeper.offer("c1", keeper.z)
            events += keeper.finish(run(tiny, keeper.job.prepared, keeper.job.standing))
    assert [d.report.decision.action for d in decisions(events)] == ["correct"]
    assert not [e for e in events if isinstance(e, Judged)]


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


def test_a_candidate_of_the_host_is_judged_on_windows_to_come(
    tiny: Robot, commissioned: tuple[Keeper, list[Event]], scenes: list[list[Windows]]
) -> None:
    right = tiny.parameters.to_scaled(tiny.parameters.nominal * LATER)
    for offered, verdict in ((right, "accepted"), (right + 1.0, "rejected")):
        keeper = again(tiny, commissioned[0])
        keeper.offer("c1", offered)
        judged = [e for e in lived(keeper, scenes[2][:60]) if isinstance(e, Judged)]
        assert [j.check.verdict for j in judged] == [verdict]
        assert (keeper.z == np.clip(offered, tiny.parameters.z_min, tiny.parameters.z_max)).all() == (
            verdict == "accepted"
        )


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


def test_adopted_values_are_watched_with_the_old_baseline(
    tiny: Robot, commissioned: tuple[Keeper, list[Event]], scenes: list[list[Windows]]
) -> None:
    keeper = again(tiny, commissioned[0])
    keeper.adopt(tiny.parameters.z_nominal)
    made = decisions(lived(keeper, scenes[1]))
    assert made
    assert made[0].report.decision.action == "correct"
    np.testing.assert_allclose(tiny.parameters.to_physical(keeper.z), tiny.parameters.nominal * HIDDEN, rtol=0.1)


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
