"""What a pipeline has counted and what its robot's parameters are, for the status. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gapd.keeper import Decided, Monitored
from gapd.pipeline import Happening, Pipeline
from gapd.robot import Robot
from gapd.status import Estimate

Array = NDArray[np.float64]


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


def estimates(robot: Robot, z: Array, last: Decided | None) -> tuple[Estimate, ...]:
    """Physical values of z (P,), with what the last fit knows of them."""
    space, physical = robot.parameters, robot.parameters.to_physical(z)
    sd, status = np.full(len(space), np.nan), ("unestimated",) * len(space)
    if last is not None:
        told = last.report.identification.uncertainty
        sd, status = space.physical_sd(z, told.sd), told.status
    rows = zip(space.names, space.units, physical.tolist(), sd.tolist(), status, strict=True)
    return tuple(Estimate(*row) for row in rows)
