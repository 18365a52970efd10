"""Which tasks there are."""

from __future__ import annotations

from pathlib import Path

from gapd.errors import ConfigError, nearest
from gaptrain.tasks.air_hockey import AirHockey
from gaptrain.tasks.arm_task import ArmTask
from gaptrain.tasks.ball_drop import BallDrop
from gaptrain.tasks.cube_pose import CubePose

TASKS: dict[str, type[ArmTask]] = {task.name: task for task in (AirHockey, BallDrop, CubePose)}


def open_task(name: str, models: Path, threads: int = 2) -> ArmTask:
    """Open task NAME with its files in folder models/NAME; ConfigError where there is no such task."""
    if name not in TASKS:
        raise ConfigError(f"no task '{name}'{nearest(name, TASKS)}")
    return TASKS[name](models / name, threads)
