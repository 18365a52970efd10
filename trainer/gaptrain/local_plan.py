"""How many shards at a time this computer makes."""

from __future__ import annotations

from gapd.model.robot import Robot
from gaptrain.executor import Local
from gaptrain.settings import Training


def local(robot: Robot, training: Training, shards: int, threads: int) -> Local:
    """Shards in processes of one thread each, as many as there are cores to use and shards to make."""
    processes = max(1, min(threads, shards))
    return Local(processes, threads // processes)
