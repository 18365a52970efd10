"""A cycle's report for people (tables) and for programs (plain values)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gapd.cycle import Report
from gapd.decide import ParameterEstimate
from gapd.gates import count
from gapd.robot import Robot
from gapd.uncertainty import quantile

# Probability of the intervals that are shown.
LEVEL = 0.90


def intervals(report: Report, robot: Robot) -> list[tuple[float, float]]:
    """Interval per parameter in physical units, cut at the bounds. It is symmetric in scaled values."""
    found, space = report.identification, robot.parameters
    half = quantile(LEVEL, found.uncertainty.dof) * found.uncertainty.sd
    low = space.to_physical(np.clip(found.z - half, space.z_min, space.z_max))
    high = space.to_physical(np.clip(found.z + half, space.z_min, space.z_max))
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]


def plain(report: Report, robot: Robot) -> dict[str, Any]:
    """Everything a program may want, as JSON types."""
    check, decision, found = report.check, report.decision, report.identification
    return {
        "robot": robot.config.robot,
        "level": decision.level,
        "action": decision.action,
        "reason": decision.reason,
        "remedy": decision.remedy,
        "windows": {"verdicts": count(report.gates), "fitted": report.fitted, "held_out": len(report.held)},
        "gap": {
            "unit": "noise standard deviations",
            "before": check.gap_before,
            "after": check.gap_after,
            "channels": {
                name: {"before": _number(before), "after": _number(after)}
                for name, before, after in zip(
                    robot.layout.channels, check.channel_before, check.channel_after, strict=True
                )
            },
        },
        "check": {
            "verdict": check.verdict, "cause": check.cause, "reason": check.reason, "p_value": check.p_value,
        },
        "parameters": [
            _parameter(e, interval) for e, interval in zip(report.estimates, intervals(report, robot), strict=True)
        ],
        "corrections": {e.name: e.after for e in decision.corrections},
        "ambiguous": [[robot.parameters.names[p] for p in g] for g in found.uncertainty.groups if len(g) > 1],
        "findings": [
            {"joint": f.joint, "regressor": f.regressor, "coefficient": f.coefficient, "sd": f.coefficient_sd,
             "unit": f.unit, "z": f.z, "share": f.share, "sentence": f.sentence}
            for f in found.findings
        ],
        "rollouts": found.rollouts,
        "seed": robot.config.seed,
    }  # fmt: skip


def _parameter(estimate: ParameterEstimate, interval: tuple[float, float]) -> dict[str, Any]:
    return {
        "name": estimate.name, "unit": estimate.unit, "before": estimate.before, "after": estimate.after,
        "sd": estimate.sd, "low": interval[0], "high": interval[1], "status": estimate.status,
        "effective": estimate.effective,
    }  # fmt: skip


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def text(report: Report, robot: Robot, truth: Mapping[str, float] | None = None) -> str:
    """Tables of parameters and gaps, then the decision; `truth` (by name) adds a column where it is known."""
    rows = []
    for estimate, (low, high) in zip(report.estimates, intervals(report, robot), strict=True):
        known = [f"{truth[estimate.name]:.4g}"] if truth else []
        status = estimate.status + (" (effective)" if estimate.effective else "")
        values = [
            f"{estimate.before:.4g}",
            f"{estimate.after:.4g}",
            f"{low:.4g} .. {high:.4g}",
            estimate.unit,
            status,
        ]
        rows.append([estimate.name, *known, *values])
    head = [
        "parameter",
        *(["true"] if truth else []),
        "before",
        "fitted",
        f"{100 * LEVEL:.0f} % interval",
        "unit",
        "status",
    ]
    gaps = [
        [name, f"{before:.3g}", f"{after:.3g}"]
        for name, before, after in zip(
            robot.layout.channels, report.check.channel_before, report.check.channel_after, strict=True
        )
        if np.isfinite(before)
    ]
    verdicts = ", ".join(f"{n} {name}" for name, n in count(report.gates).items() if n)
    lines = [
        table(head, rows),
        "",
        table(["held-out gap, in noise sd", "before", "after"], gaps),
        "",
        f"windows    {verdicts}; {report.fitted} fitted, {len(report.held)} held out",
        f"rollouts   {report.identification.rollouts}",
        *(f"ambiguous  {', '.join(robot.parameters.names[p] for p in g)}: only a combination is known"
          for g in report.identification.uncertainty.groups if len(g) > 1),
        *(f"structure  {f.sentence}" for f in report.identification.findings),
        f"decision   {report.decision.level} {report.decision.action}: {report.decision.reason}",
        f"remedy     {report.decision.remedy}",
    ]  # fmt: skip
    return "\n".join(lines)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their content, the first to the left, numbers to the right."""
    widths = [max(len(line[c]) for line in [head, *rows]) for c in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join([first, *others]).rstrip()

    return "\n".join([line(head), "  ".join("-" * w for w in widths), *(line(r) for r in rows)])
