"""After a correction: it stays where it is no worse, and goes where the old values replay better."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from gapd.fit.check import Check
from gapd.live.memory import Memory
from gapd.live.trial_period import LENGTH, TrialPeriod
from gapd.measured.windows import Windows
from gapd.model.robot import Robot

Array = NDArray[np.float64]
WINDOW_S = 0.3


@pytest.fixture
def trial(tiny: Robot) -> TrialPeriod:
    return begun(tiny)


def begun(robot: Robot) -> TrialPeriod:
    return TrialPeriod(robot, Memory(tuple(robot.parameters.z_nominal.tolist())))


def add(trial: TrialPeriod, start_s: float, new: Array, previous: Array) -> None:
    empty = np.empty((1, 0))
    window = Windows(np.array([start_s]), *[empty] * 6, np.zeros(1, np.intp))
    trial.comparison.add(window, new, previous)


def played(trial: TrialPeriod, ratio: float, seed: int, spread: float = 0.3) -> Check | None:
    """A whole period in which the previous values replay with `ratio` of the new ones' squared gap."""
    rng = np.random.default_rng(seed)
    while not trial.over:
        new = np.exp(spread * rng.normal(size=3))
        add(trial, WINDOW_S * len(trial.comparison), new, ratio * new * np.exp(spread * rng.normal(size=3)))
        found = trial.verdict()
        if found is not None:
            return found
    return None


@pytest.mark.parametrize("seed", range(5))
def test_values_that_got_worse_come_back_soon(tiny: Robot, trial: TrialPeriod, seed: int) -> None:
    found = played(trial, 0.3, seed)
    assert found is not None
    assert found.gap_after < found.gap_before
    np.testing.assert_array_equal(trial.comparison.z, tiny.parameters.z_nominal)
    assert len(trial.comparison) <= LENGTH / 2


def test_a_correction_that_helps_or_does_nothing_stays(tiny: Robot) -> None:
    assert [played(begun(tiny), ratio, seed) for ratio in (1.0, 3.0) for seed in range(40)] == [None] * 80


def test_values_whose_replay_diverges_come_back(trial: TrialPeriod) -> None:
    found = None
    for n in range(LENGTH):
        add(trial, WINDOW_S * n, np.full(3, np.inf) if n % 2 else np.ones(3), np.ones(3))
        found = found or trial.verdict()
    assert found is not None


def test_a_hole_in_time_parts_blocks(trial: TrialPeriod) -> None:
    for start_s in (0.0, 0.3, 0.6, 50.0, 50.3):
        add(trial, start_s, np.ones(3), np.ones(3))
    np.testing.assert_array_equal(trial.comparison.blocks, [0, 0, 0, 1, 1])


def test_a_period_ends(trial: TrialPeriod) -> None:
    played(trial, 1.0, 1)
    assert len(trial.comparison) == LENGTH
