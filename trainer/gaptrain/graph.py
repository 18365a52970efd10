"""The causal graph: which parameter moves which channel, measured on replays of training windows. No network.

The effect of one parameter on one channel does not depend on what is done with the others' effects, so that each edge
can be measured by itself. Exact derivatives of a thousand windows do that for hundreds of parameters within minutes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from gapd.errors import InputError
from gapd.gap.jacobian import FiniteDifference, Point
from gapd.gap.replay import Replay
from gapd.model.robot import Robot
from gaptrain.draws import WINDOWS_PER_MOTION, draw_replay_parameters, draw_windows, refuse_many_dropped, take
from gaptrain.settings import Training
from gaptrain.simulate import driven_joints

Array = NDArray[np.float64]

# An edge is an effect of one prior standard deviation on the channel above this many noise standard deviations rms.
EDGE_SIGMA = 0.1
# From this probability on an edge is there rather than not.
EDGE = 0.5
# A parameter whose effects are all below this (noise standard deviations) does nothing in these motions: rounding of a
# replay is a thousand times smaller. Whether it does something in others, they cannot tell.
UNTESTED_SIGMA = 1e-6
RESAMPLES = 400
# The random numbers of the graph's windows: others than those of any shard.
STREAM = 2


@dataclass(frozen=True)
class Graph:
    """effect (P, C): rms over windows of what one prior standard deviation does, in noise standard deviations.

    probability (P, C): that it is above EDGE_SIGMA, by resampling whole motions. tested (P,): whether a parameter does
    anything at all in these motions.
    """

    effect: Array
    probability: Array
    tested: NDArray[np.bool_]

    @property
    def edges(self) -> NDArray[np.bool_]:
        """Edges (P, C) that are rather there than not."""
        return np.asarray(self.probability > EDGE)

    @property
    def active(self) -> NDArray[np.intp]:
        """Parameters (A,) with an edge."""
        return np.flatnonzero(self.edges.any(axis=1))

    def take(self, parameters: NDArray[np.intp]) -> Graph:
        """The graph of some parameters."""
        return Graph(self.effect[parameters], self.probability[parameters], self.tested[parameters])


def measure_graph(robot: Robot, training: Training, threads: int = 2, console: Console | None = None) -> Graph:
    """Measure the effects of all parameters on windows that are drawn as the training windows are.

    The console shows how far it is, if given. One replay per window and parameter, and 8 bytes of memory for each with
    every channel. ConfigError where the motions do not fit the robot, or too many replays diverge.
    """
    driven_joints(robot, training.excitation)
    rng = np.random.default_rng([training.seed, STREAM])
    drawn, z_robot = draw_windows(robot, training, rng, training.graph_windows, threads)
    z = draw_replay_parameters(robot, rng, z_robot)
    replay = Replay(robot, threads)
    rollouts = replay.run(drawn, robot.parameters.to_physical(z))
    kept = np.flatnonzero(~rollouts.failed)
    refuse_many_dropped(len(drawn) - len(kept), len(drawn), "replays")
    point = take(Point(drawn, z, drawn.qpos0, drawn.qvel0, rollouts), kept)
    source, names = FiniteDifference(replay), robot.parameters.names
    axes = track(range(len(names)), "causal graph", disable=console is None, console=console)
    squared = np.stack([_squared(source, point, axis) for axis in axes], axis=1)  # (W, P, C)
    squared *= (np.ptp([robot.parameters.z_min, robot.parameters.z_max], axis=0)[:, None] ** 2) / 12
    return graph_of(squared, kept // WINDOWS_PER_MOTION, rng)


def graph_of(squared: Array, motion: NDArray[np.intp], rng: np.random.Generator) -> Graph:
    """The graph of squared effects (W, P, C); motion (W,) numbers the motions that windows are cut from."""
    known = np.isfinite(squared)
    _, member = np.unique(motion, return_inverse=True)
    total = _by_motion(np.where(known, squared, 0.0), member)  # (M, P, C)
    count = _by_motion(known.astype(float), member)
    effect = np.sqrt(total.sum(axis=0) / np.maximum(count.sum(axis=0), 1))
    weight = rng.multinomial(len(total), np.full(len(total), 1 / len(total)), RESAMPLES).astype(float)
    shape = total.shape[1:]
    again = (weight @ total.reshape(len(total), -1)) / np.maximum(weight @ count.reshape(len(total), -1), 1)
    probability = (again > EDGE_SIGMA**2).mean(axis=0).reshape(shape)
    return Graph(effect, probability, (effect > UNTESTED_SIGMA).any(axis=1))


def _by_motion(values: Array, member: NDArray[np.intp]) -> Array:
    """Sums (M, P, C) over the windows of each motion."""
    result = np.zeros((int(member.max()) + 1, *values.shape[1:]))
    np.add.at(result, member, values)
    return result


def _squared(source: FiniteDifference, point: Point, axis: int) -> Array:
    """Mean over the knots of the squared derivative (W, C) along one axis; NaN for a window without one."""
    direction = np.eye(point.z.shape[1])[:, [axis]]
    try:
        return np.asarray((source.parameters(point, direction)[..., 0] ** 2).mean(axis=1))
    except InputError:
        count = len(point.windows)
        if count == 1:
            return np.full((1, point.rollouts.predicted.shape[-1]), np.nan)
    halves = (np.arange(count // 2), np.arange(count // 2, count))
    return np.concatenate([_squared(source, take(point, rows), axis) for rows in halves])
