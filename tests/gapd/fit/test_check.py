"""Held-out acceptance: who is held out, who is accepted, and how often luck is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

import gapd.fit.check
from gapd.fit.check import DAY_S, Check, ErrorBudget, blocks_of, split_blocks

Array = NDArray[np.float64]
NAMES = ("a/position", "b/position", "a/velocity")


def check(
    current: Array, candidate: Array, floor: Array | None, alpha: float, block: Any = None, window_s: float = 1.0
) -> Check:
    """The check, each window a block of its own unless said."""
    block = np.arange(len(current)) if block is None else block
    names = NAMES[: current.shape[1]]
    return gapd.fit.check.check(current, candidate, floor, alpha, block=block, window_s=window_s, channels=names)


def starts_of(*counts: int) -> tuple[Array, NDArray[np.intp]]:
    """Back-to-back windows of 0.3 s, so many in each recording."""
    start = np.concatenate([np.arange(n) * 0.3 for n in counts])
    return start, np.repeat(np.arange(len(counts)), counts)


@pytest.mark.parametrize("counts", [(80,), (40, 40), (20, 20, 20, 20), (90, 10), (100, 3, 5)])
@pytest.mark.parametrize("seed", range(5))
def test_split_holds_out_whole_blocks_behind_a_guard(counts: tuple[int, ...], seed: int) -> None:
    start, source = starts_of(*counts)
    fit, held = split_blocks(start, source, block_s=1.5, guard_s=0.3, held_share=0.25, seed=seed)
    assert not set(fit) & set(held)
    assert len(fit) >= len(start) / 2
    assert 0.15 <= len(held) / len(start) <= 0.35
    for recording in range(len(counts)):
        a, b = (start[i[source[i] == recording]] for i in (fit, held))
        if len(a) and len(b):
            assert np.abs(a[:, None] - b[None, :]).min() > 0.3 + 1e-9
    # Every window is fitted, held out, or within the guard of a held-out one.
    for i in set(range(len(start))) - set(fit) - set(held):
        mine = held[source[held] == source[i]]
        assert np.abs(start[mine] - start[i]).min() <= 0.3 + 1e-9


def test_split_of_one_recording_takes_whole_blocks() -> None:
    start, source = starts_of(80)
    _, held = split_blocks(start, source, 1.5, 0.3, 0.25, seed=1)
    numbers = blocks_of(start, source, 1.5)
    for number in np.unique(numbers[held]):
        assert set(np.flatnonzero(numbers == number)) <= set(held)
    assert len(np.unique(numbers[held])) == 4


@pytest.mark.parametrize("seed", range(10))
def test_split_prefers_a_motion_that_is_not_fitted(seed: int) -> None:
    start, source = starts_of(20, 20, 20, 20, 20, 20)
    fit, held = split_blocks(start, source, 1.5, 0.3, 0.3, seed)
    unseen = set(source[held]) - set(source[fit])
    assert len(unseen) == 1
    assert (source[held] == unseen.pop()).sum() == 20
    assert len(set(source[fit])) == 5
    assert len(set(source[held])) >= 3  # blocks of others as well


def test_split_is_reproducible_and_seeded() -> None:
    start, source = starts_of(40, 40)
    first, again, other = (split_blocks(start, source, 1.5, 0.3, 0.3, s)[1] for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert set(first) != set(other)


def test_split_of_a_short_recording_still_holds_something_out() -> None:
    start, source = starts_of(12)
    fit, held = split_blocks(start, source, 10.0, 0.3, 0.25, seed=0)
    assert len(held) >= 2
    assert len(fit) >= 6


@pytest.mark.parametrize("count", [0, 1])
def test_split_of_nothing(count: int) -> None:
    start, source = starts_of(count)
    fit, held = split_blocks(start, source, 1.5, 0.3, 0.25, seed=0)
    assert (len(fit), len(held)) == (count, 0)


def test_blocks_do_not_cross_recordings_or_shift_by_rounding() -> None:
    start, source = starts_of(10, 5)
    np.testing.assert_array_equal(blocks_of(start, source, 0.9), [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 4, 4, 4, 5, 5])
    np.testing.assert_array_equal(blocks_of(start + 1e9, source, 0.9), blocks_of(start, source, 0.9))


def gaps(rng: np.random.Generator, windows: int, level: float = 1.0, knots: int = 30) -> Array:
    """Mean squared gaps (H, 3) of windows whose true gap² is `level`."""
    return level * rng.chisquare(knots, (windows, 3)) / knots


def paired(seed: int, better: float, windows: int = 24, level: float = 1.0) -> tuple[Array, Array]:
    """Gaps of current values and of a candidate with `better` times their squared gap."""
    rng = np.random.default_rng(seed)
    common = gaps(rng, windows, level)
    return common, common * better * np.exp(0.05 * rng.normal(size=common.shape))


def test_clear_improvement_is_accepted() -> None:
    current, candidate = paired(1, 0.1, level=9.0)
    result = check(current, candidate, np.ones(3), 0.01)
    assert (result.verdict, result.cause, result.remedy) == ("accepted", "", "")
    assert result.gap_before == pytest.approx(np.sqrt(current.mean()))
    assert result.gap_after == pytest.approx(np.sqrt(candidate.mean()))
    np.testing.assert_allclose(result.channel_before, np.sqrt(current.mean(axis=0)))
    np.testing.assert_allclose(result.channel_after, np.sqrt(candidate.mean(axis=0)))
    assert result.improvement == pytest.approx(1 - candidate.mean() / current.mean())
    assert result.windows == 24
    assert result.p_value < 1e-6
    assert result.reason == f"{100 * result.improvement:.0f} % of the squared gap is gone"


def test_gaps_are_also_given_in_commissioned_floors() -> None:
    current, candidate = np.full((24, 2), [16.0, 400.0]), np.full((24, 2), [4.0, 100.0])
    result = check(current, candidate, np.array([2.0, 10.0]), 0.01)
    assert (result.floors_before, result.floors_after, result.commissioned) == (2.0, 1.0, True)
    assert result.gap_before == pytest.approx(np.sqrt(208))
    bare = check(current, candidate, None, 0.01)
    assert (bare.floors_before, bare.commissioned) == (bare.gap_before, False)


def test_a_channel_without_a_floor_counts_in_what_it_is_left_with() -> None:
    """It neither lifts a candidate over the floor nor hides that it gets worse."""
    current, candidate = paired(1, 1.0)
    current[:, 0], candidate[:, 0] = 16.0 * current[:, 0], 9.0 * candidate[:, 0]
    floor = np.array([np.nan, 1.0, 1.0])
    result = check(current, candidate, floor, 0.01)
    left = float(np.sqrt(np.mean(candidate[:, 0])))
    known = check(current, candidate, np.array([left, 1.0, 1.0]), 0.01)
    assert result.floors_after == pytest.approx(known.floors_after)
    assert result.verdict == known.verdict == "accepted"
    worse = check(candidate, current, floor, 0.01)
    assert worse.verdict == "rejected"


def test_improvement_of_less_than_five_percent_is_rejected() -> None:
    current, _ = paired(1, 1.0)
    result = check(current, current * 0.96, None, 0.01)
    assert (result.verdict, result.cause) == ("rejected", "not_better")
    assert result.reason == "the candidate changes the squared gap by -4.0 %, at least -5 % is required"
    assert check(current, current * 0.94, None, 0.01).verdict == "accepted"


def test_worse_candidate_is_rejected() -> None:
    current, candidate = paired(2, 1.5)
    assert check(current, candidate, None, 0.01).cause == "not_better"


def test_one_lucky_window_is_not_significant() -> None:
    current, candidate = paired(3, 1.01)
    current[5] = 500.0
    result = check(current, candidate, None, 0.01)
    assert result.improvement > 0.5
    assert (result.verdict, result.cause) == ("rejected", "not_significant")


def test_not_significant_says_how_much_more_motion() -> None:
    rng = np.random.default_rng(5)
    current = gaps(rng, 12)
    noise = rng.normal(size=(12, 1))
    ratio = 0.12 + 0.25 * (noise - noise.mean()) / noise.std(ddof=1)
    result = check(current, current * np.exp(-ratio), None, 0.001, window_s=0.3)
    assert result.cause == "not_significant"
    # Needed: (3.09 x 0.25 / 0.12)² = 41.5 windows, 29.5 more of 0.3 s each.
    assert result.remedy == "record about 9 s more of such motion"


def test_windows_of_one_block_count_once() -> None:
    """Four independent blocks are not 80 observations."""
    rng = np.random.default_rng(1)
    block = np.repeat(np.arange(4), 20)
    ratio = np.array([0.3, -0.1, 0.4, 0.05])[block, None]
    current = gaps(rng, 80)
    assert check(current, current * np.exp(-ratio), None, 0.01).verdict == "accepted"
    honest = check(current, current * np.exp(-ratio), None, 0.01, block=block)
    assert honest.cause == "not_significant"
    assert honest.p_value == pytest.approx(stats.ttest_1samp([0.3, -0.1, 0.4, 0.05], 0, alternative="greater").pvalue)


@pytest.mark.parametrize(("windows", "per_block", "seconds"), [(5, 1, "0.9"), (12, 4, "1.2"), (0, 1, "2.4")])
def test_too_few_windows_say_how_many_seconds_more(windows: int, per_block: int, seconds: str) -> None:
    current, candidate = paired(1, 0.1, max(windows, 1))
    current, candidate = current[:windows], candidate[:windows]
    result = check(current, candidate, None, 0.01, block=np.arange(windows) // per_block, window_s=0.3)
    assert (result.verdict, result.cause) == ("rejected", "too_few")
    assert result.remedy == f"record {seconds} s more of motion"
    assert result.reason.startswith(f"{windows} held-out windows in {-(-windows // per_block)} blocks")


def test_far_from_the_commissioned_floor_is_rejected() -> None:
    """From 121 to 16 floors any improvement test passes."""
    current, candidate = np.full((20, 3), 121.0**2), np.full((20, 3), 16.0**2)
    candidate *= np.random.default_rng(0).uniform(0.9, 1.1, (20, 1))
    result = check(current, candidate, np.ones(3), 0.01)
    assert (result.verdict, result.cause) == ("rejected", "above_floor")
    assert result.reason == "the candidate still leaves 16 commissioned floors, 1.5 is allowed"
    assert check(current, candidate, None, 0.01).verdict == "accepted"
    assert check(current, candidate, np.full(3, 12.0), 0.01).verdict == "accepted"


def test_channel_that_gets_clearly_worse_is_named() -> None:
    current, candidate = paired(1, 0.2, level=9.0)
    current[:, 2], candidate[:, 2] = current[:, 2] / 9, current[:, 2] / 6
    result = check(current, candidate, None, 0.01)
    assert (result.verdict, result.cause) == ("rejected", "channel_worse")
    before, after = (np.sqrt(g[:, 2].mean()) for g in (current, candidate))
    assert result.reason == f"a/velocity gets worse, gap {before:.3g} -> {after:.3g} floors"
    assert result.remedy == "check unit, noise and time stamps of a/velocity"


@pytest.mark.parametrize(("factor", "verdict"), [(1.08, "accepted"), (1.3, "rejected")])
def test_channel_may_get_worse_within_the_margin(factor: float, verdict: str) -> None:
    current, candidate = paired(1, 0.2, level=9.0)
    candidate[:, 1] = current[:, 1] * factor
    assert check(current, candidate, None, 0.01).verdict == verdict


def test_channel_below_its_floor_may_get_worse() -> None:
    current, candidate = paired(1, 0.2, level=9.0)
    current[:, 1], candidate[:, 1] = current[:, 1] / 9 * 0.2, current[:, 1] / 9 * 0.4
    assert check(current, candidate, None, 0.01).verdict == "accepted"


def test_absent_channels_are_left_out() -> None:
    current, candidate = paired(1, 0.1, level=9.0)
    current[:, 1] = candidate[:, 1] = np.nan
    current[:2] = candidate[:2] = np.nan
    result = check(current, candidate, np.array([1.0, np.nan, 1.0]), 0.01)
    assert (result.verdict, result.windows) == ("accepted", 22)
    assert np.isnan(result.channel_before[1])
    assert result.gap_before == pytest.approx(np.sqrt(current[2:, [0, 2]].mean()))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_candidate_whose_replay_diverges_is_rejected(bad: float) -> None:
    current, candidate = paired(1, 0.1, level=9.0)
    candidate[3:5] = bad
    result = check(current, candidate, None, 0.01)
    assert (result.verdict, result.cause) == ("rejected", "diverged")
    assert "diverges in 2 of 24 held-out windows" in result.reason


def test_windows_in_which_the_current_values_diverge_prove_nothing() -> None:
    current, candidate = paired(1, 1.0)
    current[:10] = np.nan
    result = check(current, candidate, None, 0.01)
    assert (result.cause, result.windows) == ("not_better", 14)


def test_windows_in_which_both_replays_diverge_are_not_passed_over() -> None:
    current, candidate = paired(1, 0.5)
    current[:2], candidate[:2] = np.nan, np.nan
    assert check(current, candidate, None, 0.01).verdict == "accepted"
    current[:5], candidate[:5] = np.nan, np.nan
    result = check(current, candidate, None, 0.01)
    assert (result.verdict, result.cause) == ("rejected", "diverged")
    assert "diverges in 5 of 24 held-out windows" in result.reason


@pytest.mark.parametrize(("alpha", "within"), [(0.05, 0.07), (0.01, 0.02)])
def test_false_acceptance_stays_below_alpha(alpha: float, within: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates that are no better, with blocks that differ: accepted by luck at most as often as stated."""
    monkeypatch.setattr(gapd.fit.check, "LEAST_IMPROVEMENT", 0.0)
    rng = np.random.default_rng(7)
    block = np.repeat(np.arange(8), 4)
    accepted = 0
    for _ in range(700):
        luck = 0.2 * rng.normal(size=(8, 1))[block] + 0.05 * rng.normal(size=(32, 3))
        current = gaps(rng, 32)
        accepted += check(current, current * np.exp(luck), None, alpha, block=block).verdict == "accepted"
    assert accepted / 700 <= within
    assert accepted > 0  # the test is not vacuous


