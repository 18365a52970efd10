"""Speed and truth of the fit, side by side in one run: gapd, plain finite differences, Broyden, mujoco.sysid.

    make bench && .venv/bin/python benchmarks/estimator.py            about 1.5 h on 2 cores
    .venv/bin/python benchmarks/estimator.py --quick                  a few minutes: fewer truths, no mujoco.sysid

Truths are drawn uniformly within the bounds; every method starts at nominal, on the same windows.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tables import write_table
from trial import MODELS, FrozenInitialState, Trial, every_step, make_trial

from gapd.fit.estimator import Fit, Problem, Progress, Settings, State, descend, finish, start
from gapd.fit.identify import identify
from gapd.gap.jacobian import JacobianSource, Linearisation, Point
from gapd.gap.replay import Replay
from gapd.gap_model.bundle import open_bundle
from gapd.gap_model.learned import Learned
from gapd.model.robot import open_robot

Array = NDArray[np.float64]
# Finite-difference Gauss-Newton goes on until a step gains less than a thousandth.
PATIENT = Settings(max_steps=40, slow=0.999, patience=3)
THREADS = 2
SPEED_NOTES = (
    """near: rollouts until the excess gap² is below 1 % of its start; done: until every identifiable parameter is
within 3 exact standard deviations of the truth. Medians over the truths on which the method ran, given in the last
column; a method that does not arrive counts as last. Cover is a mean over all of them. A rollout is the replay of one
window.""",
    "mujoco.sysid takes initial states as measured.",
)


@dataclass(frozen=True)
class Row:
    """One method on one truth."""

    method: str
    seed: int
    near: int | None
    done: int | None
    total: int
    wall_s: float
    cpu_s: float
    held_out: float
    error: float  # median absolute error of the identifiable parameters, scaled
    error_max: float
    covered: float | None  # share of identifiable parameters inside their 90 % interval


Solution = tuple[Array, tuple[Progress, ...], int, Array | None]
Method = Callable[[Trial, Learned], Solution]


class Once:
    """Derivatives at the first point only; what follows is left to Broyden's updates."""

    def __init__(self, exact: JacobianSource) -> None:
        self.exact = exact
        self._first: Linearisation | None = None

    def linearise(self, point: Point) -> Linearisation:
        """See `JacobianSource`."""
        self._first = self._first or self.exact.linearise(point)
        return self._first


def _begin(trial: Trial) -> tuple[Problem, State]:
    problem = trial.problem(Replay(trial.robot, THREADS))
    return problem, start(problem, trial.robot.parameters.z_nominal)


def learned_only(trial: Trial, learned: Learned) -> Solution:
    """The learned phase alone. Its own covariance does not define an interval."""
    problem, state = _begin(trial)
    state = descend(problem, state, learned, Settings())
    return state.z, tuple(problem.trace), problem.used, None


def with_finish(settings: Settings) -> Method:
    """Learned phase and a finish."""

    def solve(trial: Trial, learned: Learned) -> Solution:
        problem, state = _begin(trial)
        fit = finish(problem, descend(problem, state, learned, settings), learned, settings)
        return fit.state.z, tuple(problem.trace), problem.used, problem.assess(fit).half_width(0.90)

    return solve


def finite_differences(frozen: bool) -> Method:
    """Gauss-Newton with a new finite-difference Jacobian in each step."""

    def solve(trial: Trial, learned: Learned) -> Solution:
        problem, state = _begin(trial)
        source = FrozenInitialState(problem.exact) if frozen else problem.exact
        state = descend(problem, state, source, PATIENT, secant=False)
        used = problem.used
        linear = problem.exact.linearise(problem.point(state))
        fit = Fit(state, linear, problem.normal(state, linear))
        return state.z, tuple(problem.trace), used, problem.assess(fit).half_width(0.90)

    return solve


def broyden(trial: Trial, learned: Learned) -> Solution:
    """One finite-difference Jacobian at the start, Broyden's updates from then on."""
    problem, state = _begin(trial)
    state = descend(problem, state, Once(problem.exact), replace(PATIENT, secant_memory=1.0, max_steps=80))
    return state.z, tuple(problem.trace), problem.used, None


METHODS: dict[str, Method] = {
    "gapd, learned phase only": learned_only,
    "gapd, learned + exact finish": with_finish(Settings()),
    "gapd, learned + 12 weakest directions": with_finish(Settings(weak_directions=12)),
    "finite-difference Gauss-Newton": finite_differences(frozen=False),
    "the same, x0 derivatives once": finite_differences(frozen=True),
    "one Jacobian + Broyden": broyden,
}


def sysid_method(scale: str, x_scale: str | None, knots_only: bool) -> Method:
    """mujoco.sysid with one choice of its settings."""
    from peers import sysid_fit

    def solve(trial: Trial, learned: Learned) -> Solution:
        fit = sysid_fit(
            trial.robot if knots_only else every_step(trial.robot), trial.windows if knots_only else trial.fine,
            trial.robot.parameters.z_nominal, scale=scale, x_scale=x_scale, knots_only=knots_only, threads=THREADS,
        )  # fmt: skip
        return fit.z, fit.trace, fit.rollouts, None

    return solve


SYSID: dict[str, Method] = {
    f"mujoco.sysid, {scale}{', x_scale' if x else ''}, {'knots' if knots else 'all samples'}": sysid_method(
        scale, x, knots
    )
    for scale, x, knots in (("log", None, True), ("log", "jac", True), ("linear", None, True), ("log", None, False))
}


