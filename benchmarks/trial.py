"""One estimation problem with a known answer, and how far along a method's trace is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gapd.fit.estimator import Problem, Progress, State, settle, start
from gapd.fit.gauss_newton import residuals
from gapd.fit.uncertainty import UNKNOWN_SHARE
from gapd.gap.jacobian import FiniteDifference, Linearisation, Point
from gapd.gap.replay import Replay, gap
from gapd.gap_model.bundle import open_active
from gapd.measured.windows import Windows, cut, window_starts
from gapd.model.parameters import ParameterSet
from gapd.model.robot import Robot
from gaptrain.settings import Excitation, load_training
from gaptrain.simulate import Recording, record

Array = NDArray[np.float64]

MODELS = Path(__file__).parents[1] / "models"
# A method is in the neighbourhood when its excess gap² is below this share of the start's (DESIGN of gapd).
NEAR_SHARE = 0.01
# ... and finished when every identifiable parameter is within this many exact standard deviations of the truth.
DONE_SD = 3.0
# A parameter is identifiable when these windows could tell it to this share of its value (scaled: on a linear scale a
# quarter of the range counts as the value). The exact bound at the truth says so, and once more where the parameters
# that it leaves open are at their start: a damping too small to be told may hide a friction there. No estimate has a
# say in it.
IDENTIFIABLE_SD = 0.015
# Truths of a far start are the start times a factor in this range.
FAR = (0.3, 3.0)


@dataclass(frozen=True)
class Trial:
    """A stand-in robot with hidden parameters: windows to fit, windows held out, and the exact bound at the truth."""

    robot: Robot
    seed: int
    truth: Array  # (P,) scaled
    windows: Windows
    held: Windows
    clean: Windows  # the fitted windows without noise, from the true initial states
    fine: Windows  # the fitted windows with a measurement at each simulation step
    bound_sd: Array  # (P,) standard deviation of the best unbiased estimate
    identifiable: NDArray[np.bool_]  # (P,)

    def problem(self, replay: Replay) -> Problem:
        """The fit that all methods of gapd solve."""
        return Problem.of(replay, self.windows, self.robot.parameters.z_nominal)

    def excess(self, z: Array) -> float:
        """Mean squared noise-free gap: what the parameters alone get wrong, in squared floors."""
        rollouts = Replay(self.robot, 2).run(self.clean, self.robot.parameters.to_physical(z))
        squared = gap(self.clean, rollouts, self.robot.layout.noise) ** 2
        return float(np.mean(squared)) if np.isfinite(squared).all() else np.inf

    def held_out_gap(self, z: Array) -> float:
        """RMS gap on the held-out windows in floors, after each window's initial state is cleared."""
        problem = replace(self.problem(Replay(self.robot, 2)), windows=self.held, held=np.ones(len(z), bool))
        state: State = settle(problem, start(problem, z))
        return float(np.sqrt(np.mean(residuals(state.gap, problem.weight) ** 2)))

    def near(self, trace: Sequence[Progress]) -> int | None:
        """Rollouts until the neighbourhood."""
        goal = NEAR_SHARE * self.excess(self.robot.parameters.z_nominal)
        return _first(trace, lambda z: self.excess(z) <= goal)

    def done(self, trace: Sequence[Progress]) -> int | None:
        """Rollouts until every identifiable parameter is within 3 exact standard deviations of the truth."""
        return _first(trace, lambda z: bool(np.all(self.error_sd(z)[self.identifiable] <= DONE_SD)))

    def error_sd(self, z: Array) -> Array:
        """Absolute error (P,) in exact standard deviations."""
        return np.asarray(np.abs(z - self.truth) / self.bound_sd)


def _first(trace: Sequence[Progress], reached: Callable[[Array], bool]) -> int | None:
    """Rollouts at the first kept point from which on the condition holds for good."""
    found: int | None = None
    for entry in reversed(trace):
        if not reached(entry.z):
            break
        found = entry.rollouts
    return found


