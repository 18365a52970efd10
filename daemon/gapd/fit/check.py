"""Check: is a candidate better than the current values on windows that no fit has seen? Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import sqrt
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gapd.fit.students_t import tail

Array = NDArray[np.float64]
Index = NDArray[np.intp]
Cause = Literal["", "diverged", "too_few", "not_better", "not_significant", "above_floor", "channel_worse"]

# Fewer windows or independent blocks tell improvement from luck only in hopeless cases.
MIN_WINDOWS = 8
MIN_BLOCKS = 4
# An accepted candidate takes this share of the squared gap away: less is not worth a new simulator.
LEAST_IMPROVEMENT = 0.05
# An accepted candidate comes this close to the commissioned floor, as a ratio of RMS gaps.
FLOOR_FACTOR = 1.5
# More held-out windows than this share in which both replays diverge are no basis for a verdict.
LOST_SHARE = 0.1
# A channel is clearly worse if its gap² grows by this share, at this significance, and ends above its floor.
WORSE_SHARE = 0.10
WORSE_ALPHA = 0.01
# Added to gap² (in floors²) before logarithms: far below anything that noise lets one see.
TINY = 1e-6
DAY_S = 86400.0


def blocks_of(start_s: Array, source: Index, block_s: float) -> Index:
    """Block number (W,) of each window: one block is a stretch of block_s seconds of one source.

    Windows of one block are not independent; blocks are treated as if they were.
    """
    number = np.zeros(len(start_s), np.intp)
    for recording in np.unique(source):
        mine = source == recording
        # A start on a block's edge must not fall to either side by rounding.
        number[mine] = np.floor((start_s[mine] - start_s[mine].min()) / block_s + 1e-6)
    return np.unique(np.stack([source, number]), axis=1, return_inverse=True)[1].reshape(-1).astype(np.intp)


def split_blocks(
    start_s: Array, source: Index, block_s: float, guard_s: float, held_share: float, seed: int
) -> tuple[Index, Index]:
    """Windows to fit and windows held out: ascending indices, from starts (W,) and recordings (W,).

    Whole time blocks are held out, about held_share of all windows. With several recordings one is held out
    as a whole where it is small enough: a motion that the fit has not seen. The others give blocks in turn
    and keep at least half. Windows to fit that start within guard_s of a held-out one are dropped; one
    window length drops the neighbours.
    """
    rng = np.random.default_rng(seed)
    target = held_share * len(start_s)
    held = np.zeros(len(start_s), bool)
    recordings, counts = np.unique(source, return_counts=True)
    small = recordings[counts <= target] if len(recordings) > 1 else recordings[:0]
    if len(small):
        held |= source == rng.choice(small)
    queue = {
        int(r): _shuffled_blocks(start_s, source == r, block_s, held_share, rng)
        for r in rng.permutation(recordings)
        if not held[source == r].any()
    }
    while held.sum() < target and queue:
        for recording, blocks in list(queue.items()):
            rows = blocks.pop()
            mine = source == recording
            if held.sum() < target and held[mine].sum() + len(rows) <= mine.sum() / 2:
                held[rows] = True
            if not blocks:
                del queue[recording]
    return np.flatnonzero(~held & ~_near(start_s, source, held, guard_s)), np.flatnonzero(held)


def _shuffled_blocks(
    start_s: Array, mine: NDArray[np.bool_], block_s: float, held_share: float, rng: np.random.Generator
) -> list[Index]:
    """Rows of each block of one recording, in random order. A short recording has shorter blocks."""
    rows = np.flatnonzero(mine)
    span = float(np.ptp(start_s[rows]))
    number = blocks_of(start_s[rows], np.zeros(len(rows), np.intp), max(min(block_s, held_share * span), 1e-9))
    return [rows[number == n] for n in rng.permutation(np.unique(number))]


def _near(start_s: Array, source: Index, held: NDArray[np.bool_], guard_s: float) -> NDArray[np.bool_]:
    """Windows (W,) that start within guard_s of a held-out window of their recording."""
    near = np.zeros(len(start_s), bool)
    for recording in np.unique(source):
        mine = np.flatnonzero(source == recording)
        taken = np.sort(start_s[mine[held[mine]]])
        if len(taken):
            place = np.searchsorted(taken, start_s[mine])
            before = start_s[mine] - taken[np.maximum(place - 1, 0)]
            after = taken[np.minimum(place, len(taken) - 1)] - start_s[mine]
            near[mine] = np.minimum(np.abs(before), np.abs(after)) <= guard_s * (1 + 1e-6)
    return near


@dataclass(frozen=True)
class Check:
    """Verdict on a candidate. Gaps are RMS; per channel (C,) in units of noise, NaN where absent."""

    verdict: Literal["accepted", "rejected"]
    cause: Cause
    reason: str
    remedy: str
    gap_before: float  # over channels and windows, in units of noise
    gap_after: float
    floors_before: float  # the same in units of the commissioned floor; of noise where there is none
    floors_after: float
    commissioned: bool  # whether there is a commissioned floor
    channel_before: Array = field(repr=False)
    channel_after: Array = field(repr=False)
    windows: int
    p_value: float
    channels: tuple[str, ...]

    @property
    def improvement(self) -> float:
        """Share of the squared gap (in floors) that the candidate takes away."""
        return 1.0 - (self.floors_after / self.floors_before) ** 2 if self.floors_before > 0 else 0.0


def check(
    current_gap2: Array,
    candidate_gap2: Array,
    floor: Array | None,
    alpha: float,
    *,
    block: Index,
    window_s: float,
    channels: tuple[str, ...],
) -> Check:
    """Check a candidate on H held-out windows.

    current_gap2, candidate_gap2 (H, C): mean squared gap in units of noise, NaN where nothing was measured or
    the replay diverged. floor (C,): commissioned RMS gap in units of noise, NaN for a channel without one, None
    before commissioning.
    alpha: tolerated probability of accepting a candidate that is no better. block (H,): windows of one block
    count as one observation. window_s, channels: for the remedies.
    """
    both = np.isfinite(current_gap2) & np.isfinite(candidate_gap2)
    seen = both.any(axis=1)
    before, after = (np.where(both, g, np.nan) for g in (current_gap2, candidate_gap2))
    scale = 1.0 if floor is None else _scale(floor, before, after)
    result = Check(
        "rejected", "", "", "",
        _rms(before), _rms(after), _rms(before / scale), _rms(after / scale),
        floor is not None, _channel_rms(before), _channel_rms(after), int(seen.sum()), 1.0, channels,
    )  # fmt: skip
    count = len(np.unique(block[seen]))
    diverged = np.isfinite(current_gap2) & ~np.isfinite(candidate_gap2)
    if diverged.any():
        number = int(diverged.any(axis=1).sum())
        reason = f"replay with the candidate diverges in {number} of {len(block)} held-out windows"
        return replace(result, cause="diverged", reason=reason, remedy="keep the current values; widen no bounds")
    lost = len(block) - int(np.isfinite(candidate_gap2).any(axis=1).sum())
    if lost > LOST_SHARE * len(block):
        reason = f"the replay diverges in {lost} of {len(block)} held-out windows"
        return replace(
            result, cause="diverged", reason=reason, remedy="look for spikes in commands and positions there"
        )
    if result.windows < MIN_WINDOWS or count < MIN_BLOCKS:
        return _too_few(result, count, window_s)
    ratio = _log_ratio(before / scale, after / scale, block)
    result = replace(result, p_value=_one_sided(ratio))
    judged = (
        _not_better(result),
        _not_significant(result, ratio, alpha, window_s),
        _channel_worse(before / scale, after / scale, block, channels),
        _above_floor(result),
    )
    for found in judged:
        if found is not None:
            cause, reason, remedy = found
            return replace(result, cause=cause, reason=reason, remedy=remedy)
    return replace(result, verdict="accepted", reason=f"{100 * result.improvement:.0f} % of the squared gap is gone")


def _scale(floor: Array, before: Array, after: Array) -> Array:
    """Squared floor (C,), from squared gaps (H, C). A channel without one counts in what it is left with at best."""
    own = np.maximum(np.fmin(_channel_rms(before), _channel_rms(after)), 1.0)
    return np.asarray(np.where(np.isfinite(floor) & (floor > 0), floor, own) ** 2)


Rejection = tuple[Cause, str, str] | None


def _too_few(result: Check, count: int, window_s: float) -> Check:
    per_block = max(result.windows / count, 1.0) if count else 1.0
    more = max(MIN_WINDOWS - result.windows, round((MIN_BLOCKS - count) * per_block))
    reason = f"{result.windows} held-out windows in {count} blocks, {MIN_WINDOWS} in {MIN_BLOCKS} are needed"
    return replace(result, cause="too_few", reason=reason, remedy=f"record {more * window_s:.1f} s more of motion")


def _not_better(result: Check) -> Rejection:
    if result.improvement >= LEAST_IMPROVEMENT:
        return None
    reason = (
        f"the candidate changes the squared gap by {-100 * result.improvement:+.1f} %, "
        f"at least {-100 * LEAST_IMPROVEMENT:+.0f} % is required"
    )
    return "not_better", reason, "keep the current values"


def _not_significant(result: Check, ratio: Array, alpha: float, window_s: float) -> Rejection:
    if result.p_value <= alpha:
        return None
    reason = f"better with p = {result.p_value:.2g}, {alpha:.2g} is required"
    mean, sd = float(ratio.mean()), float(ratio.std(ddof=1))
    if mean <= 0:
        return "not_significant", reason, "keep the current values: most held-out blocks get worse"
    needed = (NormalDist().inv_cdf(1 - max(min(alpha, 0.5), 1e-12)) * sd / mean) ** 2
    blocks = max(needed - len(ratio), 1.0)
    more = blocks * result.windows / len(ratio) * window_s
    return "not_significant", reason, f"record about {more:.0f} s more of such motion"


def _above_floor(result: Check) -> Rejection:
    if not result.commissioned or result.floors_after <= FLOOR_FACTOR:
        return None
    left = f"{result.floors_after:.3g} commissioned floors"
    reason = f"the candidate still leaves {left}, {FLOOR_FACTOR:g} is allowed"
    return "above_floor", reason, "look for what no parameter expresses: load, contact, backlash, a bent link"


def _channel_worse(before: Array, after: Array, block: Index, names: tuple[str, ...]) -> Rejection:
    """The worst channel among those that are clearly worse; gaps² (H, C) in floors²."""
    largest, worst = 0.0, None
    for channel, name in enumerate(names):
        ratio = _log_ratio(after[:, [channel]], before[:, [channel]], block)
        if len(ratio) < MIN_BLOCKS or _one_sided(ratio) >= WORSE_ALPHA:
            continue
        old, new = float(np.nanmean(before[:, channel])), float(np.nanmean(after[:, channel]))
        growth = (new + TINY) / (old + TINY) - 1.0
        if growth > max(WORSE_SHARE, largest) and new > 1.0:
            largest = growth
            worst = f"{name} gets worse, gap {sqrt(old):.3g} -> {sqrt(new):.3g} floors", name
    if worst is None:
        return None
    return "channel_worse", worst[0], f"check unit, noise and time stamps of {worst[1]}"


def _rms(gap2: Array) -> float:
    """RMS gap: mean over the channels of each window, then over windows."""
    rows = gap2[np.isfinite(gap2).any(axis=1)]
    return float(np.sqrt(np.mean(np.nanmean(rows, axis=1)))) if len(rows) else np.nan


def _channel_rms(gap2: Array) -> Array:
    count = np.isfinite(gap2).sum(axis=0)
    total = np.where(count > 0, np.nansum(gap2, axis=0), np.nan)
    return np.asarray(np.sqrt(total / np.maximum(count, 1)))


def _log_ratio(worse: Array, better: Array, block: Index) -> Array:
    """Log ratio (B,) of the mean squared gaps of each block: a loud block weighs as much as a quiet one."""
    seen = np.isfinite(worse).any(axis=1)
    ids, member = np.unique(block[seen], return_inverse=True)
    sums = [np.bincount(member, np.nanmean(g[seen], axis=1), len(ids)) for g in (worse, better)]
    size = np.bincount(member, minlength=len(ids))
    return np.asarray(np.log((sums[0] / size + TINY) / (sums[1] / size + TINY)))


def _one_sided(values: Array) -> float:
    """Probability of so large a mean (B,) if the true mean is zero: one-sided t test."""
    mean, sd = float(values.mean()), float(values.std(ddof=1))
    if sd == 0:
        return 0.0 if mean > 0 else 1.0
    return tail(mean / sd * sqrt(len(values)), len(values) - 1)


@dataclass(frozen=True)
class ErrorBudget:
    """Probability of false corrections, spent over time: their expected number stays below 1 in any 24 h.

    A bucket holds `full` and refills within a day; each candidate spends a share of what is there. In any
    24 h at most the bucket and one refill are spent, which is 2 x full.
    """

    full: float = 0.5
    share: float = 0.02
    available: float = 0.5
    updated_s: float = 0.0

    def spend(self, now_s: float) -> tuple[float, ErrorBudget]:
        """Significance level for a candidate that is checked at now_s (s, monotonic), and what is left."""
        passed = max(now_s - self.updated_s, 0.0)
        available = min(self.available + self.full * passed / DAY_S, self.full)
        alpha = self.share * available
        # A robot's clock may begin anew: what it says now is what the next refill counts from.
        return alpha, replace(self, available=available - alpha, updated_s=now_s)
