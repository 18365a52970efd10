"""Simulated steps in a second of data generation, beside a bare mujoco.batch loop that does nothing but step.

    make bench && .venv/bin/python benchmarks/throughput.py --quick    about 6 minutes on 2 idle cores
    .venv/bin/python benchmarks/throughput.py                          about 30 minutes, an estimate

Both take turns in one run: with the same model, so many simulations at a time, and the same cores. Data generation
simulates recordings, replays them, and replays them once more for each derivative; it also writes the shards. The bare
loop steps such windows, each with its own parameters, under their commands, and keeps nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np
from mujoco import batch
from tables import RESULTS, write_table
from throughput_models import arm_with, shards

from gapd.model.robot import Robot, open_robot
from gaptrain import dataset
from gaptrain.draws import WINDOWS_PER_MOTION, draw_replay_parameters, draw_windows
from gaptrain.executor import Local
from gaptrain.settings import Training, load_training
from gaptrain.shards import read_shard
from gaptrain.simulate import WARM_UP_S

CORES = 2
HEAD = ("parameters", "shards of", "made by", "steps/s, generation", "steps/s, bare loop", "ratio", "ratio of CPU time")
MEMORY_HEAD = ("shards", "driver, peak MB", "largest worker, peak MB")


@dataclass(frozen=True)
class Case:
    """One row: arm7 with so many parameters, so many shards of so many windows."""

    parameters: int
    windows: int
    shards: int
    processes: int
    threads: int


@dataclass(frozen=True)
class Pace:
    """Simulated steps in a second of wall time, and of CPU time of this process and its children."""

    wall: float
    cpu: float


def cpu_s() -> float:
    """CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def pace(work: Callable[[], int]) -> Pace:
    """Time work that gives its simulated steps."""
    wall, cpu = time.perf_counter(), cpu_s()
    steps = work()
    return Pace(steps / (time.perf_counter() - wall), steps / (cpu_s() - cpu))


def generation(robot: Robot, training: Training, case: Case) -> int:
    """Make all shards anew; return the simulated steps in what was kept."""
    folder = dataset.data_folder(robot, training)
    shutil.rmtree(folder, ignore_errors=True)
    dataset.generate(robot, training, executor=Local(case.processes, case.threads))
    return sum(steps_of(robot, len(read_shard(p)), case.windows) for p in folder.glob("*.npz"))


