"""The cycle on recordings: what is fitted is not what is checked, and what is checked is what is sent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gapd.errors import InputError
from gapd.fit import cycle
from gapd.fit.check import blocks_of
from gapd.fit.cycle import BLOCK_S, Report, Standing, prepare, run
from gapd.fit.identify import identify
from gapd.fit.uncertainty import Status
from gapd.gap.replay import Replay
from gapd.measured.windows import Frames, Windows
from gapd.model.robot import Robot
from gaptrain.structures import load_dependent_friction

Array = NDArray[np.float64]
CHANGE = np.array([1.5, 2.0, 0.6, 1.8])


@pytest.fixture(scope="module")
def truth(tiny: Robot) -> Array:
    return np.asarray(tiny.parameters.nominal * CHANGE)


@pytest.fixture(scope="module")
def frames(tiny: Robot, truth: Array, recorded: Any) -> Frames:
    found: Frames = recorded(tiny, truth, 20.0, seed=2).frames
    return found


@pytest.fixture(scope="module")
def report(tiny: Robot, frames: Frames) -> Report:
    return run(tiny, prepare(tiny, [frames]))


def test_a_robot_that_differs_is_corrected_to_its_truth(report: Report, truth: Array) -> None:
    assert (report.decision.action, report.decision.level) == ("correct", "OK")
    assert report.check.verdict == "accepted"
    assert report.check.gap_before > 5
    assert report.check.gap_after == pytest.approx(1.0, abs=0.1)
    assert [e.name for e in report.decision.corrections] == [e.name for e in report.estimates]
    for estimate, value in zip(report.estimates, truth, strict=True):
        assert abs(estimate.after - value) < 4 * estimate.sd
        assert estimate.status == "estimated"


def test_a_robot_that_is_as_it_should_be_is_left_alone(tiny: Robot, recorded: Any) -> None:
    frames = recorded(tiny, tiny.parameters.nominal, 20.0, seed=3).frames
    report = run(tiny, prepare(tiny, [frames]))
    assert report.decision.action == "hold"
    assert report.decision.corrections == ()
    assert report.check.gap_before == pytest.approx(1.0, abs=0.1)


def test_present_values_are_what_the_correction_starts_from(tiny: Robot, frames: Frames, truth: Array) -> None:
    report = run(tiny, prepare(tiny, [frames]), Standing(tiny.parameters.to_scaled(truth)))
    assert report.decision.action == "hold"
    np.testing.assert_allclose([e.before for e in report.estimates], truth, rtol=1e-12)


@pytest.mark.parametrize("recordings", [1, 3])
def test_held_out_windows_are_never_fitted_and_keep_their_distance(
    tiny: Robot, truth: Array, recorded: Any, recordings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[Windows] = []

    def spy(replay: Replay, windows: Windows, *arguments: Any, **named: Any) -> Any:
        fitted.append(windows)
        return identify(replay, windows, *arguments, **named)

    monkeypatch.setattr(cycle, "identify", spy)
    frames = [recorded(tiny, truth, 30.0 / recordings, seed=20 + n).frames for n in range(recordings)]
    prepared = prepare(tiny, frames)
    report = run(tiny, prepared)
    assert len(fitted) == 1
    used, held = fitted[0], report.held
    assert report.fitted == len(used) > len(held) > 0.2 * len(prepared.windows)
    window_s = tiny.config.timing.window_s
    for number in range(recordings):
        ours, theirs = used.start_s[used.source == number], held.start_s[held.source == number]
        if len(ours) and len(theirs):
            # Not the same window, not an overlapping one, and not the next one either.
            assert np.abs(ours[:, None] - theirs).min() > 1.5 * window_s
    whole = blocks_of(prepared.windows.start_s, prepared.windows.source, BLOCK_S)
    assert len(np.unique(blocks_of(held.start_s, held.source, BLOCK_S))) >= 4
    assert len(np.unique(whole)) >= 12


def test_what_is_checked_is_what_is_sent(tiny: Robot, frames: Frames, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter that may not move keeps its value in the replay that the check judges."""
    found: list[Any] = []

    def unsure(*arguments: Any, **named: Any) -> Any:
        result = identify(*arguments, **named)
        status: tuple[Status, ...] = ("estimated", "unidentifiable", "estimated", "estimated")
        found.append(replace(result, uncertainty=replace(result.uncertainty, status=status)))
        return found[0]

    monkeypatch.setattr(cycle, "identify", unsure)
    report = run(tiny, prepare(tiny, [frames]))
    z = np.where([True, False, True, True], found[0].z, tiny.parameters.z_nominal)
    # From the same settled initial states, these values replay to what the check saw: their first knots agree.
    first = report.predicted_after[:, 0]
    plain = Replay(tiny).run(report.held, tiny.parameters.to_physical(z), qpos0=first[:, :1], qvel0=first[:, 1:2])
    np.testing.assert_allclose(plain.predicted, report.predicted_after, rtol=1e-9, atol=1e-9)
    assert "joint/j/damping" not in [e.name for e in report.decision.corrections]


def test_the_check_measures_each_channel_in_its_noise(tiny: Robot, report: Report) -> None:
    gap = (report.held.measured - report.predicted_after)[:, 1:] / tiny.layout.noise
    np.testing.assert_allclose(report.check.channel_after, np.sqrt(np.mean(gap**2, axis=(0, 1))), rtol=1e-9)
    before = (report.held.measured - report.predicted_before)[:, 1:] / tiny.layout.noise
    np.testing.assert_allclose(report.check.channel_before, np.sqrt(np.mean(before**2, axis=(0, 1))), rtol=1e-9)


