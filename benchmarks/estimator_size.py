"""Sixth table: everything of a model unknown. Time and memory with hundreds of parameters.

Each fit runs in a process of its own, so that its peak memory is its own:

    .venv/bin/python benchmarks/estimator_size.py arm7_100 --seed 0 --windows 32
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from estimator_runs import FITTED_BY, THREADS, Bar, Plan, Row, Runs
from problems import FOLDER, LARGE, open_problem, spec_of
from tables import write_table
from trial import make_trial

from gapd.fit.identify import identify
from gapd.gap.replay import Replay

NOTE = """gapd fits as it does on a robot: with the gap model where there is one, else with finite differences. memory:
peak of the process; before: with the robot, windows and gap model loaded. done: identifiable parameters within 3 exact
standard deviations of the truth. cover: of their 90 % intervals."""
HEAD = (
    "problem",
    "derivatives",
    "identifiable",
    "done",
    "cover",
    "held-out gap",
    "rollouts",
    "wall s",
    "memory MB",
    "before",
    "truths",
)


def run(runs: Runs, plan: Plan) -> list[Bar]:
    """Measure what is missing and write the table; there is no bar."""
    lines = []
    for name in (p for p in plan.problems if p in LARGE):
        runs.problem(name)  # writes and trains
        rows = []
        for seed in plan.seeds(max(plan.truths // 10, 1)):

            def compute(name: str = name, seed: int = seed) -> Mapping[str, Any]:
                return _in_process(runs, name, seed, plan.windows)

            rows.append(runs.once({"table": "size", "seed": seed, "windows": plan.windows}, name, compute, FITTED_BY))
        lines.append(_line(name, rows))
    if lines:
        write_table(
            "estimator-size", f"Hundreds of parameters, {plan.windows} windows", HEAD, lines, (NOTE,), runs.tables
        )
    return []


def _in_process(runs: Runs, name: str, seed: int, windows: int) -> Mapping[str, Any]:
    command = [sys.executable, __file__, name, "--seed", f"{seed}", "--windows", f"{windows}", "--root", f"{runs.root}"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(name: str, seed: int, windows: int, root: Path) -> dict[str, Any]:
    """One fit in this process."""
    robot, learned = open_problem(name, train=False, root=root)
    trial = make_trial(root / name, seed, windows)
    replay = Replay(trial.robot, THREADS)
    before_mb, began = _peak_mb(), time.perf_counter()
    found = identify(replay, trial.windows, robot.parameters.z_nominal, learned, test_structure=False)
    wall, peak_mb, known = time.perf_counter() - began, _peak_mb(), trial.identifiable
    error = np.abs(found.z - trial.truth)
    return {
        "source": "gap model" if found.learned else "finite differences", "parameters": len(error),
        "identifiable": int(known.sum()), "done": int((trial.error_sd(found.z)[known] <= 3.0).sum()),
        "inside": int((error <= found.uncertainty.half_width(0.90))[known].sum()),
        "held_out": trial.held_out_gap(found.z), "rollouts": found.rollouts, "wall_s": wall, "peak_mb": peak_mb,
        "before_mb": before_mb,
    }  # fmt: skip


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _line(name: str, rows: list[Row]) -> list[str]:
    known = sum(r["identifiable"] for r in rows)
    return [
        f"{name}: {spec_of(name).title}", rows[0]["source"], f"{known / len(rows):.0f} of {rows[0]['parameters']}",
        f"{sum(r['done'] for r in rows)} of {known}", f"{100 * sum(r['inside'] for r in rows) / max(known, 1):.0f} %",
        *(f"{np.median([r[k] for r in rows]):{form}}" for k, form in (
            ("held_out", ".3f"), ("rollouts", ".0f"), ("wall_s", ".1f"), ("peak_mb", ".0f"), ("before_mb", ".0f"),
        )),
        f"{len(rows)}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--windows", type=int, default=32)
    parser.add_argument("--root", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.problem, arguments.seed, arguments.windows, arguments.root)), flush=True)


if __name__ == "__main__":
    main()
