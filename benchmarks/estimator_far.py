"""Second table: starts that are far off. How often is every identifiable parameter within 5 % of the truth?"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from estimator_methods import SYSID, SYSID_DEFAULT, Array
from estimator_runs import FITTED_BY, PEERS_BY, THREADS, Bar, Plan, Row, Runs
from problems import LARGE, spec_of
from tables import write_table
from trial import FAR, Trial, make_trial

from gapd.fit.identify import identify
from gapd.gap.replay import Replay
from gapd.gap_model.learned import Learned

GAPD = "gapd"
CLOSE = 0.05
WANTED = 0.95
NOTE = f"""True parameters are x{FAR[0]:g} to x{FAR[1]:g} of the start, uniform in the logarithm, as far as the bounds
allow. Close: every identifiable parameter within {CLOSE:.0%} of its true value. gapd fits as it does on a robot;
mujoco.sysid takes initial states as measured, physical values and all samples, as it comes."""
HEAD = (
    "problem", "method", "close", "worst error %, median", "largest", "which", "not identifiable", "rollouts", "wall s",
)  # fmt: skip
Solve = Callable[[Trial, Learned | None], tuple[Array, int]]


def by_gapd(trial: Trial, learned: Learned | None) -> tuple[Array, int]:
    """The estimate (P,) of a fit as the daemon makes it, and its rollouts."""
    start = trial.robot.parameters.z_nominal
    found = identify(Replay(trial.robot, THREADS), trial.windows, start, learned, test_structure=False)
    return found.z, found.rollouts


def by_sysid(trial: Trial, learned: Learned | None) -> tuple[Array, int]:
    """The same of mujoco.sysid."""
    solution = SYSID[SYSID_DEFAULT](trial, learned)
    return solution.z, solution.rollouts


def judge(trial: Trial, solve: Solve, learned: Learned | None) -> dict[str, Any]:
    """Run and judge one fit."""
    began = time.perf_counter()
    z, rollouts = solve(trial, learned)
    wall = time.perf_counter() - began
    error = np.where(trial.identifiable, np.abs(z - trial.truth), 0.0)
    worst = int(np.argmax(error))
    return {
        "worst": float(error[worst]), "name": trial.robot.parameters.names[worst],
        "sd": float(trial.error_sd(z)[worst]),
        "identifiable": int(trial.identifiable.sum()), "parameters": len(z), "held_out": trial.held_out_gap(z),
        "rollouts": rollouts, "wall_s": wall,
    }  # fmt: skip


def run(runs: Runs, plan: Plan) -> list[Bar]:
    """Measure what is missing, write the table, and compare with the bar."""
    lines, bars = [], []
    for name in (p for p in plan.problems if p not in LARGE and not spec_of(p).free):
        ours = _rows(runs, plan, name, GAPD, by_gapd, plan.far)
        peers = _rows(runs, plan, name, SYSID_DEFAULT, by_sysid, plan.sysid)
        lines += [_line(name, method, rows) for method, rows in ((GAPD, ours), (SYSID_DEFAULT, peers)) if rows]
        share = np.mean([row["worst"] <= CLOSE for row in ours])
        beside = f"; mujoco.sysid {_share(peers)}" if peers else ""
        bars.append(Bar(name, "far starts within 5 %", f"{WANTED:.0%}", _share(ours) + beside, bool(share >= WANTED)))
    write_table("estimator-far", f"Far starts, {plan.far} truths", HEAD, lines, (NOTE,), runs.tables)
    return bars


def _rows(runs: Runs, plan: Plan, name: str, method: str, solve: Solve, truths: int) -> list[Row]:
    folder, _, learned = runs.problem(name)

    def compute(seed: int) -> Mapping[str, Any]:
        return judge(make_trial(folder, seed, plan.windows, far=True), solve, learned)

    by = FITTED_BY if method == GAPD else PEERS_BY
    keys = ({"table": "far", "method": method, "seed": seed, "windows": plan.windows} for seed in plan.seeds(truths))
    return [runs.once(key, name, lambda seed=key["seed"]: compute(seed), by) for key in keys]


def _share(rows: list[Row]) -> str:
    return f"{sum(row['worst'] <= CLOSE for row in rows)} of {len(rows)}"


def _line(problem: str, method: str, rows: list[Row]) -> list[str]:
    unknown = [row["parameters"] - row["identifiable"] for row in rows]
    largest = max(rows, key=lambda row: row["worst"])
    return [
        problem, method, _share(rows), f"{100 * np.median([row['worst'] for row in rows]):.2f}",
        f"{100 * largest['worst']:.1f}", f"{largest['name']}, {largest['sd']:.1f} sd",
        f"{min(unknown)} to {max(unknown)} of {rows[0]['parameters']}",
        f"{np.median([row['rollouts'] for row in rows]):.0f}", f"{np.median([row['wall_s'] for row in rows]):.1f}",
    ]  # fmt: skip
