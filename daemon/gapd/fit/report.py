"""A cycle's report for people (tables) and for programs (plain values)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gapd.fit.cycle import Report
from gapd.fit.decide import ParameterEstimate
from gapd.measured.gates import count
from gapd.model.robot import Robot

# Probability of the intervals that are shown.
LEVEL = 0.90


def intervals(report: Report, robot: Robot) -> list[tuple[float, float]]:
    """Interval per parameter in physical units, cut at the bounds. It is symmetric in scaled values."""
    space, half = robot.parameters, report.identification.uncertainty.half_width(LEVEL)
    z = np.array([e.z_after for e in report.estimates])
    low, high = (space.to_physical(np.clip(z + side, space.z_min, space.z_max)) for side in (-half, half))
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]


def plain(report: Report, robot: Robot) -> dict[str, Any]:
    """Everything a program may want, as JSON types; what is not finite is null."""
    check, decision, found = report.check, report.decision, report.identification
    channels = zip(robot.layout.channels, check.channel_before, check.channel_after, strict=True)
    return {
        "robot": robot.config.robot,
        "level": decision.level,
        "action": decision.action,
        "reason": decision.reason,
        "remedy": decision.remedy,
        "windows": {"verdicts": count(report.gates), "fitted": report.fitted, "held_out": len(report.held)},
        "gap": {
            "unit": "noise standard deviations",
            "before": _number(check.gap_before),
            "after": _number(check.gap_after),
            "channels": {name: {"before": _number(b), "after": _number(a)} for name, b, a in channels},
        },
        "check": {
            "verdict": check.verdict, "cause": check.cause, "reason": check.reason, "p_value": _number(check.p_value),
        },
        "parameters": [
            _parameter(e, interval, report)
            for e, interval in zip(report.estimates, intervals(report, robot), strict=True)
        ],
        "corrections": {e.name: e.after for e in decision.corrections},
        "ambiguous": [[robot.parameters.names[p] for p in group] for group in found.uncertainty.ambiguous],
        "findings": [
            {"joint": f.joint, "regressor": f.regressor, "coefficient": f.coefficient, "sd": f.coefficient_sd,
             "unit": f.unit, "z": f.z, "share": f.share, "sentence": f.sentence, "remedy": f.remedy}
            for f in found.findings
        ],
        "rollouts": report.rollouts,
        "seed": robot.config.seed,
    }  # fmt: skip


def _parameter(estimate: ParameterEstimate, interval: tuple[float, float], report: Report) -> dict[str, Any]:
    return {
        "name": estimate.name, "unit": estimate.unit, "before": estimate.before, "after": _number(estimate.after),
        "sd": _number(estimate.sd), "low": _number(interval[0]), "high": _number(interval[1]),
        "status": estimate.status, "effective": estimate.effective, "sent": estimate in report.decision.corrections,
    }  # fmt: skip


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def text(report: Report, robot: Robot, truth: Mapping[str, float] | None = None) -> str:
    """Tables of parameters and gaps, then the decision; `truth` (by name) adds a column where it is known."""
    decision, found = report.decision, report.identification
    groups = ([robot.parameters.names[p] for p in group] for group in found.uncertainty.ambiguous)
    verdicts = ", ".join(f"{n} {name}" for name, n in count(report.gates).items() if n)
    lines = [
        _parameters(report, robot, truth),
        "",
        _gaps(report, robot),
        "",
        f"windows    {verdicts}; {report.fitted} fitted, {len(report.held)} held out",
        f"rollouts   {report.rollouts}",
        *(f"ambiguous  {', '.join(group)}: only a combination is known" for group in groups),
        *(f"structure  {f.sentence}" for f in found.findings),
        f"decision   {decision.level} {decision.action}: {decision.reason}",
        f"remedy     {decision.remedy}",
    ]
    return "\n".join(lines)


def _parameters(report: Report, robot: Robot, truth: Mapping[str, float] | None) -> str:
    rows = []
    for estimate, (low, high) in zip(report.estimates, intervals(report, robot), strict=True):
        known = [f"{truth[estimate.name]:.4g}"] if truth else []
        values = [f"{estimate.before:.4g}", f"{estimate.after:.4g}", f"{low:.4g} .. {high:.4g}", estimate.unit]
        rows.append([estimate.name, *known, *values, estimate.status, _use(estimate, report)])
    interval = f"{100 * LEVEL:.0f} % interval"
    return table(
        ["parameter", *(["true"] if truth else []), "before", "fitted", interval, "unit", "status", "use"], rows
    )


def _use(estimate: ParameterEstimate, report: Report) -> str:
    """What becomes of a fitted value. Beside a finding it is only as good as the finding lets it be."""
    if estimate in report.decision.corrections:
        return "effective" if report.identification.findings else "sent"
    if report.identification.findings and estimate.significant:
        return "bent by structure, kept"
    return "kept"


def _gaps(report: Report, robot: Robot) -> str:
    layout, check = robot.layout, report.check
    rows = [
        [name, *(f"{gap:.3g}" for gap in (before, after)), f"{after * noise:.3g}", channel.unit]
        for name, before, after, noise, channel in zip(
            layout.channels, check.channel_before, check.channel_after, layout.noise, robot.config.channel, strict=True
        )
        if np.isfinite(before)
    ]
    return table(["held-out gap, in noise sd", "before", "after", "that is", "unit"], rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their content, the first to the left, numbers to the right."""
    widths = [max(len(line[c]) for line in [head, *rows]) for c in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join([first, *others]).rstrip()

    return "\n".join([line(head), "  ".join("-" * w for w in widths), *(line(r) for r in rows)])
