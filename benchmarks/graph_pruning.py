"""What it costs a fit to hold the parameters without an edge: recordings fitted with all and with the others."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from estimator_methods import EXACT, PLAIN
from numpy.typing import NDArray
from trial import Trial, make_trial

from gaptrain.data import open_training
from gaptrain.graph import measure_graph

Array = NDArray[np.float64]

HEAD = (
    "truth", "parameters moved", "rollouts", "wall s", "held-out gap", "identifiable",
    "error of these in exact sd, median", "worst",
)  # fmt: skip


def rows(folder: Path, windows: int, seeds: range, threads: int) -> list[list[str]]:
    """Two rows for each truth of the robot in a folder: all parameters are drawn, all or the active ones are fitted."""
    robot, training = open_training(folder, graph_windows=windows)
    names = robot.parameters.names
    active = {names[p] for p in measure_graph(robot, training, threads).active}
    lines = []
    for seed in seeds:
        whole = make_trial(folder, seed)
        for kept in (set(names), active):
            lines.append(_row(whole, kept))
            print(lines[-1], flush=True)
    return lines


def _row(whole: Trial, kept: set[str]) -> list[str]:
    names = whole.robot.parameters.names
    columns = np.array([p for p, name in enumerate(names) if name in kept])
    trial = replace(
        whole, robot=whole.robot.holding(set(names) - kept), truth=whole.truth[columns],
        bound_sd=whole.bound_sd[columns], identifiable=whole.identifiable[columns],
    )  # fmt: skip
    began = time.perf_counter()
    found = PLAIN[EXACT](trial, None)
    seconds, error = time.perf_counter() - began, trial.error_sd(found.z)[trial.identifiable]
    return [
        f"{whole.seed}", f"{len(columns)}", f"{found.rollouts}", f"{seconds:.0f}", f"{trial.held_out_gap(found.z):.3f}",
        f"{len(error)}", f"{np.median(error):.2f}" if len(error) else "-", f"{error.max():.1f}" if len(error) else "-",
    ]  # fmt: skip