@pytest.mark.parametrize("every_s", [1.0, 60.0, 3600.0, 20000.0])
def test_budget_stays_below_one_false_correction_in_any_day(every_s: float) -> None:
    budget, now = ErrorBudget(), 1000.0
    times: list[float] = []
    alphas: list[float] = []
    while now < 3 * DAY_S and len(times) < 20000:
        alpha, budget = budget.spend(now)
        times.append(now)
        alphas.append(alpha)
        now += every_s
    spent = np.concatenate([[0.0], np.cumsum(alphas)])
    until = np.searchsorted(times, np.array(times) + DAY_S)
    assert (spent[until] - spent[: len(times)]).max() <= 1.0
    assert min(alphas) > 0
    assert alphas[0] == pytest.approx(0.01)


def test_budget_recovers_with_time_and_never_by_going_back() -> None:
    budget = ErrorBudget()
    for _ in range(300):
        _, budget = budget.spend(5000.0)
    assert budget.spend(5000.0)[0] < 1e-4
    assert budget.spend(4000.0)[0] < 1e-4
    assert budget.spend(5000.0 + DAY_S)[0] == pytest.approx(0.01)


def test_a_budget_goes_on_after_the_clock_has_begun_anew() -> None:
    _, spent = ErrorBudget(available=0.01, updated_s=1e9).spend(10.0)
    alpha, _ = spent.spend(10.0 + DAY_S)
    assert alpha > 0.005
