"""Decide: hold, correct, reject or escalate, in one sentence that names the number and the remedy. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gapd.fit.check import FLOOR_FACTOR, Check
from gapd.fit.finding import Finding
from gapd.fit.uncertainty import CHANGE_SD, Status

Array = NDArray[np.float64]
Action = Literal["hold", "correct", "reject", "escalate"]
Level = Literal["OK", "WARN", "ERROR"]

# Gap of a channel, in noise standard deviations, from which a fit without a commissioned floor leaves something to
# look for: clean simulated channels end below 1.1.
UNEXPLAINED = 2.0
# ... and up to which the current values need no correction: held-out channels of a perfect model stay below.
MATCHED = 1.2
# ... and from which, with a finding, time stamps are to be looked at before the finding is believed: a log that is late
# looks like friction or a spring.
FAR = 10.0
TIMING = "first check time stamps, and command_offset_s: commands that are 20 ms late look like this"
# Names in one sentence; the rest is counted.
NAMED = 3
# Statuses whose value the data determine.
_IDENTIFIED = ("estimated", "estimating", "at_bound")


@dataclass(frozen=True)
class ParameterEstimate:
    """One parameter before and after a fit: physical values with unit, and scaled values z.

    `effective` marks a change that survives a model error: set only where there are findings. The value then
    holds only beside that error.
    """

    name: str
    unit: str
    before: float
    after: float
    sd: float
    z_before: float
    z_after: float
    z_sd: float
    status: Status
    effective: bool = False

    @property
    def significant(self) -> bool:
        """Whether the data determine the value and it differs from the one before."""
        return self.status in _IDENTIFIED and abs(self.z_after - self.z_before) > CHANGE_SD * self.z_sd

    @property
    def sentence(self) -> str:
        """Name, values, uncertainty, unit."""
        digits = _decimals(self.sd)
        values = f"{_number(self.before, digits)} -> {_number(self.after, digits)} ± {_number(self.sd, digits)}"
        unit = f" {self.unit}" if self.unit not in ("", "1") else ""
        return f"{self.name} {values}{unit}" + (" (effective)" if self.effective else "")


@dataclass(frozen=True)
class Decision:
    """What is done about a fit. `corrections` are the values to send, all that move."""

    action: Action
    level: Level
    reason: str
    remedy: str
    corrections: tuple[ParameterEstimate, ...] = ()

    @property
    def sentence(self) -> str:
        """One line for the journal."""
        return f"{self.reason}; {self.remedy}"


def limit(before: Array, after: Array, z_min: Array, z_max: Array, max_step: float) -> Array:
    """Scaled values (P,) towards `after`: the step shortened to max_step in its largest part, within bounds.

    Shortened as a whole, because parameters that make up for each other must move together. To be done
    before the check, so that what is checked is what is sent.
    """
    step = after - before
    largest = float(np.max(np.abs(step), initial=0.0))
    share = min(1.0, max_step / largest) if largest > 0 else 1.0
    return np.asarray(np.clip(before + share * step, z_min, z_max))


def movable(estimates: Sequence[ParameterEstimate], structural: bool) -> NDArray[np.bool_]:
    """Parameters (P,) that a candidate may move: identified ones, beside a model error those that survive.

    To be applied before the check, so that what is checked is what is sent.
    """
    return np.array([e.status in _IDENTIFIED and (e.effective or not structural) for e in estimates], bool)


def decide(
    estimates: Sequence[ParameterEstimate],
    check: Check | None,
    findings: Sequence[Finding] = (),
    *,
    outside_range: Sequence[str] = (),
    unfollowed: Sequence[str] = (),
    ambiguous: Sequence[Sequence[str]] = (),
    floors: float = np.nan,
) -> Decision:
    """Decide about a fit from its estimates and the check of the candidate they make.

    check is None where nothing was worth checking; outside_range: what the data have outside the training
    range, in words; unfollowed: channels whose motion even the fitted replay does not follow, in words; ambiguous:
    names of parameters of which only a combination is known, and which therefore stay; floors: gap of the current
    values in commissioned floors where there is no check, NaN if unknown.
    """
    return (
        _blocked(estimates, check, unfollowed)
        or _outside(check, outside_range)
        or _structural(estimates, check, findings)
        or _at_bound(estimates, check)
        or _beyond_floor(estimates, check, floors)
        or _checked(estimates, check, ambiguous)
    )


def _blocked(estimates: Sequence[ParameterEstimate], check: Check | None, unfollowed: Sequence[str]) -> Decision | None:
    """What makes any estimate worthless. A robot that has been commissioned has its columns and signs right."""
    if unfollowed and not (check is not None and check.commissioned):
        reason = f"the best fit does not follow the robot: {', '.join(unfollowed[:NAMED])}"
        remedy = "check column, sign, unit and time stamps of these channels, and of the commands"
        return Decision("reject", "ERROR", reason, remedy)
    broken = [e.name for e in estimates if not (isfinite(e.z_after) and isfinite(e.z_sd))]
    if broken:
        reason = f"the fit gives no finite value for {', '.join(broken[:NAMED])}"
        return Decision("reject", "WARN", reason, "check the recording for spikes and wrong units")
    return None


def _outside(check: Check | None, outside_range: Sequence[str]) -> Decision | None:
    """The gap model may have led the fit astray. A candidate that held-out replays accept is none the worse for it."""
    if not outside_range or (check is not None and check.verdict == "accepted"):
        return None
    named = ", ".join(outside_range[:NAMED]) + (" and more" if len(outside_range) > NAMED else "")
    remedy = "ask the host to train a bundle for this range"
    return Decision("escalate", "ERROR", f"outside the training range: {named}", remedy)


def _structural(
    estimates: Sequence[ParameterEstimate], check: Check | None, findings: Sequence[Finding]
) -> Decision | None:
    """A model error: only what survives it is sent, and only if the check accepted exactly that."""
    if not findings:
        return None
    reason = "; ".join(f.sentence for f in findings[:NAMED])
    changed = [e for e in estimates if e.significant and e.effective]
    moved: tuple[ParameterEstimate, ...] = ()
    if check is not None and check.verdict == "accepted" and changed:
        moved = tuple(e for e in _moved(estimates) if e.effective)
        reason += f"; {_outcome(changed, check)}"
    remedies = [f.remedy for f in findings[:NAMED]]
    if check is not None and not check.commissioned and np.nanmax(check.channel_after, initial=0.0) > FAR:
        remedies = [TIMING, *remedies]
    return Decision("escalate", "ERROR", reason, "; ".join(dict.fromkeys(remedies)), moved)


def _at_bound(estimates: Sequence[ParameterEstimate], check: Check | None) -> Decision | None:
    """The truth may lie beyond the bound, or the data mean something else: wrong units end here too.

    A value that moved onto its bound, or that stays there while much is unexplained.
    """
    unexplained = check is not None and bool(np.nanmax(check.channel_after, initial=0.0) > UNEXPLAINED)
    bound = [e for e in estimates if e.status == "at_bound" and (e.significant or unexplained)]
    if not bound:
        return None
    remedy = "check units, signs and time stamps of the recording, then widen the bounds"
    return Decision("escalate", "ERROR", f"{_named(bound)} is at its bound", remedy)


def _beyond_floor(estimates: Sequence[ParameterEstimate], check: Check | None, floors: float) -> Decision | None:
    """What no parameter explains is for the host."""
    remedy = "look for load, contact or backlash, and ask the host for a recalibration"
    if check is not None and check.commissioned and check.cause not in ("diverged", "too_few"):
        if min(check.floors_before, check.floors_after) <= FLOOR_FACTOR:
            return None
        return Decision("escalate", "ERROR", _outcome(_changed(estimates), check), remedy)
    if _changed(estimates) or not floors > FLOOR_FACTOR:
        return None
    reason = f"the gap is {floors:.3g} commissioned floors and no parameter explains it"
    return Decision("escalate", "ERROR", reason, remedy)


def _checked(
    estimates: Sequence[ParameterEstimate], check: Check | None, ambiguous: Sequence[Sequence[str]]
) -> Decision:
    """What the check says about the significant changes, if there are any."""
    changed = _changed(estimates)
    if not changed:
        reason = f"no parameter has changed by {CHANGE_SD:g} standard deviations"
        return Decision("hold", "OK", reason, "nothing to do")
    if check is None:
        remedy = "record more motion, so that windows can be held out"
        return Decision("reject", "WARN", f"{_named(changed)}; not checked", remedy)
    if check.verdict == "rejected":
        return _rejected(changed, check, ambiguous)
    moved, outcome = _moved(estimates), _outcome(changed, check)
    worst = int(np.argmax(np.nan_to_num(check.channel_after)))
    if not check.commissioned and check.channel_after[worst] > UNEXPLAINED:
        name = check.channels[worst] if check.channels else f"channel {worst}"
        left = f"{check.channel_after[worst]:.3g} noise standard deviations"
        outcome += f"; {name} keeps {left} that no parameter explains"
        remedy = (
            f"before these values are used check time stamps, unit and noise of {name}, then look for load, contact or "
            "backlash there"
        )
        return Decision("correct", "WARN", outcome, remedy, moved)
    return Decision("correct", "OK", outcome, "nothing to do on the robot; the simulator needs these values", moved)


def _rejected(changed: list[ParameterEstimate], check: Check, ambiguous: Sequence[Sequence[str]]) -> Decision:
    """A simulator that matches already needs nothing; one that cannot move in a group is told so."""
    worst = float(np.nanmax(check.channel_before, initial=0.0))
    if check.cause in ("not_better", "not_significant") and not check.commissioned and worst < MATCHED:
        reason = f"the simulator matches the robot: no channel is above {worst:.3g} noise standard deviations"
        return Decision("hold", "OK", reason, "nothing to do")
    remedy = check.remedy
    if ambiguous and check.cause not in ("too_few", "diverged"):
        groups = "; ".join(" and ".join(group) for group in ambiguous[:NAMED])
        remedy = f"only a combination is known of {groups}: freeze all but one of each, or record other motion"
    return Decision("reject", "WARN", _outcome(changed, check), remedy)


def _changed(estimates: Sequence[ParameterEstimate]) -> list[ParameterEstimate]:
    return [e for e in estimates if e.significant]


def _moved(estimates: Sequence[ParameterEstimate]) -> tuple[ParameterEstimate, ...]:
    """Everything that the checked candidate moves, also what alone would be no news."""
    return tuple(e for e in estimates if e.status in _IDENTIFIED and e.z_after != e.z_before)


def _outcome(changed: Sequence[ParameterEstimate], check: Check) -> str:
    unit = "floors" if check.commissioned else "noise standard deviations"
    gap = f"gap {check.floors_before:.3g} -> {check.floors_after:.3g} {unit}"
    verdict = check.verdict if check.verdict == "accepted" else f"{check.verdict}: {check.reason}"
    named = f"{_named(changed)}; " if changed else ""
    return f"{named}{gap} on {check.windows} held-out windows; {verdict}"


def _named(changed: Sequence[ParameterEstimate]) -> str:
    """Sentences of the clearest changes first."""
    ordered = sorted(changed, key=lambda e: -abs(e.z_after - e.z_before) / max(e.z_sd, 1e-12))
    more = f" and {len(ordered) - NAMED} more" if len(ordered) > NAMED else ""
    return ", ".join(e.sentence for e in ordered[:NAMED]) + more


def _decimals(sd: float) -> int:
    """Decimals that show one digit of a standard deviation, two if it starts with 1."""
    if not (isfinite(sd) and sd > 0):
        return 3
    exponent = floor(log10(sd))
    return max(0, int(sd / 10.0**exponent < 1.95) - exponent)


def _number(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}" if decimals <= 6 else f"{value:.3g}"
