"""What windows of the training's motions tell about each parameter of the nominal robot, by exact derivatives."""

from __future__ import annotations

import numpy as np

from gapd.fit.estimator import Problem, start
from gapd.fit.uncertainty import ambiguities
from gapd.gap.replay import Replay
from gapd.gap_model.manifest import Expected
from gapd.model.robot import Robot
from gaptrain.draws import draw_windows
from gaptrain.settings import Training

# As many as a fit uses by default.
WINDOWS = 32
# The random numbers of these windows: others than those of the shards and of the graph.
STREAM = 3


def expected(robot: Robot, training: Training, threads: int = 2) -> Expected:
    """Knowledge after WINDOWS windows, all of the nominal robot: what cannot be told apart depends on the values."""
    rng, space = np.random.default_rng([training.seed, STREAM]), robot.parameters
    windows, _ = draw_windows(robot, training, rng, WINDOWS, threads, space.nominal)
    problem = Problem.of(Replay(robot, threads), windows, space.z_nominal)
    state = start(problem, space.z_nominal)
    normal = problem.normal(state, problem.exact.linearise(problem.point(state)))
    sd = np.sqrt(np.diag(np.linalg.inv(problem.totals(state, normal)[0])))
    groups = ambiguities(normal.information.sum(axis=0), problem.prior_sd)
    named = tuple(tuple(space.names[member] for member in group) for group in groups)
    return Expected(len(windows), tuple(problem.prior_sd.tolist()), tuple(sd.tolist()), named)
