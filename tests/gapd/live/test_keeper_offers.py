"""Values that come from the host: judged on windows to come, or taken over."""

from __future__ import annotations

import numpy as np
import pytest
from keeper_life import HIDDEN, LATER, SETTINGS, Array, again, decisions, lived

from gapd.fit.cycle import run
from gapd.live.events import Event, Judged
from gapd.live.keeper import Keeper
from gapd.live.memory import Memory
from gapd.measured.windows import Windows
from gapd.model.robot import Robot


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


def test_adopted_values_are_watched_with_the_old_baseline(
    tiny: Robot, commissioned: tuple[Keeper, list[Event]], scenes: list[list[Windows]]
) -> None:
    keeper = again(tiny, commissioned[0])
    keeper.adopt(tiny.parameters.z_nominal)
    made = decisions(lived(keeper, scenes[1]))
    assert made
    assert made[0].report.decision.action == "correct"
    np.testing.assert_allclose(tiny.parameters.to_physical(keeper.z), tiny.parameters.nominal * HIDDEN, rtol=0.1)