def test_a_channel_that_the_recording_lacks_is_left_out(tiny: Robot, frames: Frames, truth: Array) -> None:
    measured = frames.measured.copy()
    measured[:, 2] = np.nan
    report = run(tiny, prepare(tiny, [replace(frames, measured=measured)]))
    assert report.decision.action == "correct"
    assert np.isnan(report.check.channel_after[2])
    assert np.isfinite(report.check.channel_after[:2]).all()
    assert all(abs(e.after - v) < 4 * e.sd for e, v in zip(report.estimates, truth, strict=True))


def test_what_only_a_group_can_explain_is_not_half_corrected(twins: Robot, recorded: Any) -> None:
    """Both dampings doubled: known to be wrong together, but neither may move, and the others not without them."""
    space = twins.parameters
    assert space.names[1::3] == ("joint/j/damping", "actuator/servo/kv")
    truth = space.nominal * np.array([1.4, 2.0, 1.5, 0.7, 2.0, 1.0])
    report = run(twins, prepare(twins, [recorded(twins, truth, 24.0, seed=1).frames]))
    assert report.identification.uncertainty.groups == ((1, 4), (5,))
    assert report.check.verdict == "rejected"
    assert report.decision.action != "correct"
    assert report.decision.corrections == ()
    for p in (1, 4, 5):
        assert report.estimates[p].after == report.estimates[p].before
    for p in (0, 2, 3):
        assert abs(report.estimates[p].after - truth[p]) < 4 * report.estimates[p].sd


def test_hidden_structure_escalates_and_names_the_joint(tiny: Robot, truth: Array, recorded: Any) -> None:
    frames = recorded(tiny, truth, 20.0, 4, load_dependent_friction(tiny, "j", 0.2)).frames
    report = run(tiny, prepare(tiny, [frames]))
    assert (report.decision.action, report.decision.level) == ("escalate", "ERROR")
    assert "j: friction grows with load" in report.decision.reason
    assert "randomise the friction of j" in report.decision.remedy
    survivors = {e.name for e in report.estimates if e.effective}
    assert {e.name for e in report.decision.corrections} <= survivors


def test_a_channel_that_no_fit_follows_is_the_recordings_fault(tiny: Robot, frames: Frames) -> None:
    """A sign the wrong way round: some spring or friction always makes up for a little of it."""
    measured = frames.measured.copy()
    measured[:, 0] *= -1
    report = run(tiny, prepare(tiny, [replace(frames, measured=measured)]))
    assert (report.decision.action, report.decision.level) == ("reject", "ERROR")
    assert "does not follow the robot: j/position (misses it by" in report.decision.reason
    assert "sign" in report.decision.remedy
    assert report.decision.corrections == ()


def test_two_runs_on_the_same_recording_are_the_same_to_the_bit(tiny: Robot, frames: Frames, report: Report) -> None:
    again = run(tiny, prepare(tiny, [frames]), threads=2)
    assert again.decision == report.decision
    assert again.estimates == report.estimates
    np.testing.assert_array_equal(again.held.start_s, report.held.start_s)
    np.testing.assert_array_equal(again.predicted_after, report.predicted_after)


def test_windows_of_several_recordings_are_numbered_and_judged(tiny: Robot, frames: Frames) -> None:
    resting = replace(
        frames, measured=frames.measured[:1].repeat(len(frames), 0), command=0 * frames.command, name="rest"
    )
    prepared = prepare(tiny, [frames, resting, frames])
    assert set(prepared.windows.source) == {0, 2}
    usable = [g.verdict == "ok" for g in prepared.gates]
    assert sum(usable) == len(prepared.windows)
    assert len(prepared.gates) == 300


def test_too_few_windows_say_how_many_and_why(tiny: Robot, frames: Frames) -> None:
    short = r"^60 usable windows of 60, 12.0 s: too few to hold 4.8 s out .*; record about 4 s more of motion$"
    with pytest.raises(InputError, match=short):
        prepare(tiny, [frames.between(0.0, 60.2 * 0.2)])
    enough = prepare(tiny, [frames.between(0.0, 80.2 * 0.2)])
    assert len(enough.windows) == 80
    assert len(np.unique(enough.block[enough.held_at])) >= 4
    measured = frames.measured.copy()
    measured[:, 0] = np.nan
    with pytest.raises(
        InputError, match=r"0 usable windows of 100, .* about 16 s more .*; the first refused window at 0.000 s missing"
    ):
        prepare(tiny, [replace(frames, measured=measured)])
    with pytest.raises(InputError, match=r"0 usable windows of 0, 0.0 s: too few"):
        prepare(tiny, [])


def test_a_held_out_window_that_diverges_leaves_the_others_alone(tiny: Robot, windows_of: Any) -> None:
    windows: Windows = windows_of(tiny, tiny.parameters.nominal, 12, seed=3)
    found = identify(Replay(tiny), windows, tiny.parameters.z_nominal, test_structure=False)
    broken = replace(windows, qpos0=windows.qpos0.copy())
    broken.qpos0[4] = np.nan
    gap, predicted = cycle._held_out(Replay(tiny), broken, found.z, found)
    others = np.arange(12) != 4
    assert np.isnan(gap[4]).all()
    assert np.isnan(predicted[4]).all()
    expected, _ = cycle._held_out(Replay(tiny), windows.take(others), found.z, found)
    np.testing.assert_array_equal(gap[others], expected)
