"""Recovery from an escalation: told when its cause is away for long enough, and not while it is there."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from gapd.live.monitor import Baseline
from gapd.live.recovery import LEAST_WINDOWS, QUIET_S, Recovery

Array = NDArray[np.float64]
WINDOW_S, SPREAD, NEEDED = 0.3, 0.4, 200


def gaps(rng: np.random.Generator, windows: int, shift: Array) -> Array:
    return np.asarray(np.exp(shift + SPREAD * rng.normal(size=(windows, len(shift)))))


HEALTHY, CAUSE = np.array([0.0, 1.0, np.nan]), np.array([1.5, 1.0, np.nan])


@pytest.fixture
def recovery() -> Recovery:
    rng = np.random.default_rng(0)
    return Recovery(Baseline.of(gaps(rng, 60, HEALTHY)), Baseline.of(gaps(rng, 60, CAUSE)), WINDOW_S)


def test_it_takes_as_long_as_a_task_may(recovery: Recovery) -> None:
    told = [recovery.update(g) for g in gaps(np.random.default_rng(1), NEEDED + 50, HEALTHY)]
    assert round(QUIET_S / WINDOW_S) == NEEDED
    assert told == [False] * (NEEDED - 1) + [True] * 51


@pytest.mark.parametrize("share", [1.0, 0.7])
def test_not_while_the_cause_is_there_even_if_it_does_not_show_in_every_window(
    recovery: Recovery, share: float
) -> None:
    rng = np.random.default_rng(2)
    shown = rng.random(3000)[:, None] < share
    assert not any(recovery.update(g) for g in np.where(shown, gaps(rng, 3000, CAUSE), gaps(rng, 3000, HEALTHY)))


def test_an_escalation_that_came_first_is_over_when_the_gap_has_fallen() -> None:
    rng = np.random.default_rng(5)
    recovery = Recovery(None, Baseline.of(gaps(rng, 60, CAUSE)), WINDOW_S)
    assert not any(recovery.update(g) for g in gaps(rng, 3000, CAUSE))
    assert any(recovery.update(g) for g in gaps(rng, NEEDED, CAUSE - 2 * SPREAD))


def test_a_replay_that_diverges_is_no_recovery(recovery: Recovery) -> None:
    rows = gaps(np.random.default_rng(3), NEEDED, HEALTHY)
    rows[7] = np.inf
    assert not any(recovery.update(g) for g in rows)


def test_a_gap_that_has_not_grown_has_nothing_to_recover_from() -> None:
    rng = np.random.default_rng(4)
    same = Baseline.of(gaps(rng, 60, HEALTHY))
    recovery = Recovery(same, same, 10.0)
    assert not any(recovery.update(g) for g in gaps(rng, 3 * LEAST_WINDOWS, HEALTHY))
