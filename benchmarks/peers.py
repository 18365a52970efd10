"""The tools gapd is compared with: scipy and mujoco.sysid, on the same windows, parameters and bounds."""

from __future__ import annotations

import copy
import importlib
import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import mujoco
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from trial import every_step

from gapd.errors import ConfigError
from gapd.fit.estimator import Progress
from gapd.fit.gauss_newton import residuals
from gapd.gap.jacobian import STEP_Z
from gapd.gap.replay import Replay, gap
from gapd.measured.windows import Windows
from gapd.model.robot import Robot

Array = NDArray[np.float64]
# Not by `import`: it ships types, the package around it does not, and a type checker would believe half of both.
sysid: Any = importlib.import_module("mujoco.sysid")
Scale = Literal["log", "linear"]
Weighting = Literal["noise", "signal"]

# Residual of a diverged replay in floors: far above everything a replay within the bounds gives, yet finite.
DIVERGED = 1e4


@dataclass(frozen=True)
class PeerFit:
    """Result of a peer: scaled values, what they cost, and the points on the way, each better than those before."""

    z: Array  # (P,) scaled
    cost: float  # squared residual, in the peer's own units
    rollouts: int
    seconds: float
    trace: tuple[Progress, ...]
    ends: tuple[Array, ...] = ()  # where the starts of a multistart ended


class _Trace:
    """Points evaluated so far that were better than all before."""

    def __init__(self) -> None:
        self.kept: list[Progress] = []
        self.cost = np.inf

    def note(self, rollouts: int, z: Array, cost: float) -> None:
        if cost < self.cost:
            self.cost = cost
            self.kept.append(Progress(rollouts, z.copy()))


def multistart(robot: Robot, n: int, seed: int) -> Array:
    """Starting points (n, P), scaled: nominal, then draws within the bounds."""
    space = robot.parameters
    drawn = space.draw(np.random.default_rng(seed), n - 1)
    return np.concatenate([space.z_nominal[None], space.to_scaled(drawn)])


def scipy_fit(robot: Robot, windows: Windows, starts: Array, max_evaluations: int = 60, threads: int = 1) -> PeerFit:
    """Best of bounded `least_squares` from each start (S, P), by its own cost; all rollouts are counted.

    The initial states are the measured ones, as in a conventional replay fit.
    """
    began = time.perf_counter()
    residual = _Residual(robot, windows, threads)
    space = robot.parameters
    results = []
    for start in starts:
        margin = 1e-6 * (space.z_max - space.z_min)
        inside = np.clip(start, space.z_min + margin, space.z_max - margin)
        bounds = (space.z_min, space.z_max)
        results.append(
            least_squares(residual, inside, residual.jacobian, bounds, x_scale="jac", max_nfev=max_evaluations)
        )
    best = min(results, key=lambda result: float(result.cost))
    return PeerFit(
        best.x, 2.0 * best.cost, residual.replay.rollouts, time.perf_counter() - began, tuple(residual.trace.kept),
        tuple(result.x for result in results),
    )  # fmt: skip


class _Residual:
    """Gap at all knots as a function of z, with gapd's own replay and finite differences."""

    def __init__(self, robot: Robot, windows: Windows, threads: int) -> None:
        self.replay = Replay(robot, threads)
        self.trace = _Trace()
        self._windows = windows
        self._last = (np.full(len(robot.parameters), np.nan), np.empty(0))  # z, what was predicted there

    def __call__(self, z: Array) -> Array:
        robot, windows = self.replay.robot, self._windows
        rollouts = self.replay.run(windows, robot.parameters.to_physical(z))
        self._last = (z.copy(), rollouts.predicted)
        g = residuals(gap(windows, rollouts, robot.layout.noise), np.ones(len(robot.layout.noise)))
        g[rollouts.failed] = DIVERGED
        self.trace.note(self.replay.rollouts, z, float(np.sum(g**2)))
        return g.ravel()

    def jacobian(self, z: Array) -> Array:
        """Forward differences of all parameters in one batch, with gapd's step."""
        robot, windows, n = self.replay.robot, self._windows, len(z)
        if not np.array_equal(self._last[0], z):
            self(z)
        step = np.where(z + STEP_Z <= robot.parameters.z_max, STEP_Z, -STEP_Z)
        moved = robot.parameters.to_physical(z + np.diag(step))
        rows = np.tile(np.arange(len(windows)), n)
        predicted = self.replay.run(windows.take(rows), np.repeat(moved, len(windows), axis=0)).predicted
        change = predicted.reshape(n, len(windows), *predicted.shape[1:]) - self._last[1]
        slope = -np.moveaxis(change[:, :, 1:], 0, -1) / (robot.layout.noise[:, None] * step)
        slope[~np.isfinite(windows.measured[:, 1:])] = 0.0
        return np.nan_to_num(slope).reshape(-1, n)


