"""Third table: do 90 % intervals hold the truth in nine of ten cases, and how much wider are they than they must be?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from estimator_runs import FITTED_BY, THREADS, Bar, Plan, Row, Runs
from problems import LARGE, spec_of
from tables import write_table
from trial import make_trial

from gapd.fit.identify import identify
from gapd.fit.students_t import quantile
from gapd.gap.replay import Replay

LEVEL = 0.90
WANTED, WIDEST = (0.85, 0.95), 1.3
NOTE = """Truths uniform within the bounds. Only identifiable parameters count. width: median of half width over that of
the exact bound, the narrowest honest interval. ±: two standard errors of the cover, runs as clusters."""
HEAD = ("problem", "parameters", "90 % cover", "±", "width", "intervals", "runs")


def measure(runs: Runs, plan: Plan, problem: str, seed: int) -> dict[str, Any]:
    """One fit as the daemon makes it: error, half width and bound of each identifiable parameter."""
    folder, _, learned = runs.problem(problem)
    trial = make_trial(folder, seed, plan.windows)
    start = trial.robot.parameters.z_nominal
    found = identify(Replay(trial.robot, THREADS), trial.windows, start, learned, test_structure=False)
    known = np.flatnonzero(trial.identifiable & ~found.uncertainty.unknown)
    half, names = found.uncertainty.half_width(LEVEL), trial.robot.parameters.names
    return {
        "family": [names[p].rpartition("/")[2] for p in known],
        "error": (found.z - trial.truth)[known].tolist(), "half": half[known].tolist(),
        "bound": trial.bound_sd[known].tolist(), "names": [names[p] for p in known],
        "not_told": int((trial.identifiable & found.uncertainty.unknown).sum()),
    }  # fmt: skip


def run(runs: Runs, plan: Plan) -> list[Bar]:
    """Measure what is missing, write the table, and compare with the bars."""
    lines, bars = [], []
    for name in (p for p in plan.problems if p not in LARGE and not spec_of(p).free):
        rows = []
        for seed in plan.seeds(plan.coverage):

            def compute(name: str = name, seed: int = seed) -> Mapping[str, Any]:
                return measure(runs, plan, name, seed)

            key = {"table": "coverage", "seed": seed, "windows": plan.windows}
            rows.append(runs.once(key, name, compute, FITTED_BY))
        for family in ("all", *sorted({f for row in rows for f in row["family"]})):
            line, bar = _family(name, family, rows)
            lines.append(line)
            bars.append(bar)
    write_table("estimator-coverage", f"Coverage, {plan.coverage} truths", HEAD, lines, (NOTE,), runs.tables)
    return bars


def _family(problem: str, family: str, rows: list[Row]) -> tuple[list[str], Bar]:
    inside, count, width = [], [], []
    for row in rows:
        mine = np.array([family in ("all", f) for f in row["family"]], bool)
        half, bound = np.array(row["half"])[mine], np.array(row["bound"])[mine]
        inside.append(int((np.abs(row["error"])[mine] <= half).sum()))
        count.append(int(mine.sum()))
        width += (half / (bound * float(quantile(LEVEL, np.array([1e6]))[0]))).tolist()
    cover = sum(inside) / max(sum(count), 1)
    # Intervals of one run share their windows, so that a run counts as one observation.
    residual = np.array(inside) - cover * np.array(count)
    error = float(np.sqrt(np.sum(residual**2))) / max(sum(count), 1)
    middle = float(np.median(width)) if width else np.nan
    line = [
        problem, family, f"{100 * cover:.1f} %", f"{200 * error:.1f}", f"{middle:.2f}", f"{sum(count)}", f"{len(rows)}",
    ]  # fmt: skip
    met = WANTED[0] <= cover <= WANTED[1] and middle <= WIDEST
    wanted = f"{WANTED[0]:.0%} to {WANTED[1]:.0%}, width <= {WIDEST:g}"
    return line, Bar(problem, f"90 % intervals, {family}", wanted, f"{100 * cover:.1f} %, width {middle:.2f}", met)
