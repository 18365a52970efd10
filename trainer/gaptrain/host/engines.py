"""Refits of all parameters on a recording: gapd's own fit, and mujoco.sysid as another opinion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gapd.errors import InputError
from gapd.fit.check import check
from gapd.fit.cycle import ALPHA, Prepared, Report, Standing, run
from gapd.gap.replay import squared_gap
from gapd.model.robot import Robot
from gaptrain.host.sysid_engine import fit, held_out_gaps

Array = NDArray[np.float64]
Engine = Literal["gapd", "sysid"]


@dataclass(frozen=True)
class Refit:
    """Scaled values (P,) with standard deviations that held-out windows accept; None where none are to be offered.

    remedy is empty where the fit finds nothing to do.
    """

    values: tuple[Array, Array] | None
    reason: str
    remedy: str


def refit_gapd(robot: Robot, prepared: Prepared, before: Array, threads: int) -> Refit:
    """The whole cycle from the current scaled values (P,), with exact derivatives: a bundle may be what is wrong.

    Where that is rejected, once more from nominal: the current values may sit in a minimum of their own.
    """
    space = robot.parameters
    try:
        report = run(robot, prepared, Standing(before), threads=threads)
    except InputError:  # with them the replay diverges: nothing that comes from nominal values can be worse
        if not np.any(before != space.z_nominal):
            raise
        return _refit(run(robot, prepared, threads=threads))
    if report.check.verdict == "rejected" and np.any(before != space.z_nominal):
        other = _against(robot, prepared, report, run(robot, prepared, threads=threads))
        report = other if other.check.verdict == "accepted" else report
    return _refit(report)


def _against(robot: Robot, prepared: Prepared, current: Report, other: Report) -> Report:
    """The report of a fit from nominal with its check made against the current values, not against nominal."""
    gaps = (
        _squared_gap(robot, current, current.predicted_before),
        _squared_gap(robot, other, other.predicted_after),
    )
    verdict = check(
        *gaps, None, ALPHA, block=prepared.block[prepared.held_at], window_s=robot.config.timing.window_s,
        channels=robot.layout.channels,
    )  # fmt: skip
    return replace(other, check=verdict)


def _squared_gap(robot: Robot, report: Report, predicted: Array) -> Array:
    """Mean squared gap (H, C) of held-out windows in units of noise; NaN where nothing is known."""
    return squared_gap(((report.held.measured - predicted) / robot.layout.noise)[:, 1:])


def _refit(report: Report) -> Refit:
    decision = report.decision
    if not decision.corrections or report.check.verdict != "accepted":
        return Refit(None, decision.reason, "" if decision.action == "hold" else decision.remedy)
    moved = {e.name: e.z_after for e in decision.corrections}
    z = np.array([moved.get(e.name, e.z_before) for e in report.estimates])
    return Refit((z, np.array([e.z_sd for e in report.estimates])), decision.reason, decision.remedy)


def refit_sysid(robot: Robot, prepared: Prepared, before: Array, threads: int) -> Refit:
    """mujoco.sysid on the same windows, from the current scaled values (P,); checked on the same held-out ones."""
    z, z_sd = fit(robot, prepared.windows.take(prepared.fit_at), before, threads)
    held = prepared.windows.take(prepared.held_at)
    gaps = held_out_gaps(robot, held, (before, z), threads)
    verdict = check(
        *gaps, None, ALPHA, block=prepared.block[prepared.held_at],
        window_s=robot.config.timing.window_s, channels=robot.layout.channels,
    )  # fmt: skip
    gap = f"mujoco.sysid: gap {verdict.gap_before:.3g} -> {verdict.gap_after:.3g} noise standard deviations"
    reason = f"{gap} on {verdict.windows} held-out windows; {verdict.verdict}: {verdict.reason}"
    return Refit((z, z_sd) if verdict.verdict == "accepted" else None, reason, verdict.remedy)


ENGINES: dict[Engine, Callable[[Robot, Prepared, Array, int], Refit]] = {"gapd": refit_gapd, "sysid": refit_sysid}
