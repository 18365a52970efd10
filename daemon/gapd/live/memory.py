"""What the keeper remembers of a robot, also over a restart. Pure."""

from __future__ import annotations

import msgspec

from gapd.fit.check import ErrorBudget
from gapd.live.monitor import Baseline


class Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What outlives a restart: scaled values (P,), commissioned floor (C,) in noise, baseline, error budget.

    floor is NaN for channels that are absent or did not move yet. earlier: the baseline from before an escalation
    whose cause is still there. z_sd and status (P,) are what the last fit knew of each parameter; empty before it.
    """

    z: tuple[float, ...]
    floor: tuple[float, ...] = ()
    baseline: Baseline | None = None
    budget: ErrorBudget = ErrorBudget()
    z_sd: tuple[float, ...] = ()
    status: tuple[str, ...] = ()
    earlier: Baseline | None = None