def steps_of(robot: Robot, kept: int, windows: int) -> int:
    """Simulated steps of one shard: its recordings, and for each kept window its replay and those of derivatives."""
    layout = robot.layout
    recording = round(WARM_UP_S / layout.step_s) + WINDOWS_PER_MOTION * layout.steps + 1
    replays = kept * (1 + len(robot.parameters) + 2 * robot.model.nv)
    return -(-windows // WINDOWS_PER_MOTION) * recording + replays * (layout.steps + 1)


class BareLoop:
    """mujoco.batch and nothing else: as many windows as in a shard, drawn likewise, stepped again and again."""

    def __init__(self, robot: Robot, training: Training) -> None:
        """Draw the windows."""
        rng = np.random.default_rng(training.seed)
        self.windows, z = draw_windows(robot, training, rng, training.shard_windows)
        self.sims = batch.Batch(robot.model, len(self.windows), CORES)
        self.rest = self.sims.state[0].copy()
        physical = robot.parameters.to_physical(draw_replay_parameters(robot, rng, z))
        for cells in robot.binding.cells:
            field = self.sims.expand(cells.field).reshape(self.sims.nsim, -1)
            field[:, cells.flat] = robot.binding.values(cells, physical, self.windows.context[:, 0])
        self.sims.set_const()

    def run(self, steps: int) -> int:
        """Simulate at least so many steps."""
        n, length, _ = self.windows.control.shape
        rounds = -(-steps // (n * length))
        spec = mujoco.mjtState.mjSTATE_CTRL.value
        for _ in range(rounds):
            self.sims.state[:] = self.rest
            self.sims.bind("qpos")[:], self.sims.bind("qvel")[:] = self.windows.qpos0, self.windows.qvel0
            self.sims.rollout(length, self.windows.control, spec, record=())
        return rounds * n * length


def measure(case: Case, rounds: int, folder: Path, seen: dict[int, str]) -> list[str]:
    """One row. The shards must be the same however they are made."""
    model = folder / f"arm7-{case.parameters}"
    if not model.exists():
        arm_with(case.parameters, folder)
    shards(model, case.windows, case.shards)
    robot, training = open_robot(model / "robot.toml"), load_training(model / "train.toml")
    bare, ours, loops = BareLoop(robot, training), [], []
    for number in range(rounds):
        ours.append(pace(lambda: generation(robot, training, case)))
        steps = case.shards * steps_of(robot, case.windows, case.windows)
        loops.append(pace(lambda steps=steps: bare.run(steps)))
        print(f"{case} round {number}: {ours[-1]} bare {loops[-1]}", flush=True)
    digest = digest_of(dataset.data_folder(robot, training))
    if seen.setdefault(case.parameters, digest) != digest:
        sys.exit(f"{case}: other shards than in the row above: generation is not reproducible")
    wall, cpu = (
        np.median([getattr(o, kind) / getattr(b, kind) for o, b in zip(ours, loops, strict=True)])
        for kind in ("wall", "cpu")
    )
    how = f"{case.processes} processes x {case.threads} thread{'s' if case.threads > 1 else ''}"
    middle = [f"{np.median([p.wall for p in paces]):,.0f}" for paces in (ours, loops)]
    return [f"{case.parameters}", f"{case.windows} windows", how, *middle, f"{wall:.2f}", f"{cpu:.2f}"]


def digest_of(folder: Path) -> str:
    """Of all shards."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.npz")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


MEMORY_SCRIPT = """
import resource, sys
from pathlib import Path
from gaptrain.data import data
data(Path(sys.argv[1]), threads=2)
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak) / 1024, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
"""


def memory(count: int, folder: Path) -> list[str]:
    """Peak resident memory of a process that makes so many shards."""
    model = folder / "arm7-29"
    shards(model, 32, count)
    shutil.rmtree(model / ".data", ignore_errors=True)
    done = subprocess.run([sys.executable, "-c", MEMORY_SCRIPT, model], capture_output=True, text=True, check=True)
    driver, worker = map(float, done.stdout.split()[-2:])
    return [f"{count}", f"{driver:.0f}", f"{worker:.0f}"]


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller shards")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the tables")
    given = parser.parse_args()
    windows, rounds = ({29: 256, 100: 32, 400: 16}, 2) if given.quick else ({29: 512, 100: 128, 400: 32}, 5)
    cases = [Case(29, windows[29], 2, 1, CORES), *(Case(p, n, 2, CORES, 1) for p, n in windows.items())]
    with tempfile.TemporaryDirectory() as name:
        folder, seen = Path(name), dict[int, str]()
        rows = [measure(case, rounds, folder, seen) for case in cases]
        memory_rows = [memory(count, folder) for count in (2, 8, 32)]
    notes = [
        f"""Medians of {rounds} rounds, in which both take turns on {CORES} cores; the ratio is the median of theirs.
That of CPU time depends less on what else the machine does. Rows of the same parameters gave the same bytes.""",
        "The bare loop steps as many simulations as a shard has windows, in one call for each window length.",
    ]
    write_table("throughput", "Data generation, arm7", HEAD, rows, notes, given.out)
    write_table(
        "throughput-memory", "Memory of data generation, arm7, shards of 32 windows", MEMORY_HEAD, memory_rows,
        ["The driver holds a shard at a time, however many there are."], given.out,
    )  # fmt: skip


if __name__ == "__main__":
    main()
