"""A daemon's status for people."""

from __future__ import annotations

from typing import Any

from gapd.errors import printable
from gapd.fit.report import table
from gapd.live.status import Level


def status_text(told: dict[str, Any]) -> str:
    """Tables of what `gapd.live.status.ask` gave."""
    lines = [
        f"{'level':<10}{Level(told['level']).name}",
        f"{'robot':<10}{told['robot']}",
        f"{'state':<10}{told['state']}",
    ]
    if told["gap_floors"] is not None:
        lines.append(f"{'gap':<10}{told['gap_floors']:.3g} commissioned floors")
    link = told["link"]
    if link is not None:
        state = "up" if link["up"] else "down"
        waiting = f", {link['pending']} waiting for {link['oldest_s']:.0f} s" if link["pending"] else ""
        lines.append(f"{'host':<10}{link['endpoint']} {state}, version {link['version']}{waiting}")
    lines += [f"{'problem':<10}{printable(problem)}" for problem in told["problems"]]
    lines.append(f"{'counters':<10}{', '.join(f'{name} {n}' for name, n in told['counters'].items())}")
    rows = [
        [e["name"], f"{e['value']:.4g}", "-" if e["sd"] is None else f"{e['sd']:.2g}", e["unit"], e["status"]]
        for e in told["estimates"]
    ]
    return "\n".join([*lines, "", table(["parameter", "value", "sd", "unit", "status"], rows)])
