"""The daemon's log: one canonical line for each thing that happens, with number and remedy."""

from __future__ import annotations

from typing import assert_never

import numpy as np

from gapd.link import link_events
from gapd.live.events import Decided, Diverged, Drifted, EscalationOver, Job, Judged, Monitored, Outdated, Unsettled
from gapd.live.pipeline import Dropped, Gated, Happening
from gapd.live.telemetry import Level, Logger, canonical
from gapd.live.trial_period import Return
from gapd.measured.frame_rows import Refusal
from gapd.model.robot import Robot

_LEVELS: dict[str, Level] = {"OK": "info", "WARN": "warning", "ERROR": "error"}
# A healthy robot's windows are news once a minute.
MONITOR_EVERY_S = 60.0
GATE_EVERY_S = 10.0


def write(log: Logger, event: Happening, robot: Robot) -> None:
    """The line of an event of the pipeline."""
    match event:
        case Monitored():
            worst = int(np.argmax(np.nan_to_num(event.gap)))
            canonical(
                log, "monitor", key="monitor", every_s=MONITOR_EVERY_S, time_s=event.start_s, gap_floors=event.floors,
                worst=robot.layout.channels[worst], worst_gap=float(event.gap[worst]),
            )  # fmt: skip
        case Drifted():
            canonical(
                log, "drift", level="warning", channel=event.channel, since_s=event.since_s, time_s=event.now_s,
                score=event.score, remedy="none yet: a fit follows once enough windows have come",
            )  # fmt: skip
        case EscalationOver():
            canonical(log, "escalation_over", time_s=event.now_s, reason=event.reason, remedy="nothing to do")
        case Diverged():
            canonical(
                log, "diverged", level="error", since_s=event.since_s, time_s=event.now_s, reason=event.reason,
                remedy=event.remedy,
            )  # fmt: skip
        case Decided():
            _decision(log, event)
        case Unsettled() | Outdated():
            _again(log, event)
        case Judged():
            canonical(
                log, "candidate", candidate=event.candidate, verdict=event.check.verdict, reason=event.check.reason
            )
        case Return():
            names = zip(robot.parameters.names, event.z.tolist(), event.replaced.tolist(), strict=True)
            canonical(
                log, "correction_returned", level="warning", reason=event.check.reason,
                returned=[name for name, z, was in names if z != was],
                remedy="look for what came and went on the robot",
            )  # fmt: skip
        case Gated() | Refusal() | Dropped():
            _intake(log, event)
        case _:
            assert_never(event)


def _intake(log: Logger, event: Gated | Refusal | Dropped) -> None:
    match event:
        case Gated():
            level: Level = "info" if event.gate.verdict == "ok" else "warning"
            canonical(
                log, "window", level=level, key=event.gate.verdict, every_s=GATE_EVERY_S, reason=event.gate.sentence
            )
        case Refusal():
            canonical(
                log, "frame_refused", level="warning", key=event.reason, every_s=GATE_EVERY_S, reason=event.text,
                remedy=event.remedy,
            )  # fmt: skip
        case Dropped():
            remedy = "a fit takes too long on this computer: fewer windows in live.keeper, or a bundle"
            canonical(log, "windows_dropped", level="warning", time_s=event.start_s, remedy=remedy)
        case _:
            assert_never(event)


def _again(log: Logger, event: Unsettled | Outdated) -> None:
    """A fit that decides nothing and is made again."""
    if isinstance(event, Unsettled):
        remedy = "none yet: it is made again from newer windows"
        canonical(log, "fit_unsettled", why=event.job.why, reason=event.reason, remedy=remedy)
    else:
        canonical(log, "fit_outdated", why=event.job.why, remedy="none: the values have moved on, it is made again")


def _decision(log: Logger, event: Decided) -> None:
    report = event.report
    canonical(
        log, "decision", level=_LEVELS[report.decision.level], action=report.decision.action, why=event.job.why,
        since_s=event.job.since_s, reason=report.decision.reason, remedy=report.decision.remedy,
        floors_before=report.check.floors_before, floors_after=report.check.floors_after, verdict=report.check.verdict,
        corrected=[e.name for e in report.decision.corrections if e.significant], windows=report.fitted,
        rollouts=report.rollouts,
        commissioned=event.commissioned,
    )  # fmt: skip


def fit_started(log: Logger, job: Job) -> None:
    """A fit begins."""
    canonical(log, "fit", why=job.why, since_s=job.since_s, windows=len(job.prepared.windows), alpha=job.standing.alpha)


def link(log: Logger, event: link_events.Event) -> None:
    """The line of an event of the link."""
    match event:
        case link_events.Connected():
            welcome = event.welcome
            canonical(log, "link_up", epoch=welcome.epoch, version=welcome.version, high_water=welcome.high_water)
        case link_events.Disconnected():
            canonical(log, "link_down", level="warning", reason=event.reason, remedy=event.remedy)
        case link_events.Refused():
            canonical(log, "link_refused", level="error", code=event.code, remedy=event.remedy)
        case link_events.Acknowledged():
            canonical(log, "acknowledged", sequence=event.sequence, version=event.version)
        case link_events.Rejected():
            canonical(
                log, "rejected", level="warning", sequence=event.sequence, code=event.code, remedy=event.remedy,
                version=event.version,
            )  # fmt: skip
        case link_events.EvidenceWanted():
            canonical(log, "evidence", key="evidence", every_s=10.0, evidence=event.evidence, offset=event.offset)
        case link_events.CandidateOffered():
            candidate = event.candidate
            canonical(
                log, "offered", key=candidate.candidate, every_s=600.0, candidate=candidate.candidate,
                source=candidate.source, base_version=candidate.base_version,
            )  # fmt: skip
        case _:
            assert_never(event)