def sysid_fit(  # noqa: PLR0913 - one argument for each setting of the tool
    robot: Robot,
    windows: Windows,
    z_start: Array,
    *,
    scale: Scale = "log",
    x_scale: str | None = None,
    knots_only: bool = True,
    weighting: Weighting = "noise",
    max_iterations: int = 100,
    threads: int = 2,
) -> PeerFit:
    """Fit with `mujoco.sysid.optimize`, default backend, from z_start (P,).

    `windows` are cut for `robot`, or for `every_step(robot)`; only the latter have the samples that knots_only =
    False compares. scale: the coordinates in which it works, gapd's scaled ones or physical ones. weighting:
    residuals in channel noise, or divided by the norm of the signal in each window, which is the tool's default.
    Initial states are the measured ones: it has no notion of their noise. Where parameters are written with
    context (supply voltage per frame), the rollout is gapd's, passed as `custom_rollout`; else it is the tool's own.
    """
    began = time.perf_counter()
    coordinates = _Coordinates(robot, scale)
    rollout = _ContextRollout(coordinates, windows, threads) if robot.binding.context_used else None
    compare = _Comparison(robot, _rows(robot, windows, knots_only), weighting)
    measured = _sequences(robot, windows).measured_rollout
    trace = _Trace()

    def residual(x: Array, params: Any) -> tuple[list[Array], None, None]:
        # One call for all windows is the fastest way to use the tool. Its columns are then (vector, window).
        stacked, _, _ = sysid.model_residual(
            x, params, coordinates.build_model, measured, compare, rollout, threads, resample_true=False
        )  # fmt: skip
        columns = stacked.T.reshape(x.size // len(z_start), -1).T
        if columns.shape[1] == 1:
            trace.note(compare.count, coordinates.z(x.ravel()), float(np.sum(columns**2)))
        return [columns], None, None

    params = coordinates.parameters(z_start)
    settings = {"max_iters": max_iterations, "x_scale": x_scale, "output": io.StringIO()}
    fitted, _ = sysid.optimize(params, residual, verbose=False, **settings)
    z = coordinates.z(fitted.as_vector())
    return PeerFit(z, trace.cost, compare.count, time.perf_counter() - began, tuple(trace.kept))


def _rows(robot: Robot, windows: Windows, knots_only: bool) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Which simulation steps to compare, and with which rows of the windows' measurements; the initial ones never."""
    layout, present = robot.layout, windows.measured.shape[1]
    knots = np.arange(1, layout.knots + 1)
    if present == layout.knots + 1 and (knots_only or layout.substeps == 1):
        return knots * layout.substeps, knots
    if present != layout.steps + 1:
        raise ConfigError(f"windows hold {present} samples: cut them for every_step(robot) to compare all of them")
    steps = knots * layout.substeps if knots_only else np.arange(1, layout.steps + 1)
    return steps, steps


class _Coordinates:
    """The parameters as mujoco.sysid sees them: one scalar each, written into the same MjModel cells as by gapd."""

    def __init__(self, robot: Robot, scale: Scale) -> None:
        self.robot, self._scale = robot, scale

    def z(self, x: Array) -> Array:
        return x if self._scale == "log" else self.robot.parameters.to_scaled(x)

    def physical(self, params: Any) -> Array:
        return self.robot.parameters.to_physical(self.z(params.as_vector()))

    def parameters(self, z_start: Array) -> Any:
        space = self.robot.parameters
        ends = [z_start, space.z_min, space.z_max]
        if self._scale == "linear":
            ends = [space.to_physical(end) for end in ends]
        table = zip(space.names, *ends, strict=True)
        return sysid.ParameterDict({name: sysid.Parameter(name, *values) for name, *values in table})

    def build_model(self, params: Any) -> mujoco.MjModel:
        """Model with these values, written in place: a favour, its modifiers would compile the MJCF anew."""
        model = copy.copy(self.robot.model)
        self.robot.binding.write(model, self.physical(params), self.robot.context_nominal)
        return model


@dataclass(frozen=True)
class _Numbered(sysid.TimeSeries):  # type: ignore[misc]
    """Commands of one window that know which window they are of."""

    window: int = 0


def _sequences(robot: Robot, windows: Windows) -> Any:
    """The windows as mujoco.sysid's measured sequences.

    Its rollout drops the last command, hence one more; and its row k holds what the sensors read before step k.
    """
    model, layout = robot.model, robot.layout
    times = np.arange(windows.control.shape[1] + 1) * layout.step_s
    control = np.concatenate([windows.control, windows.control[:, -1:]], axis=1)
    measured = np.full((*windows.measured.shape[:2], model.nsensordata), np.nan)
    measured[:, :, layout.sensor] = windows.measured
    rows = np.arange(measured.shape[1])
    n = len(windows)
    return sysid.ModelSequences(
        robot.config.robot,
        mujoco.MjSpec.from_file(str(robot.config.path(robot.config.model))),
        [f"window {i}" for i in range(n)],
        [sysid.create_initial_state(model, windows.qpos0[i], windows.qvel0[i]) for i in range(n)],
        [_Numbered(times, control[i], window=i) for i in range(n)],
        [sysid.TimeSeries.from_names(rows, measured[i], model) for i in range(n)],
    )


@dataclass
class _Comparison:
    """sysid.ModifyResidualFn: measurement minus prediction at chosen steps, absent measurements zero.

    It is called once for each rollout, and counts them.
    """

    robot: Robot
    rows: tuple[NDArray[np.intp], NDArray[np.intp]]
    weighting: Weighting
    count: int = 0

    def __call__(
        self, _params: Any, predicted: Any, measured: Any, _model: Any, _all: bool, **_: Any
    ) -> tuple[Array, Any, Any]:
        self.count += 1
        steps, samples = self.rows
        layout = self.robot.layout
        wanted = measured.data[samples][:, layout.sensor]
        difference = wanted - predicted.data[steps][:, layout.sensor]
        difference[~np.isfinite(difference)] = DIVERGED * np.max(layout.noise)
        difference[~np.isfinite(wanted)] = 0.0
        if self.weighting == "noise":
            difference = difference / layout.noise
        else:
            difference = sysid.normalize_residual(difference, np.nan_to_num(wanted))
        return difference, measured, measured


class _ContextRollout:
    """sysid.CustomRolloutFn: gapd's replay, which writes context values during the rollout."""

    def __init__(self, coordinates: _Coordinates, windows: Windows, threads: int) -> None:
        self._replay = Replay(every_step(coordinates.robot), threads)
        self._coordinates, self._windows = coordinates, windows

    def __call__(
        self, *, control_signal: Sequence[_Numbered], initial_states: Any, param_dicts: Sequence[Any], **_: Any
    ) -> list[Any]:
        robot = self._replay.robot
        windows = self._windows.take([c.window for c in control_signal])
        each = len(control_signal) // len(param_dicts)
        physical = np.repeat([self._coordinates.physical(p) for p in param_dicts], each, axis=0)
        predicted = self._replay.run(windows, physical).predicted
        sensors = np.zeros((*predicted.shape[:2], robot.model.nsensordata))
        sensors[:, :, robot.layout.sensor] = predicted
        times = np.arange(1, predicted.shape[1] + 1) * robot.layout.step_s
        state = sysid.TimeSeries(times, times[:, None])
        return [
            sysid.SystemTrajectory(robot.model, control, sysid.TimeSeries(times, rows), initial, state)
            for control, rows, initial in zip(control_signal, sensors, initial_states, strict=True)
        ]
