"""The life of the tiny robot, lived once for all tests of the keeper."""

from __future__ import annotations

from typing import Any

import pytest
from keeper_life import HIDDEN, LATER, SETTINGS, lived, windows_of_frames

from gapd.live.events import Event
from gapd.live.keeper import Keeper
from gapd.measured.windows import Windows
from gapd.model.robot import Robot


@pytest.fixture(scope="session")
def scenes(tiny: Robot, recorded: Any) -> list[list[Windows]]:
    """Twice the hidden robot, then the same with three times the friction: 30 s each, one clock."""
    nominal = tiny.parameters.nominal
    parts = [(HIDDEN, 1), (HIDDEN, 2), (LATER, 3)]
    return [
        windows_of_frames(tiny, recorded(tiny, nominal * factor, 30.0, seed).frames, 30.0 * n)
        for n, (factor, seed) in enumerate(parts)
    ]


@pytest.fixture(scope="session")
def commissioned(tiny: Robot, scenes: list[list[Windows]]) -> tuple[Keeper, list[Event]]:
    keeper = Keeper(tiny, SETTINGS)
    return keeper, lived(keeper, scenes[0])
