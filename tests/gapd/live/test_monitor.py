"""The drift test: it alarms as often as it says on a healthy robot, and soon on one that changed."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from gapd.live.monitor import DAY_S, Baseline, DriftTest, threshold

Array = NDArray[np.float64]
CHANNELS, WINDOW_S, SPREAD = 21, 0.3, 0.3


def gaps(rng: np.random.Generator, windows: int, shift: float = 0.0, channel: int = 3) -> Array:
    logs = SPREAD * rng.normal(size=(windows, CHANNELS))
    logs[:, channel] += shift
    return np.asarray(np.exp(logs))


def begun(rng: np.random.Generator, windows: int = 40, per_day: float = 1.0) -> DriftTest:
    return DriftTest(Baseline.of(gaps(rng, windows)), WINDOW_S, per_day)


@pytest.mark.parametrize("windows", [30, 60])
def test_a_healthy_robot_alarms_no_more_often_than_stated(windows: int) -> None:
    """Also where the baseline comes from few windows: 20 robots for a fortieth of a day, at 40 alarms per day each."""
    alarms = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        test = begun(rng, windows, per_day=40.0)
        for row in gaps(rng, int(DAY_S / WINDOW_S / 40)):
            alarms += test.update(row) is not None
    assert alarms <= 20


def test_the_threshold_is_that_of_the_average_run_length() -> None:
    """One sum of normal scores, its own baseline known: alarms as far apart as Siegmund's formula says."""
    rng, wanted = np.random.default_rng(1), 400.0
    limit, runs = threshold(wanted), []
    for _ in range(300):
        total, n = 0.0, 0
        while total <= limit:
            total, n = max(total + rng.normal() - 1.0, 0.0), n + 1
        runs.append(n)
    assert np.mean(runs) == pytest.approx(wanted, rel=0.2)


@pytest.mark.parametrize(("shift", "within"), [(0.9, 14), (2.0, 5), (6.0, 4)])
def test_a_change_is_seen_soon_and_placed_where_it_began(shift: float, within: int) -> None:
    rng = np.random.default_rng(2)
    test = begun(rng)
    for row in gaps(rng, 50):
        assert test.update(row) is None
    alarms = ((n, test.update(row)) for n, row in enumerate(gaps(rng, 40, shift), start=1))
    n, found = next((n, alarm) for n, alarm in alarms if alarm is not None)
    assert n <= within
    assert found.channel == 3
    assert abs(found.windows - n) <= 2


def test_one_wild_window_is_no_drift_and_a_diverged_one_counts_as_wild() -> None:
    rng = np.random.default_rng(3)
    test = begun(rng)
    wild = gaps(rng, 1)[0]
    wild[5] = np.inf
    assert test.update(wild) is None
    assert all(test.update(row) is None for row in gaps(rng, 30))
    assert any(test.update(wild) is not None for _ in range(4))


def test_an_absent_channel_says_nothing() -> None:
    rng = np.random.default_rng(4)
    healthy = gaps(rng, 40)
    healthy[:, 7] = np.nan
    test = DriftTest(Baseline.of(healthy), WINDOW_S, 1.0)
    for row in gaps(rng, 20):
        row[7] = 1e9
        assert test.update(row) is None


def test_a_window_that_diverged_does_not_blind_the_baseline() -> None:
    rng = np.random.default_rng(5)
    healthy = gaps(rng, 40)
    healthy[3] = np.inf
    test = DriftTest(Baseline.of(healthy), WINDOW_S, 1.0)
    assert any(test.update(row) is not None for row in gaps(rng, 20, shift=3.0))
