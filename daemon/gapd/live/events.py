"""What happens in a keeper: fits to be made, and what came of windows, fits and candidates. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gapd.fit.check import Check
from gapd.fit.cycle import Prepared, Report, Standing
from gapd.live.trial_period import Return

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Job:
    """A fit to be made. `why` is a clause for the log; since_s: time of the change, NaN if there was none.

    again: an earlier fit of this change explained nothing.
    """

    prepared: Prepared
    standing: Standing
    why: str
    since_s: float
    again: bool = False


@dataclass(frozen=True)
class Monitored:
    """A window was replayed: RMS gap per channel (C,) in noise, and over all channels in floors, NaN where none is."""

    start_s: float
    gap: Array
    floors: float


@dataclass(frozen=True)
class Drifted:
    """The gap of a channel is no longer what it was; score: cumulative sum, in spreads of its log squared gap."""

    channel: str
    since_s: float
    now_s: float
    score: float


@dataclass(frozen=True)
class EscalationOver:
    """The gap is again what it was before an escalation, for long enough: changes are told from that again."""

    now_s: float
    reason: str = "the gap is again what it was before the escalation"


@dataclass(frozen=True)
class Diverged:
    """No fit can be made: with the present values the replay diverges in `diverged` of `windows` windows."""

    diverged: int
    windows: int
    since_s: float
    now_s: float

    @property
    def reason(self) -> str:
        """For log and host."""
        return f"the replay with the present values diverges in {self.diverged} of {self.windows} windows"

    @property
    def remedy(self) -> str:
        """For log and host."""
        return "check units of commands and positions, and the values in the simulator; then recalibrate"


@dataclass(frozen=True)
class Outdated:
    """A fit has ended whose values have meanwhile been replaced: it counts for nothing, another one is made."""

    job: Job


@dataclass(frozen=True)
class Unsettled:
    """A fit after a change explains nothing: windows of before may be among its own, newer ones will tell."""

    job: Job
    reason: str


@dataclass(frozen=True)
class Decided:
    """A fit has ended. `z` (P,) are the values from now on; `commissioned`: this fit set the floor."""

    job: Job
    report: Report
    z: Array
    commissioned: bool


@dataclass(frozen=True)
class Judged:
    """A candidate of the host was checked; if accepted, z (P,) are the values from now on."""

    candidate: str
    check: Check
    z: Array


Event = Monitored | Drifted | EscalationOver | Diverged | Unsettled | Decided | Outdated | Judged | Return
