"""After a correction: it stays where it is no worse, and goes where the old values replay better."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from gapd.live.trial_period import LENGTH, Return, TrialPeriod

Array = NDArray[np.float64]
NAMES = ("a/position", "b/position")


def played(ratio: float, seed: int, spread: float = 0.3) -> tuple[TrialPeriod, Return | None]:
    """A whole period in which the previous values replay with `ratio` of the new ones' squared gap."""
    rng = np.random.default_rng(seed)
    trial = TrialPeriod(np.array([1.5, 2.5]), np.array([1.0, 2.0]), 0.3, NAMES)
    while not trial.over:
        new = np.exp(spread * rng.normal(size=2))
        back = trial.add(new, ratio * new * np.exp(spread * rng.normal(size=2)))
        if back is not None:
            return trial, back
    return trial, None


@pytest.mark.parametrize("seed", range(5))
def test_values_that_got_worse_come_back_soon(seed: int) -> None:
    trial, back = played(0.3, seed)
    assert back is not None
    np.testing.assert_array_equal(back.z, [1.0, 2.0])
    np.testing.assert_array_equal(back.replaced, [1.5, 2.5])
    assert len(trial.gaps) <= LENGTH / 2


def test_a_correction_that_helps_or_does_nothing_stays() -> None:
    assert [played(ratio, seed)[1] for ratio in (1.0, 3.0) for seed in range(40)] == [None] * 80


def test_values_whose_replay_diverges_come_back() -> None:
    trial, back = TrialPeriod(np.ones(2), np.zeros(2), 0.3, NAMES), None
    for n in range(LENGTH):
        new = np.full(2, np.inf) if n % 2 else np.ones(2)
        back = back or trial.add(new, np.ones(2))
    assert back is not None


def test_a_period_ends() -> None:
    trial, _ = played(1.0, 1)
    assert len(trial.gaps) == LENGTH