def measure(name: str, method: Method, trial: Trial, learned: Learned) -> Row:
    """Run one method on one truth and judge it; judging is neither timed nor counted."""
    wall, cpu = time.perf_counter(), time.process_time()
    z, trace, total, half = method(trial, learned)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    known = trial.identifiable
    error = np.abs(z - trial.truth)[known]
    covered = None if half is None else float(np.mean(error <= half[known]))
    return Row(
        name, trial.seed, trial.near(trace), trial.done(trace), total, wall, cpu, trial.held_out_gap(z),
        float(np.median(error)), float(error.max()), covered,
    )  # fmt: skip


def table(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Medians per method. A method that did not arrive counts as arriving last."""
    head = [
        "method", "near", "done", "total rollouts", "wall s", "cpu s", "held-out gap, median", "worst",
        "error %, median", "worst", "90 % cover", "arrived near / done",
    ]  # fmt: skip
    lines = []
    for name in dict.fromkeys(r.method for r in rows):
        mine = [r for r in rows if r.method == name]
        near, done = ([getattr(r, key) for r in mine] for key in ("near", "done"))
        covered = [r.covered for r in mine if r.covered is not None]
        lines.append(
            [
                name, _median(near), _median(done), _median([r.total for r in mine]),
                *(f"{np.median([getattr(r, k) for r in mine]):.1f}" for k in ("wall_s", "cpu_s")),
                f"{np.median([r.held_out for r in mine]):.3f}", f"{max(r.held_out for r in mine):.3f}",
                f"{100 * np.median([r.error for r in mine]):.2f}", f"{100 * max(r.error_max for r in mine):.0f}",
                f"{100 * np.mean(covered):.0f} %" if covered else "-",
                f"{sum(n is not None for n in near)} / {sum(d is not None for d in done)} of {len(mine)}",
            ]
        )  # fmt: skip
    return head, lines


def _median(values: list[int | None]) -> str:
    middle = float(np.median([np.inf if v is None else v for v in values]))
    return "-" if np.isinf(middle) else f"{middle:.0f}"


def speed(seeds: range, learned: Learned, sysid_seeds: range) -> list[Row]:
    """First table: all methods on all truths."""
    rows = []
    for seed in seeds:
        trial = make_trial("arm7", seed)
        methods = METHODS | (SYSID if seed in sysid_seeds else {})
        for name, method in methods.items():
            rows.append(measure(name, method, trial, learned))
            print(f"seed {seed:3d}  {rows[-1]}", flush=True)
    return rows


def initial_state(seeds: range, learned: Learned) -> list[list[str]]:
    """Second table: velocity noise of 0.05 rad/s, with and without the initial states among the unknowns."""
    lines = []
    results: dict[str, list[tuple[float, float, float]]] = {}
    for seed in seeds:
        trial = make_trial("arm7", seed, velocity_noise=0.05)
        for name, factor in (("initial states estimated", 1.0), ("initial states taken as measured", 1e-6)):
            windows = replace(trial.windows, x0_sd=trial.windows.x0_sd * factor)
            found = identify(
                Replay(trial.robot, THREADS), windows, trial.robot.parameters.z_nominal, learned,
                test_structure=False,
            )  # fmt: skip
            error = np.abs(found.z - trial.truth)
            inside = float(np.mean((error <= found.uncertainty.half_width(0.90))[trial.identifiable]))
            results.setdefault(name, []).append((float(np.median(error)), inside, trial.held_out_gap(found.z)))
            print(f"seed {seed:3d}  {name}: {results[name][-1]}", flush=True)
    for name, values in results.items():
        error, inside, held = np.array(values).T
        lines.append(
            [
                name,
                f"{100 * np.median(error):.2f}",
                f"{100 * inside.mean():.0f} %",
                f"{np.median(held):.3f}",
                f"{len(values)}",
            ]
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="4 truths, no mujoco.sysid")
    parser.add_argument("--truths", type=int, default=20)
    parser.add_argument("--sysid-truths", type=int, default=6, help="truths on which mujoco.sysid runs too")
    parser.add_argument("--first", type=int, default=0, help="seed of the first truth")
    parser.add_argument("--tables", default="12", help="which tables")
    parser.add_argument("--json", type=Path, help="write every single result to this file")
    arguments = parser.parse_args()
    truths = 4 if arguments.quick else arguments.truths
    seeds = range(arguments.first, arguments.first + truths)
    few = range(arguments.first, arguments.first + max(truths // 3, 2))
    robot = open_robot(MODELS / "arm7" / "robot.toml")
    learned = Learned(open_bundle(robot), robot)
    if "1" in arguments.tables:
        with_sysid = range(0) if arguments.quick else range(seeds.start, seeds.start + arguments.sysid_truths)
        rows = speed(seeds, learned, with_sysid)
        head, lines = table(rows)
        write_table("estimator-speed", f"arm7, 29 parameters, {truths} truths, 32 windows", head, lines, SPEED_NOTES)
        if arguments.json:
            arguments.json.write_text(json.dumps([asdict(r) for r in rows], indent=1), encoding="utf-8")
    if "2" in arguments.tables:
        head = ["arm7, velocity noise 0.05 rad/s", "error %, median", "90 % cover", "held-out gap, median", "truths"]
        write_table("estimator-initial-state", "Unknown initial states", head, initial_state(few, learned))


if __name__ == "__main__":
    main()
