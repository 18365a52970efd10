"""What a decision becomes on the wire: corrections and escalations from the keeper's events. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from gapd.fit.decide import Decision
from gapd.live.events import Decided, Diverged, Judged
from gapd.live.trial_period import Return
from gapd.messages.link import MAX_ACTIVE, Correction, Escalation, Term, Verdict

Array = NDArray[np.float64]

# Until the outbox numbers it, the postbox knows the version that holds then and the link the epoch.
UNNUMBERED = 0
# Names in one list of a message take so many bytes, so that it fits: a robot of thousands of parameters may correct
# them all.
NAME_BYTES = 1000


def correction(event: Decided, now_s: float) -> Correction:
    """The accepted values, with mean and deviation of all parameters and the covariance of those that the data show."""
    report = event.report
    told = report.identification.uncertainty
    active = _active(~told.unknown, told.sd)
    changed = _named(e.name for e in report.decision.corrections if e.significant)
    return Correction(
        epoch=UNNUMBERED, sequence=UNNUMBERED, timestamp=now_s, base_version=UNNUMBERED,
        z=tuple(event.z.tolist()), z_sd=tuple(told.sd.tolist()),
        active=tuple(active.tolist()), covariance=pack_covariance(told.covariance[np.ix_(active, active)]),
        changed=changed, effective=_named(e.name for e in report.decision.corrections if e.effective),
        reason=report.decision.reason, gap_before=report.check.gap_before,
        gap_after=report.check.gap_after, windows=report.check.windows,
    )  # fmt: skip


def returned(event: Return, names: tuple[str, ...], z_sd: Array, now_s: float) -> Correction:
    """The previous values come back: z_sd (P,) is what was known of them."""
    changed = _named(n for n, a, b in zip(names, event.replaced.tolist(), event.z.tolist(), strict=True) if a != b)
    return Correction(
        epoch=UNNUMBERED, sequence=UNNUMBERED, timestamp=now_s, base_version=UNNUMBERED,
        z=tuple(event.z.tolist()), z_sd=tuple(z_sd.tolist()), active=(), covariance=b"",
        changed=changed, effective=(), reason=f"previous values replay better: {event.check.reason}",
        gap_before=event.check.gap_before, gap_after=event.check.gap_after,
        windows=event.check.windows, previous=True,
    )  # fmt: skip


def escalation(event: Decided | Diverged, now_s: float, evidence: str, evidence_bytes: int) -> Escalation:
    """The request for a recalibration; evidence is the sha256 of the packed recording."""
    terms: tuple[Term, ...] = ()
    told: Diverged | Decision = event if isinstance(event, Diverged) else event.report.decision
    if isinstance(event, Decided):
        terms = tuple(
            Term(f.joint, f.regressor, f.coefficient, f.coefficient_sd, f.unit, f.share)
            for f in event.report.identification.findings
        )
    return Escalation(
        UNNUMBERED, UNNUMBERED, now_s, UNNUMBERED, told.reason, told.remedy, terms, evidence, evidence_bytes
    )


def verdict(event: Judged, version: int, now_s: float) -> Verdict:
    """The answer to a candidate of the host."""
    found = event.check
    return Verdict(
        UNNUMBERED, UNNUMBERED, now_s, event.candidate, version, found.verdict, found.reason,
        found.gap_before, found.gap_after, found.windows,
    )  # fmt: skip


def escalation_key(event: Decided | Diverged) -> tuple[tuple[str, str], ...]:
    """What makes two escalations the same: joints and terms, or the parameters that moved where there is none."""
    if isinstance(event, Diverged):
        return (("", "diverged"),)
    findings = event.report.identification.findings
    names = sorted(e.name for e in event.report.estimates if e.significant)
    return tuple(sorted((f.joint, f.regressor) for f in findings)) or tuple((name, "") for name in names)


def pack_covariance(covariance: Array) -> bytes:
    """Lower triangle of (n, n), row by row, float32 little endian."""
    return covariance[np.tril_indices(len(covariance))].astype("<f4").tobytes()


def _active(known: NDArray[np.bool_], sd: Array) -> NDArray[np.intp]:
    """The best known parameters, at most as many as one message holds, in their order."""
    order = np.flatnonzero(known)[np.argsort(sd[known], kind="stable")][:MAX_ACTIVE]
    return np.sort(order)


def _named(names: Iterable[str]) -> tuple[str, ...]:
    """The first names, as many as fit."""
    named: list[str] = []
    left = NAME_BYTES
    for name in names:
        left -= len(name.encode()) + 2
        if left < 0:
            break
        named.append(name)
    return tuple(named)
