"""What a pipeline has counted and what its robot's parameters are, for the status. Pure."""

from __future__ import annotations

import numpy as np

from gapd.live.events import Monitored
from gapd.live.memory import Memory
from gapd.live.pipeline import Happening, Pipeline
from gapd.live.status import Estimate
from gapd.model.robot import Robot


def counters(pipeline: Pipeline) -> dict[str, int]:
    """Frames, values and windows by what became of them; frames_lost only where the source numbers them."""
    rows = pipeline.rows
    lost = {} if rows.lost is None else {"frames_lost": rows.lost}
    return {
        "frames": rows.accepted, **lost, "values_not_finite": rows.not_finite,
        **{f"frames_{reason}": n for reason, n in rows.refused.items() if n},
        **{f"windows_{verdict}": n for verdict, n in pipeline.verdicts.items()},
        "windows_dropped": pipeline.dropped,
    }  # fmt: skip


def floors(event: Happening) -> float | None:
    """The gap in commissioned floors, of a window that was monitored."""
    return event.floors if isinstance(event, Monitored) and np.isfinite(event.floors) else None


def estimates(robot: Robot, memory: Memory) -> tuple[Estimate, ...]:
    """Physical values (P,), with what the last fit knew of them."""
    space, z = robot.parameters, np.array(memory.z)
    physical = space.to_physical(z)
    sd = space.physical_sd(z, np.array(memory.z_sd)) if memory.z_sd else np.full(len(space), np.nan)
    status = memory.status or ("unestimated",) * len(space)
    rows = zip(space.names, space.units, physical.tolist(), sd.tolist(), status, strict=True)
    return tuple(Estimate(*row) for row in rows)
