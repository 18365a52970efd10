"""Fifth table: noisy velocities. What the initial states among the unknowns are worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from estimator_runs import FITTED_BY, THREADS, Bar, Plan, Runs
from problems import LARGE, spec_of
from tables import write_table
from trial import make_trial

from gapd.fit.identify import identify
from gapd.gap.replay import Replay

VELOCITY_NOISE = 0.05  # rad/s
WAYS = {"initial states estimated": 1.0, "initial states taken as measured": 1e-6}
HEAD = (
    "problem",
    f"velocity noise {VELOCITY_NOISE:g} rad/s",
    "error %, median",
    "90 % cover",
    "held-out gap, median",
    "truths",
)


def run(runs: Runs, plan: Plan) -> list[Bar]:
    """Measure what is missing and write the table; there is no bar."""
    lines = []
    for name in (p for p in plan.problems if p not in LARGE and not spec_of(p).free):
        if (runs.problem(name)[1].layout.velocity < 0).any():
            continue  # nothing measures a velocity
        for way in WAYS:
            rows = []
            for seed in plan.seeds(max(plan.truths // 3, 1)):

                def compute(name: str = name, seed: int = seed, way: str = way) -> Mapping[str, Any]:
                    return measure(runs, plan, name, seed, way)

                key = {"table": "x0", "way": way, "seed": seed, "windows": plan.windows}
                rows.append(runs.once(key, name, compute, FITTED_BY))
            error, inside, held = (np.array([row[k] for row in rows]) for k in ("error", "inside", "held_out"))
            numbers = [f"{100 * np.median(error):.2f}", f"{100 * inside.mean():.0f} %", f"{np.median(held):.3f}"]
            lines.append([name, way, *numbers, f"{len(rows)}"])
    write_table("estimator-initial-state", "Unknown initial states", HEAD, lines, (), runs.tables)
    return []


def measure(runs: Runs, plan: Plan, problem: str, seed: int, way: str) -> dict[str, Any]:
    """One fit as the daemon makes it, with initial states as uncertain as they are, or as if they were certain."""
    folder, _, learned = runs.problem(problem)
    trial = make_trial(folder, seed, plan.windows, velocity_noise=VELOCITY_NOISE)
    windows = replace(trial.windows, x0_sd=trial.windows.x0_sd * WAYS[way])
    start = trial.robot.parameters.z_nominal
    found = identify(Replay(trial.robot, THREADS), windows, start, learned, test_structure=False)
    error = np.abs(found.z - trial.truth)
    inside = float(np.mean((error <= found.uncertainty.half_width(0.90))[trial.identifiable]))
    return {"error": float(np.median(error)), "inside": inside, "held_out": trial.held_out_gap(found.z)}
