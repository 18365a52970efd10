"""Fourth table: of mass and gear the data know only the ratio. Is the pair named, and left alone along the rest?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from estimator_runs import FITTED_BY, THREADS, Bar, Plan, Row, Runs
from problems import SPECS
from tables import write_table
from trial import make_trial

from gapd.fit.identify import identify
from gapd.gap.replay import Replay

# Along the free direction, in prior standard deviations: rounding, no more.
STILL = 0.01
NOTE = f"""named: the pair is listed as one ambiguous group, and nothing else is in a group. sent: a member's change
would be sent. moved: displacement of the estimate along the free direction, in prior standard deviations; allowed
{STILL:g}. ratio: worst error of mass over gear. others: worst error of the other identifiable parameters, in exact
standard deviations."""
HEAD = (
    "problem",
    "named",
    "sent",
    "moved, largest",
    "true displacement, median",
    "ratio, worst error",
    "others, worst sd",
    "truths",
)


def measure(runs: Runs, plan: Plan, problem: str, seed: int) -> dict[str, Any]:
    """One fit as the daemon makes it."""
    folder, robot, learned = runs.problem(problem)
    trial = make_trial(folder, seed, plan.windows)
    before, space = trial.robot.parameters.z_nominal, robot.parameters
    found = identify(Replay(trial.robot, THREADS), trial.windows, before, learned, test_structure=False)
    pair = [space.names.index(name) for name in SPECS[problem].free]
    prior_sd = 0.5 * (space.z_max - space.z_min)[pair]
    along = np.ones(len(pair)) / prior_sd  # both grow by one factor; in units of the prior
    along /= np.linalg.norm(along)
    off = found.z - trial.truth
    named = {frozenset(group) for group in found.uncertainty.ambiguous}
    known = trial.identifiable.copy()
    known[pair] = False
    return {
        "named": named == {frozenset(pair)}, "sent": bool(found.survives[pair].any()),
        "moved": float(along @ ((found.z - before)[pair] / prior_sd)),
        "true": float(along @ ((trial.truth - before)[pair] / prior_sd)),
        "ratio": float(abs(off[pair[0]] - off[pair[1]])), "groups": [sorted(g) for g in named],
        "others_sd": float(trial.error_sd(found.z)[known].max(initial=0.0)), "rollouts": found.rollouts,
    }  # fmt: skip


def run(runs: Runs, plan: Plan) -> list[Bar]:
    """Measure what is missing, write the table, and compare with the bars."""
    lines, bars = [], []
    for name in (p for p in plan.problems if SPECS[p].free):
        rows = []
        for seed in plan.seeds(plan.truths):

            def compute(name: str = name, seed: int = seed) -> Mapping[str, Any]:
                return measure(runs, plan, name, seed)

            rows.append(runs.once({"table": "groups", "seed": seed, "windows": plan.windows}, name, compute, FITTED_BY))
        lines.append(_line(name, rows))
        still = all(row["named"] and not row["sent"] and abs(row["moved"]) <= STILL for row in rows)
        bars.append(
            Bar(name, "mass and gear", f"named, not sent, moved <= {STILL:g}", ", ".join(lines[-1][1:4]), still)
        )
    write_table("estimator-groups", f"Ambiguous groups, {plan.truths} truths", HEAD, lines, (NOTE,), runs.tables)
    return bars


def _line(problem: str, rows: list[Row]) -> list[str]:
    n = len(rows)
    return [
        problem, f"{sum(r['named'] for r in rows)} of {n}", f"{sum(r['sent'] for r in rows)} of {n}",
        f"{max(abs(r['moved']) for r in rows):.4f}", f"{np.median([abs(r['true']) for r in rows]):.2f}",
        f"{100 * max(r['ratio'] for r in rows):.3f} %", f"{max(r['others_sd'] for r in rows):.1f}", f"{n}",
    ]  # fmt: skip
