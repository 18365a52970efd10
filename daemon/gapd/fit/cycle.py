"""The whole cycle on recordings: gates, windows, fit, structure, check, decision. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gapd.errors import InputError
from gapd.fit.check import MIN_BLOCKS, MIN_WINDOWS, Check, blocks_of, check, split_blocks
from gapd.fit.decide import Decision, ParameterEstimate, decide, limit, movable
from gapd.fit.estimator import Problem, settle, start
from gapd.fit.gauss_newton import channel_rms
from gapd.fit.identify import Identification, identify
from gapd.gap.replay import Replay, Rollouts, squared_gap
from gapd.gap_model.learned import Learned
from gapd.measured.gates import usable_starts
from gapd.measured.verdicts import Gate
from gapd.measured.windows import Frames, Windows, cut
from gapd.model.robot import Layout, Robot

Array = NDArray[np.float64]
Index = NDArray[np.intp]

# Windows of one block count as one observation in the check. Four windows of an arm: an error of the model lasts
# longer than one.
BLOCK_S = 1.2
# Enough to tell an improvement of a few per cent from luck, and most of the recording stays for the fit.
HELD_SHARE = 0.3
# A fit on a recording is one candidate, tested as strictly as one of a running daemon.
ALPHA = 0.01
# The best fit leaves this share of a channel's motion within windows: it does not follow, and no parameter is to blame.
UNFOLLOWED_SHARE = 0.7
# A channel moves if its motion within windows is above this many noise standard deviations.
MOVES = 20.0


@dataclass(frozen=True)
class Prepared:
    """Recordings after the gates: verdicts of all candidate windows, the ok ones, and which of them are held out."""

    gates: tuple[Gate, ...]
    windows: Windows  # (W,)
    block: Index  # (W,) number of the time block
    fit_at: Index
    held_at: Index


@dataclass(frozen=True)
class Standing:
    """What a fit starts from and has to beat: scaled values now (P,), and the commissioned floor (C,) if there is one.

    alpha: probability of accepting a candidate that is no better; max_step: scaled, largest move of one correction.
    """

    z: Array
    floor: Array | None = None
    alpha: float = ALPHA
    max_step: float = np.inf


@dataclass(frozen=True)
class Report:
    """What one cycle found. `held` are the held-out windows with the predictions (H, K+1, C) before and after.

    rollouts: replays of a window in all, those of the check included.
    """

    gates: tuple[Gate, ...]
    fitted: int
    estimates: tuple[ParameterEstimate, ...]
    identification: Identification
    check: Check
    decision: Decision
    held: Windows
    predicted_before: Array
    predicted_after: Array
    rollouts: int


def prepare(robot: Robot, recordings: Iterable[Frames]) -> Prepared:
    """Judge all candidate windows, cut the ok ones and hold some out; InputError if they are too few to judge a fit."""
    gates: list[Gate] = []
    parts: list[Windows] = []
    offset = robot.config.timing.command_offset_s
    for number, frames in enumerate(recordings):
        for run in usable_starts(frames, robot):
            gates.extend(run.gates)
            if len(run.usable):
                parts.append(cut(run.frames, robot.layout, run.usable, offset, number))
    if not parts:
        raise _too_few(robot, gates, 0)
    return hold_out(robot, Windows.concatenate(parts), gates)


def hold_out(robot: Robot, windows: Windows, gates: Sequence[Gate] = ()) -> Prepared:
    """Hold some windows out of the fit; InputError if they are too few to judge a fit."""
    window_s, seed = robot.config.timing.window_s, robot.config.seed
    fit_at, held_at = split_blocks(windows.start_s, windows.source, BLOCK_S, window_s, HELD_SHARE, seed)
    block = blocks_of(windows.start_s, windows.source, BLOCK_S)
    if not len(fit_at) or len(held_at) < MIN_WINDOWS or len(np.unique(block[held_at])) < MIN_BLOCKS:
        raise _too_few(robot, gates, len(windows))
    return Prepared(tuple(gates), windows, block, fit_at, held_at)


def windows_needed(window_s: float) -> int:
    """Windows from which on a fit can be checked: enough blocks for both sides, and one more for the edges."""
    held_out_s = max(MIN_WINDOWS * window_s, MIN_BLOCKS * BLOCK_S)
    return int(np.ceil((held_out_s / HELD_SHARE + BLOCK_S) / window_s))


def _too_few(robot: Robot, gates: Sequence[Gate], usable: int) -> InputError:
    window_s = robot.config.timing.window_s
    held_out_s = max(MIN_WINDOWS * window_s, MIN_BLOCKS * BLOCK_S)
    missing_s = max(held_out_s / HELD_SHARE - usable * window_s, BLOCK_S)
    refused = next((g for g in gates if g.verdict != "ok"), None)
    why = f"; the first refused {refused.sentence}" if refused else ""
    return InputError(
        f"{usable} usable windows of {len(gates)}, {usable * window_s:.1f} s: too few to hold {held_out_s:.1f} s out "
        f"of the fit for its check; record about {missing_s:.0f} s more of motion{why}"
    )


def run(
    robot: Robot,
    prepared: Prepared,
    standing: Standing | None = None,
    learned: Learned | None = None,
    threads: int = 1,
) -> Report:
    """Fit on one part of the windows, from what stands (nominal values by default), and check on the other."""
    space, windows = robot.parameters, prepared.windows
    standing = standing or Standing(space.z_nominal)
    fitted, held, replay = windows.take(prepared.fit_at), windows.take(prepared.held_at), Replay(robot, threads)
    z_before = standing.z
    found = identify(replay, fitted, z_before, learned)
    moves = movable(_estimates(robot, found, found.z), bool(found.findings))
    candidate = np.where(moves, found.z, z_before)
    z_after = limit(z_before, candidate, space.z_min, space.z_max, standing.max_step)
    # What is checked is what is reported and sent: a shortened step, too.
    estimates = _estimates(robot, found, np.where(moves, z_after, found.z))
    gap_before, predicted_before = _held_out(replay, held, z_before, found)
    gap_after, predicted_after = _held_out(replay, held, z_after, found)
    verdict = check(
        gap_before, gap_after, standing.floor, standing.alpha, block=prepared.block[prepared.held_at],
        window_s=robot.config.timing.window_s, channels=robot.layout.channels,
    )  # fmt: skip
    outside: tuple[str, ...] = ()
    if learned is not None and found.learned:
        context = fitted.context[:, :: robot.layout.substeps]
        outside = learned.bundle.outside_range(found.fit.state.rollouts.features, context)
    decision = decide(
        estimates, verdict, found.findings, outside_range=outside,
        unfollowed=_unfollowed(found.beside.rollouts, fitted, robot.layout),
        ambiguous=[[space.names[p] for p in group] for group in found.uncertainty.ambiguous],
    )  # fmt: skip
    return Report(
        prepared.gates,
        len(fitted),
        estimates,
        found,
        verdict,
        decision,
        held,
        predicted_before,
        predicted_after,
        replay.rollouts,
    )


def _estimates(robot: Robot, found: Identification, z: Array) -> tuple[ParameterEstimate, ...]:
    """Estimates at scaled values z (P,)."""
    space, sd = robot.parameters, found.uncertainty.sd
    z = np.where(found.uncertainty.unknown, found.before, z)  # what the data do not determine stays
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


def _unfollowed(rollouts: Rollouts, fitted: Windows, layout: Layout) -> list[str]:
    """Channels whose motion within windows even the best fit, with all findings, leaves nearly as it is; in words."""
    motion = fitted.measured - fitted.measured[:, :1]
    left = fitted.measured - rollouts.predicted
    size, rest = (channel_rms(m[:, 1:]) for m in (motion, left))
    return [
        f"{name} (misses it by {100 * r / s:.0f} % of its motion)"
        for name, s, r, noise in zip(layout.channels, size, rest, layout.noise, strict=True)
        if s > MOVES * noise and r > UNFOLLOWED_SHARE * s  # false for a channel that is absent
    ]


def _held_out(replay: Replay, held: Windows, z: Array, found: Identification) -> tuple[Array, Array]:
    """Squared gap (H, C) of windows that no fit has seen, each with its own initial state cleared; predictions.

    A window whose replay diverges is NaN, and the others are settled without it.
    """
    ran = ~replay.run(held, replay.robot.parameters.to_physical(z)).failed
    squared = np.full((len(held), len(found.weight)), np.nan)
    predicted = np.full_like(held.measured, np.nan)
    if ran.any():
        problem = replace(Problem.of(replay, held.take(ran), z, found.weight), held=np.ones(len(z), bool))
        state = settle(problem, start(problem, z))
        squared[ran], predicted[ran] = squared_gap(state.gap), state.rollouts.predicted
    return squared, predicted