def make_trial(
    model: str | Path,
    seed: int,
    windows: int = 32,
    velocity_noise: float | None = None,
    far: bool = False,
) -> Trial:
    """Draw a truth, record two motions of a robot that has it, and compute the exact bound at the truth.

    `model` is a folder, or the name of one in models/. The truth is uniform within the bounds (scaled), or with `far`
    the start times factors that are uniform in their logarithm, as far as the bounds allow.
    """
    folder = MODELS / model
    robot = open_active(folder / "robot.toml")
    if velocity_noise is not None:
        noise = robot.layout.noise.copy()
        noise[robot.layout.velocity] = velocity_noise
        robot = replace(robot, layout=replace(robot.layout, noise=noise))
    excitation = load_training(folder / "train.toml").excitation
    truth = (_draw_far if far else _draw)(robot.parameters, np.random.default_rng(seed))
    fitted, held = (_record(robot, excitation, truth, windows, first + seed) for first in (1000, 5000))
    cut_windows = _cut(robot, fitted)
    steps = np.round(cut_windows.start_s / robot.layout.step_s).astype(int)
    knots = steps[:, None] + np.arange(robot.layout.knots + 1) * robot.layout.substeps
    clean = replace(cut_windows, qpos0=fitted.qpos[steps], qvel0=fitted.qvel[steps], measured=fitted.clean[knots])
    bound, is_open = _bound(robot, clean, truth)
    identifiable = bound <= IDENTIFIABLE_SD
    if is_open.any():
        elsewhere = np.where(is_open, robot.parameters.z_nominal, truth)
        identifiable &= _bound(robot, clean, elsewhere)[0] <= IDENTIFIABLE_SD
    fine = _cut(every_step(robot), fitted)
    return Trial(robot, seed, truth, cut_windows, _cut(robot, held), clean, fine, bound, identifiable)


def _draw(space: ParameterSet, rng: np.random.Generator) -> Array:
    return space.to_scaled(space.draw(rng, 1)[0])


def _draw_far(space: ParameterSet, rng: np.random.Generator) -> Array:
    """A scaled truth (P,): log parameters by factor, others within a third of their range around the start."""
    log = np.array([p.scale == "log" for p in space.free])
    sixth = (space.z_max - space.z_min) / 6
    low = space.z_nominal + np.where(log, np.log(FAR[0]), -sixth)
    high = space.z_nominal + np.where(log, np.log(FAR[1]), sixth)
    return np.asarray(rng.uniform(np.maximum(low, space.z_min), np.minimum(high, space.z_max)))


def every_step(robot: Robot) -> Robot:
    """The same robot with a knot at each simulation step, for tools that compare all samples."""
    layout = robot.layout
    return replace(robot, layout=replace(layout, knots=layout.steps, substeps=1, knot_s=layout.step_s))


def _record(robot: Robot, excitation: Excitation, truth: Array, windows: int, seed: int) -> Recording:
    seconds = windows * robot.config.timing.window_s + robot.layout.step_s
    return record(robot, excitation, robot.parameters.to_physical(truth), seconds, seed)


def _cut(robot: Robot, recording: Recording) -> Windows:
    return cut(recording.frames, robot.layout, window_starts(recording.frames, robot.layout))


def _bound(robot: Robot, clean: Windows, z: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Exact standard deviations (P,) at z, prior included, and which parameters the data leave open."""
    problem = Problem.of(Replay(robot, 2), clean, z)
    state = start(problem, z)
    normal = problem.normal(state, problem.exact.linearise(problem.point(state)))
    sd = np.asarray(np.sqrt(np.diag(np.linalg.inv(problem.totals(state, normal)[0]))))
    return sd, sd > UNKNOWN_SHARE * problem.prior_sd


class FrozenInitialState:
    """Exact parameter derivatives at every point, those of the initial state only at the first: cheaper."""

    def __init__(self, exact: FiniteDifference) -> None:
        self.exact = exact
        self._x0: Array | None = None

    def linearise(self, point: Point) -> Linearisation:
        """See `JacobianSource`."""
        if self._x0 is None:
            self._x0 = self.exact.initial_state(point)
        return Linearisation(self.exact.parameters(point), self._x0)
