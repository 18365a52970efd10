"""COMPASS, its ablations, our variant and methods without a graph on three tasks, side by side.

    make bench && .venv/bin/python benchmarks/compass.py --quick      one seed, about 10 minutes on 2 cores
    .venv/bin/python benchmarks/compass.py                            5 seeds, 10 iterations of 640: 15 h, an estimate
    .venv/bin/python benchmarks/compass.py --size published           the published network as well: weeks, an estimate

CMA-ES needs the package `cma`, `--policy sac` stable-baselines3: pip install 'gapd[compass]'. Without them the rest
runs, and the table says what is missing.

Runs are independent: `--processes N` makes so many at a time, `--ray ADDRESS` makes them on a Ray cluster whose
computers have this folder, and benchmarks/ on PYTHONPATH. The results do not depend on it, the seconds do.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from compass_peers import Budget, cma_search, gauss_newton, random_search, search
from numpy.typing import NDArray
from scipy.stats import t as students_t
from tables import RESULTS, write_table

from gaptrain import compass, compass_signed
from gaptrain.executor import Executor, Local
from gaptrain.policies import train_cross_entropy, train_sac
from gaptrain.ray_cluster import RayCluster
from gaptrain.tasks.arm_task import ArmTask
from gaptrain.tasks.catalogue import TASKS, open_task
from gaptrain.tasks.search import Iteration, Trainer, without_policy
from gaptrain.tasks.simulator import distance
from gaptrain.tasks.stand_in import StandIn

Array = NDArray[np.float64]
MODELS = Path(__file__).parents[1] / "models"
NOISE = 0.001  # of what the robot's camera sees, m and rad
# A parameter has an effect if a step of so much, in scaled coordinates, moves a channel by so much rms.
STEP_Z, NO_EFFECT = 0.4, 2e-5
HELD_OUT_SEED, JUDGED_SEED = 900, 901
POLICIES: dict[str, Trainer] = {"none": without_policy, "cem": train_cross_entropy, "sac": train_sac}


@dataclass(frozen=True)
class Size:
    """How much is run."""

    seeds: int
    iterations: int
    rollouts: int  # simulated per iteration
    hidden: int  # of the published network: 256
    epochs: int  # of its training: 4000
    descent_steps: int = 2000
    held_out: int = 20  # real rollouts on which the gap is judged, not counted
    judged: int = 40  # real rollouts on which the policy is judged, not counted
    subsets: tuple[int, ...] = (2, 4, 8, 16)  # steps that our variant tries
    rounds: int = 2
    probes: int = 2  # actions with which it is found out which parameters have an effect


SIZES = {
    "tiny": Size(1, 1, 40, 8, 2, descent_steps=5, held_out=2, judged=0, subsets=(4,), rounds=1, probes=1),
    "quick": Size(1, 2, 320, 32, 300, held_out=10, judged=20, probes=1),
    "standard": Size(5, 10, 640, 64, 1500),
    "published": Size(5, 10, 640, 256, 4000),
}


def budget(size: Size, seed: int) -> Budget:
    """Return the budget of a method without a graph."""
    return Budget(size.iterations, rollouts=size.rollouts, seed=seed)


Method = Callable[[ArmTask, StandIn, Size, int, Trainer], Iterator[Iteration]]


def published(model: str) -> Method:
    """COMPASS or one of its ablations."""

    def run(task: ArmTask, robot: StandIn, size: Size, seed: int, train: Trainer) -> Iterator[Iteration]:
        settings = compass.Arguments(
            size.iterations, vectors=size.rollouts // 10, hidden=size.hidden, epochs=size.epochs,
            descent_steps=size.descent_steps, model=model, seed=seed,
        )  # fmt: skip
        return compass.compass(task, robot, settings, train)

    return run


def signed(task: ArmTask, robot: StandIn, size: Size, seed: int, train: Trainer) -> Iterator[Iteration]:
    """Our variant."""
    settings = compass_signed.Arguments(
        size.iterations, rollouts=size.rollouts, subsets=size.subsets, rounds=size.rounds, seed=seed
    )
    return compass_signed.compass_signed(task, robot, settings, train)


def without_graph(make: Callable[[ArmTask, Budget], Callable]) -> Method:
    """A method of compass_peers."""

    def run(task: ArmTask, robot: StandIn, size: Size, seed: int, train: Trainer) -> Iterator[Iteration]:
        return search(task, robot, budget(size, seed), make(task, budget(size, seed)), train)

    return run


METHODS: dict[str, Method] = {
    "ours, signed": signed,
    "COMPASS": published("graph"),
    "COMPASS, full": published("full"),
    "COMPASS, mlp": published("mlp"),
    "CMA-ES": without_graph(cma_search),
    "Gauss-Newton, differences": without_graph(gauss_newton),
    "random search": without_graph(random_search),
}


@dataclass(frozen=True)
class Truth:
    """What methods do not see: held-out real rollouts, and which parameters matter."""

    actions: Array  # (n, A)
    seen: Array  # (n, T, C) without noise
    shifted: NDArray[np.intp]  # parameters that differ on the robot, where that moves a channel by more than its noise
    idle: NDArray[np.bool_]  # (P,) without any effect


def find_truth(task: ArmTask, robot: StandIn, size: Size) -> Truth:
    """Held-out rollouts, and effects around the true values, one parameter at a time."""
    actions = task.draw(np.random.default_rng(HELD_OUT_SEED), size.held_out)
    seen = robot.judge(actions).seen
    space, probes = task.space, actions[: size.probes]
    z, here = space.to_scaled(robot.truth), seen[: size.probes]
    steps = np.concatenate([STEP_Z * np.eye(len(z)), -STEP_Z * np.eye(len(z))])
    moved = _effect(task, space.to_physical(np.clip(z + steps, space.z_min, space.z_max)), probes, here)
    names = [space.names.index(name) for name in task.real]
    reverted = np.tile(robot.truth, (len(names), 1))
    reverted[np.arange(len(names)), names] = space.nominal[names]
    matters = _effect(task, reverted, probes, here) > NOISE
    return Truth(actions, seen, np.array(names)[matters], moved.reshape(2, -1).max(0) < NO_EFFECT)


def _effect(task: ArmTask, vectors: Array, actions: Array, here: Array) -> Array:
    """Largest rms change (k,) of a channel by k parameter vectors."""
    seen = task.rollout(np.repeat(vectors, len(actions), axis=0), np.tile(actions, (len(vectors), 1))).seen
    change = seen.reshape(len(vectors), *here.shape) - here
    return np.sqrt(np.nan_to_num(change**2, nan=1.0).mean((1, 2))).max(-1)


def gap_mm(task: ArmTask, truth: Truth, physical: Array) -> float:
    """Mean distance from the held-out real trajectories, mm (mrad for angles); nan counts as a metre."""
    seen = task.rollout(np.tile(physical, (len(truth.actions), 1)), truth.actions).seen
    far = distance(task, seen, truth.seen).mean() / task.steps
    return float(1000 * min(far, 1.0))


@dataclass(frozen=True)
class Run:
    """One method on one seed."""

    gaps: tuple[float, ...]  # mm after each iteration
    success: float
    found: float  # shifted parameters that are kept
    idle: float  # kept parameters without effect
    cover: float  # share of parameters with effect whose 90 % interval holds the truth
    real: int
    simulated: int
    seconds: float


def measure(task: ArmTask, truth: Truth, method: Method, size: Size, seed: int, train: Trainer) -> Run:
    """Run a method; judging is neither timed nor counted."""
    robot = StandIn(task, NOISE, seed)
    gaps, seconds, last = [], 0.0, None
    run, began = method(task, robot, size, seed, train), time.perf_counter()
    for last in run:
        seconds += time.perf_counter() - began
        gaps.append(gap_mm(task, truth, last.physical))
        began = time.perf_counter()
    if last is None:
        raise SystemExit("no iteration was run; give at least one")
    return replace(_judge(task, truth, robot, last, size, seed, train), gaps=tuple(gaps), seconds=seconds)


@dataclass(frozen=True)
class Trials:
    """What all runs on one task share, as plain values."""

    task: str
    truth: Truth
    size: Size
    policy: str


def trial(trials: Trials, job: tuple[str, int]) -> Run:
    """One method on one seed, in whatever process."""
    torch.set_num_threads(1)  # networks this small are slower on two
    name, seed = job
    task = open_task(trials.task, MODELS)
    return measure(task, trials.truth, METHODS[name], trials.size, seed, POLICIES[trials.policy])


def success_of(task: ArmTask, robot: StandIn, physical: Array, size: Size, seed: int, train: Trainer) -> float:
    """Share of real rollouts that succeed with a policy for these parameters; nan where none are judged."""
    if not size.judged:
        return np.nan
    policy = (train_cross_entropy if train is without_policy else train)(task, physical, seed)
    actions = policy.act(np.random.default_rng(JUDGED_SEED), size.judged)
    return float(robot.judge(actions).success.mean())


def _judge(task: ArmTask, truth: Truth, robot: StandIn, last: Iteration, size: Size, seed: int, train: Trainer) -> Run:
    success = success_of(task, robot, last.physical, size, seed, train)
    has_graph = bool(np.isfinite(last.edge_probability).all())
    off = np.abs(task.space.to_scaled(last.physical) - task.space.to_scaled(robot.truth))
    cover = (off < 1.645 * last.sd)[~truth.idle].mean() if np.isfinite(last.sd).all() else np.nan
    return Run(
        (), success, float(last.kept[truth.shifted].sum()) if has_graph else np.nan,
        float((last.kept & truth.idle).sum()) if has_graph else np.nan, float(cover), last.real_rollouts,
        last.simulated, 0.0,
    )  # fmt: skip


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean, and with several values the half-width of its 90 % interval."""
    numbers = np.array(values, float)
    if not np.isfinite(numbers).all():
        return "-"
    mean = f"{numbers.mean():.{digits}f}"
    if len(numbers) < 2:
        return mean
    half = students_t.ppf(0.95, len(numbers) - 1) * numbers.std(ddof=1) / np.sqrt(len(numbers))
    return f"{mean} ± {half:.{digits}f}"


