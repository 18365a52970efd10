"""How many shards at a time this computer makes. It changes the time and the memory it takes, not the data."""

from __future__ import annotations

from pathlib import Path

from gapd.model.robot import Robot
from gaptrain.executor import Local
from gaptrain.settings import Training

# A shard at its largest, in multiples of its derivatives in double precision: they are there twice while windows are
# left out, once more in single precision. Beside it what a process takes that has loaded MuJoCo.
LARGEST = 3.0
PROCESS_BYTES = 200e6
# Of the memory that is free; the rest is for what else runs.
SHARE = 0.7


def local(robot: Robot, training: Training, shards: int, threads: int) -> Local:
    """Shards side by side, one thread each, as far as cores, shards and memory go; cores that are left help them.

    Side by side they also share what a shard does outside of MuJoCo, which one shard with many threads does on one.
    """
    room = SHARE * free_bytes() // shard_peak_bytes(robot, training)
    processes = max(1, int(min(threads, shards, room)))
    return Local(processes, threads // processes)


def shard_peak_bytes(robot: Robot, training: Training) -> float:
    """Memory of a process that makes a shard."""
    columns: int = len(robot.parameters) + 2 * robot.model.nv
    derivatives = 8 * training.shard_windows * robot.layout.knots * len(robot.layout.channels) * columns
    return LARGEST * derivatives + PROCESS_BYTES


def free_bytes(meminfo: Path = Path("/proc/meminfo")) -> float:
    """Memory that processes can take without swapping; plenty where the system does not say."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return float("inf")
    found = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return 1024.0 * found[0] if found else float("inf")
