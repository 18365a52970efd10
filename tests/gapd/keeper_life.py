"""A keeper's life: windows of a robot that changes, and fits that are made at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gapd.fit.cycle import run
from gapd.live.events import Decided, Event
from gapd.live.keeper import Keeper
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


def again(tiny: Robot, keeper: Keeper) -> Keeper:
    """The same after a restart."""
    return Keeper(tiny, SETTINGS, keeper.memory)


def stop(robot: Robot) -> Structure:
    """A soft stop on one side of joint j."""
    dof = int(robot.model.joint("j").dofadr[0])

    def bind(sims: Any) -> Any:
        position, force = sims.bind("qpos"), sims.bind("qfrc_applied")

        def apply() -> None:
            force[:, dof] = -3.0 * np.maximum(position[:, dof] - 0.2, 0.0)

        return apply

    return bind
