"""First table: rollouts and time to the neighbourhood and to a finished estimate, all methods on the same truths."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from estimator_methods import GAUSS_NEWTON, SYSID, Method, methods, shipped
from estimator_runs import FITTED_BY, PEERS_BY, Bar, Plan, Runs
from problems import LARGE, spec_of
from tables import write_table
from trial import Trial, make_trial

from gapd.gap_model.learned import Learned

NOTES = (
    """near: rollouts until the excess gap² is below 1 % of its start; done: until every identifiable parameter is
within 3 exact standard deviations of the truth. Medians over the truths on which the method ran, given in the last
column; a method that does not arrive counts as last. Cover is a mean over all of them. A rollout is the replay of one
window.""",
    "mujoco.sysid takes initial states as measured.",
)
# Bars: what the rollouts of gapd may be of those of Gauss-Newton and of mujoco.sysid, and its time of the latter's.
NEAR, DONE, WALL = (1 / 12, 1 / 50), (1 / 5, 1 / 12), 1 / 12


@dataclass(frozen=True)
class Result:
    """One method on one truth."""

    method: str
    seed: int
    near: int | None
    done: int | None
    total: int
    wall_s: float
    cpu_s: float
    held_out: float
    error: float | None  # median absolute error of the identifiable parameters, scaled
    error_max: float | None
    covered: float | None  # share of identifiable parameters inside their 90 % interval
    unidentifiable: int


def measure(name: str, method: Method, trial: Trial, learned: Learned | None) -> Result:
    """Run one method on one truth and judge it; judging is neither timed nor counted."""
    wall, cpu = time.perf_counter(), time.process_time()
    solution = method(trial, learned)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    known = trial.identifiable
    error = np.abs(solution.z - trial.truth)[known]
    half = solution.half_width
    covered = None if half is None or not known.any() else float(np.mean(error <= half[known]))
    middle, worst = (float(np.median(error)), float(error.max())) if known.any() else (None, None)
    return Result(
        name, trial.seed, trial.near(solution.trace), trial.done(solution.trace), solution.rollouts, wall, cpu,
        trial.held_out_gap(solution.z), middle, worst, covered, int((~known).sum()),
    )  # fmt: skip


def run(runs: Runs, plan: Plan) -> list[Bar]:
    """Measure what is missing, write a table for each problem, and compare with the bars."""
    bars = []
    for name in (p for p in plan.problems if p not in LARGE and not spec_of(p).free):
        _, _, learned = runs.problem(name)
        results = _results(runs, plan, name)
        title = f"{spec_of(name).title}: {plan.truths} truths, {plan.windows} windows"
        head, lines = table(results)
        unknown = np.unique([r.unidentifiable for r in results if r.method == results[0].method])
        note = f"Not identifiable on these windows: {unknown.min()} to {unknown.max()} parameters, by truth."
        write_table(f"estimator-speed-{name}", title, head, lines, (*NOTES, note), runs.tables)
        bars += _bars(name, results, shipped(learned))
    return bars


def _results(runs: Runs, plan: Plan, name: str) -> list[Result]:
    folder, robot, learned = runs.problem(name)
    results = []
    for seed in plan.seeds(plan.truths):
        chosen = methods(learned, len(robot.parameters))
        peers = SYSID if seed in plan.seeds(plan.sysid) else {}
        trial: list[Trial] = []  # made when the first result is missing
        for method, solve in (chosen | peers).items():

            def compute(
                method: str = method, solve: Method = solve, seed: int = seed, trial: list[Trial] = trial
            ) -> Mapping[str, object]:
                trial[:] = trial or [make_trial(folder, seed, plan.windows)]
                return asdict(measure(method, solve, trial[0], learned))

            key = {"table": "speed", "method": method, "seed": seed, "windows": plan.windows}
            by = PEERS_BY if method in SYSID else FITTED_BY
            results.append(Result(**runs.once(key, name, compute, by)))
    return results


def table(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """Medians per method. A method that did not arrive counts as arriving last."""
    head = [
        "method", "near", "done", "total rollouts", "wall s", "cpu s", "held-out gap, median", "worst",
        "error %, median", "worst", "90 % cover", "arrived near / done",
    ]  # fmt: skip
    lines = []
    for name in dict.fromkeys(r.method for r in results):
        mine = [r for r in results if r.method == name]
        covered = [r.covered for r in mine if r.covered is not None]
        error = [r.error for r in mine if r.error is not None] or [np.nan]
        worst = [r.error_max for r in mine if r.error_max is not None] or [np.nan]
        lines.append(
            [
                name, *(_number(_median(mine, key)) for key in ("near", "done", "total")),
                *(f"{_median(mine, key):.1f}" for key in ("wall_s", "cpu_s")),
                f"{_median(mine, 'held_out'):.3f}", f"{max(r.held_out for r in mine):.3f}",
                f"{100 * np.median(error):.2f}", f"{100 * max(worst):.0f}",
                f"{100 * np.mean(covered):.0f} %" if covered else "-",
                f"{sum(r.near is not None for r in mine)} / {sum(r.done is not None for r in mine)} of {len(mine)}",
            ]
        )  # fmt: skip
    return head, lines


def _bars(problem: str, results: Sequence[Result], ours: str) -> list[Bar]:
    """Rollouts and time of gapd as shares of those of the others, on the truths that both have seen."""
    bars = []
    for key, what, (of_exact, of_sysid) in (("near", "neighbourhood", NEAR), ("done", "finished", DONE)):
        bars.append(
            _bar(problem, f"{what}, rollouts of {GAUSS_NEWTON}", results, (ours, (GAUSS_NEWTON,)), key, of_exact)
        )
        bars.append(_bar(problem, f"{what}, rollouts of mujoco.sysid", results, (ours, tuple(SYSID)), key, of_sysid))
    bars.append(_bar(problem, "time of mujoco.sysid", results, (ours, tuple(SYSID)), "wall_s", WALL))
    return [bar for bar in bars if bar is not None]


def _bar(
    problem: str, what: str, results: Sequence[Result], methods: tuple[str, tuple[str, ...]], key: str, wanted: float
) -> Bar | None:
    """Share of the best of the others; None where none of them ran."""
    ours, others = methods
    seen = {m: [r for r in results if r.method == m] for m in others}
    seeds = {r.seed for rows in seen.values() for r in rows}
    if not seeds:
        return None
    mine = _median([r for r in results if r.method == ours and r.seed in seeds], key)
    best = min(_median(rows, key) for rows in seen.values() if rows)
    if np.isinf(mine):
        return Bar(problem, what, f"1/{1 / wanted:.0f}", "gapd does not arrive", met=False)
    if np.isinf(best):
        return Bar(problem, what, f"1/{1 / wanted:.0f}", f"only gapd arrives ({mine:.0f})", met=True)
    return Bar(problem, what, f"1/{1 / wanted:.0f}", f"1/{best / mine:.1f}", mine <= wanted * best)


def _median(results: Sequence[Result], key: str) -> float:
    values = [getattr(r, key) for r in results]
    return float(np.median([np.inf if v is None else v for v in values]))


def _number(value: float) -> str:
    return "-" if np.isinf(value) else f"{value:.0f}"