HEAD = ("method", "gap, mm, after iteration 1", "half", "last", "success, %", "shifted found", "kept without effect",
        "90 % cover, %", "real rollouts", "simulated", "seconds")  # fmt: skip


def line(name: str, runs: Sequence[Run]) -> list[str]:
    """One row of the table. A method that stops early stays where it is."""
    longest = max(len(r.gaps) for r in runs)
    gaps = np.array([[*r.gaps, *[r.gaps[-1]] * (longest - len(r.gaps))] for r in runs])
    at = (0, (longest - 1) // 2, longest - 1)
    return [
        name, *(spread(gaps[:, i], 2) for i in at), spread([100 * r.success for r in runs], 0),
        spread([r.found for r in runs]), spread([r.idle for r in runs]), spread([100 * r.cover for r in runs], 0),
        f"{runs[0].real}", f"{np.mean([r.simulated for r in runs]):,.0f}", spread([r.seconds for r in runs], 0),
    ]  # fmt: skip


def table(task: ArmTask, names: Sequence[str], size: Size, policy: str, folder: Path, executor: Executor) -> None:
    """Run the methods on one task and write its table."""
    train = POLICIES[policy]
    robot = StandIn(task, NOISE, 0)
    truth = find_truth(task, robot, size)
    reach = [100 * success_of(task, robot, p, size, 0, train) for p in (task.space.nominal, robot.truth)]
    seeds = range(1, 1 + size.seeds)
    runs: dict[tuple[str, int], Run] = {}
    jobs = [(name, seed) for name in names for seed in seeds]
    for (name, seed), run in executor.map(trial, Trials(task.name, truth, size, policy), jobs):
        runs[name, seed] = run
        print(task.name, f"seed {seed}", *line(name, [run]), sep=" | ", flush=True)
    rows = [line(name, [runs[name, seed] for seed in seeds]) for name in names]
    notes = _notes(task, truth, size, reach)
    if len(names) < len(METHODS):
        notes.append("Not run: " + ", ".join(name for name in METHODS if name not in names) + ".")
    write_table(f"compass-{task.name}", f"{task.name}, {len(task.space)} parameters", HEAD, rows, notes, folder)


def _notes(task: ArmTask, truth: Truth, size: Size, reach: Sequence[float]) -> list[str]:
    start = gap_mm(task, truth, task.space.nominal)
    success = [spread([value], 0) for value in reach]
    first = f"""Start {start:.1f} mm.
Success {success[0]} % with a policy for nominal, {success[1]} % with one for the truth.
{len(truth.shifted)} of {len(task.real)} shifted parameters move a channel by more than its noise of 1 mm;
{truth.idle.sum()} of {len(task.space)} have no effect at all."""
    second = f"""{size.seeds} seeds: means, with more than one also 90 % intervals.
The gap is over {size.held_out} held-out actions. Success is that of a policy for the last parameters.
Network of COMPASS: width {size.hidden}, {size.epochs} epochs; published are 256 and 4000.
Its edges begin at a logit of 3, and Adam moves that by 0.001 a step: below 3,900 steps an iteration none can fall to
the 0.3 at which one is dropped."""
    return [first, second]


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short for --size quick")
    parser.add_argument("--size", choices=SIZES, default="standard")
    parser.add_argument("--seeds", type=int, help="instead of the size's")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--policy", choices=POLICIES, default="none", help="trained every 5 iterations")
    parser.add_argument("--processes", type=int, default=1, help="runs at a time on this computer")
    parser.add_argument("--ray", metavar="ADDRESS", help="make the runs on a Ray cluster")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the tables")
    given = parser.parse_args()
    torch.set_num_threads(1)  # networks this small are slower on two
    size = SIZES["quick" if given.quick else given.size]
    size = replace(size, seeds=given.seeds or size.seeds)
    names = list(given.methods)
    if "CMA-ES" in names and find_spec("cma") is None:
        names.remove("CMA-ES")
        print("CMA-ES is left out: package cma is not installed; pip install 'gapd[compass]'", flush=True)
    for name in given.tasks:
        where = RayCluster(given.ray) if given.ray else Local(given.processes)
        table(open_task(name, MODELS), names, size, given.policy, given.out, where)


if __name__ == "__main__":
    main()
