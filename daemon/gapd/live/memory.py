"""What the keeper remembers of a robot, also over a restart. Pure."""

from __future__ import annotations

import msgspec

from gapd.fit.check import ErrorBudget
from gapd.fit.decide import Level as DecisionLevel
from gapd.live.monitor import Baseline


class Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What outlives a restart: scaled values (P,), commissioned floor (C,) in noise, baseline, error budget.

    floor is NaN for channels that are absent or did not move yet. escalated: the cause of an escalation is still
    there; earlier: the baseline from before it, if there was one. verdict: level and sentence of the last decision, if
    it left something to do. z_sd and status (P,) are what the last fit knew of each parameter; empty before it.
    """

    z: tuple[float, ...]
    floor: tuple[float, ...] = ()
    baseline: Baseline | None = None
    budget: ErrorBudget = ErrorBudget()
    z_sd: tuple[float, ...] = ()
    status: tuple[str, ...] = ()
    escalated: bool = False
    earlier: Baseline | None = None
    verdict: tuple[DecisionLevel, str] = ("OK", "")
