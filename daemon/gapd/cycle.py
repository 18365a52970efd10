"""The whole cycle on recordings: gates, windows, fit, structure, check, decision. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gapd.check import Check, blocks_of, check, split_blocks
from gapd.decide import Decision, ParameterEstimate, decide, movable
from gapd.errors import InputError
from gapd.estimator import Problem, settle, start
from gapd.gates import Gate, usable_starts
from gapd.identify import PRIOR_SHARE, Identification, identify
from gapd.jacobian import FiniteDifference, JacobianSource
from gapd.replay import Replay
from gapd.robot import Robot
from gapd.windows import Frames, Windows, cut

Array = NDArray[np.float64]

# Windows of one block count as one observation in the check.
BLOCK_S = 1.2
HELD_SHARE = 0.3
# A fit on a recording is one candidate, tested as strictly as one of a running daemon.
ALPHA = 0.01
# Windows below which a fit says more about luck than about the robot.
MIN_WINDOWS = 12


@dataclass(frozen=True)
class Prepared:
    """Recordings after the gates: verdicts of all candidate windows, and the ok ones."""

    gates: tuple[Gate, ...]
    windows: Windows


@dataclass(frozen=True)
class Report:
    """What one cycle found. `held` are the held-out windows with the predictions (H, K+1, C) before and after."""

    gates: tuple[Gate, ...]
    fitted: int
    estimates: tuple[ParameterEstimate, ...]
    identification: Identification
    check: Check
    decision: Decision
    held: Windows
    predicted_before: Array
    predicted_after: Array


def prepare(robot: Robot, recordings: Iterable[Frames]) -> Prepared:
    """Judge all candidate windows and cut the ok ones; InputError if none is left."""
    gates: list[Gate] = []
    parts: list[Windows] = []
    offset = robot.config.timing.command_offset_s
    for number, frames in enumerate(recordings):
        for run in usable_starts(frames, robot):
            gates.extend(run.gates)
            if len(run.usable):
                parts.append(cut(run.frames, robot.layout, run.usable, offset, number))
    usable = sum(len(p) for p in parts)
    if usable < MIN_WINDOWS:
        refused = next((g for g in gates if g.verdict != "ok"), None)
        why = f"; the first refused {refused.sentence}" if refused else ""
        raise InputError(f"{usable} usable windows of {len(gates)}, a fit needs {MIN_WINDOWS}: record more motion{why}")
    return Prepared(tuple(gates), Windows.concatenate(parts))


def run(
    robot: Robot,
    prepared: Prepared,
    before: Array | None = None,
    learned: JacobianSource | None = None,
    outside_range: Callable[[Array, Array], tuple[str, ...]] | None = None,
    threads: int = 1,
) -> Report:
    """Fit on one part of the windows, from the physical values `before` (P,), and check on the other.

    outside_range tells from features (n, K+1, F) and context (n, K+1, X) which inputs `learned` was not trained on.
    """
    space, windows = robot.parameters, prepared.windows
    fit_at, held_at = split_blocks(
        windows.start_s, windows.source, BLOCK_S, robot.config.timing.window_s, HELD_SHARE, robot.config.seed
    )
    held, replay = windows.take(held_at), Replay(robot, threads)
    z_before = space.z_nominal if before is None else space.to_scaled(before)
    found = identify(replay, windows.take(fit_at), z_before, learned)
    estimates = _estimates(robot, found)
    z_after = np.where(movable(estimates, bool(found.findings)), found.z, z_before)
    gap_before, predicted_before = _held_out(replay, held, z_before, found)
    gap_after, predicted_after = _held_out(replay, held, z_after, found)
    verdict = check(
        gap_before, gap_after, None, ALPHA, block=blocks_of(held.start_s, held.source, BLOCK_S),
        window_s=robot.config.timing.window_s, channels=robot.layout.channels,
    )  # fmt: skip
    known = windows.take(fit_at).context[:, :: robot.layout.substeps]
    outside = outside_range(found.fit.state.rollouts.features, known) if outside_range and found.learned else ()
    decision = decide(estimates, verdict, found.findings, outside_range=outside)
    return Report(
        prepared.gates,
        len(fit_at),
        estimates,
        found,
        verdict,
        decision,
        held,
        predicted_before,
        predicted_after,
    )


def _estimates(robot: Robot, found: Identification) -> tuple[ParameterEstimate, ...]:
    space, sd = robot.parameters, found.uncertainty.sd
    unknown = np.array([status == "unidentifiable" for status in found.uncertainty.status])
    z = np.where(unknown, found.before, found.z)  # what the data do not determine stays
    before, after, physical_sd = (
        space.to_physical(found.before),
        space.to_physical(z),
        space.physical_sd(z, sd),
    )
    effective = found.survives if found.findings else np.zeros(len(space), bool)
    return tuple(
        ParameterEstimate(
            name, unit, float(before[p]), float(after[p]), float(physical_sd[p]), float(found.before[p]), float(z[p]),
            float(sd[p]), found.uncertainty.status[p], bool(effective[p]),
        )
        for p, (name, unit) in enumerate(zip(space.names, space.units, strict=True))
    )  # fmt: skip


def _held_out(replay: Replay, held: Windows, z: Array, found: Identification) -> tuple[Array, Array]:
    """Squared gap (H, C) of windows that no fit has seen, each with its own initial state cleared; predictions.

    A window whose replay diverges is NaN, and the others are settled without it.
    """
    space, exact = replay.robot.parameters, FiniteDifference(replay)
    ran = ~replay.run(held, space.to_physical(z)).failed
    squared = np.full((len(held), len(found.weight)), np.nan)
    predicted = np.full_like(held.measured, np.nan)
    if ran.any():
        prior_sd = PRIOR_SHARE * (space.z_max - space.z_min)
        problem = Problem(exact, held.take(ran), z, prior_sd, found.weight, np.ones(len(z), bool))
        state = settle(problem, start(problem, z), exact)
        present = np.isfinite(state.gap)
        total = np.where(present, state.gap, 0.0) ** 2
        mean = total.sum(axis=1) / np.maximum(present.sum(axis=1), 1)
        squared[ran], predicted[ran] = np.where(present.any(axis=1), mean, np.nan), state.rollouts.predicted
    return squared, predicted
