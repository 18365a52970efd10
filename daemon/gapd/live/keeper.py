"""Keeper: what a robot's simulator is worth now, and what to do about it, window by window. No I/O, no clock.

It is driven by windows and their own time, so that a recording replays to the same decisions. A fit is handed out as a
`Job` and its report handed back; windows that close meanwhile wait. States: *commissioning* (no accepted fit yet),
*watching* (one replay per window, drift test), *gathering* (drift found, collecting windows from after the change),
*fitting* (a job is handed out).
"""

from __future__ import annotations

from collections import deque

import msgspec
import numpy as np
from numpy.typing import NDArray

from gapd.errors import InputError
from gapd.fit.check import LOST_SHARE, MIN_BLOCKS, MIN_WINDOWS
from gapd.fit.cycle import Report, Standing, hold_out, windows_needed
from gapd.fit.decide import Action
from gapd.gap.replay import Replay, gap, squared_gap
from gapd.live.comparison import Comparison
from gapd.live.events import (
    Decided,
    Diverged,
    Drifted,
    EscalationOver,
    Event,
    Job,
    Judged,
    Monitored,
    Outdated,
    Unsettled,
)
from gapd.live.floors import floor_of
from gapd.live.memory import Memory
from gapd.live.monitor import Baseline, Drift, DriftTest
from gapd.live.recovery import Recovery
from gapd.live.robot_clock import RobotClock
from gapd.live.trial_period import Return, TrialPeriod
from gapd.live_config import KeeperSettings
from gapd.measured.windows import Windows
from gapd.model.robot import Robot

Array = NDArray[np.float64]

HOUR_S = 3600.0
# Windows at the onset of a change that may hold a little of both.
AROUND = 1
# Verdict of a robot that needs nothing.
NOTHING_TO_DO = ("OK", "")


class Keeper:
    """One robot. Feed it ok windows with `add`; when `job` is set, run it and call `finish`."""

    def __init__(self, robot: Robot, settings: KeeperSettings, memory: Memory | None = None) -> None:
        """Start from what is remembered, else from nominal values."""
        self.robot, self.settings = robot, settings
        self.memory = memory or Memory(tuple(robot.parameters.z_nominal.tolist()))
        self.job: Job | None = None
        self._replay, self._clock = Replay(robot), RobotClock()
        self._needed = windows_needed(robot.config.timing.window_s)
        # Newest windows, each with whether it could be replayed.
        self._recent: deque[tuple[Windows, bool]] = deque(maxlen=max(settings.windows, self._needed))
        self._waiting: deque[Windows] = deque()
        self._now_s = 0.0  # of the newest window, by a clock that only rises
        self._drift: Drifted | None = None
        self._again = False  # a fit of this change has explained nothing
        self._test: DriftTest | None = None
        self._recovery: Recovery | None = None
        self._watch()
        self._trial: TrialPeriod | None = None
        self._offer: tuple[str, Comparison] | None = None  # a candidate of the host, by name
        self._fits_s: deque[float] = deque(maxlen=settings.fits_per_hour)

    @property
    def z(self) -> Array:
        """Scaled values now (P,)."""
        return np.array(self.memory.z)

    @property
    def state(self) -> str:
        """One word for the status."""
        if self.job is not None:
            return "fitting"
        if self.memory.baseline is None:
            return "commissioning"
        return "watching" if self._drift is None else "gathering"

    @property
    def waiting(self) -> int:
        """Windows that wait for the end of a fit."""
        return len(self._waiting)

    @property
    def missing_s(self) -> float:
        """Seconds of usable windows until the next fit, at most, if there is reason for one."""
        windows = self._needed - sum(replayed for _, replayed in self._recent)
        pause_s = self._fits_s[-1] + self.settings.min_interval_s - self._now_s if self._fits_s else 0.0
        return max(windows * self.robot.config.timing.window_s, pause_s, 0.0)

    def add(self, window: Windows) -> list[Event]:
        """Take in one ok window; while a fit is being made it waits."""
        self._waiting.append(self._clock.stamp(window))
        return self._catch_up()

    def restart(self) -> None:
        """The robot's clock begins anew: windows from now on are none that follow those before."""
        self._clock.restart()

    def offer(self, candidate: str, z: Array) -> None:
        """Take in values (P,) that the host offers; they are judged on windows that are still to come."""
        space = self.robot.parameters
        self._offer = candidate, Comparison(self.robot, np.clip(z, space.z_min, space.z_max))

    def adopt(self, z: Array) -> None:
        """Take over values (P,) that hold on the host; the baseline stays, so that wrong ones show as drift."""
        space = self.robot.parameters
        z = np.clip(z, space.z_min, space.z_max)
        if not np.array_equal(z, self.z):  # the verdict was about values that are gone
            self.memory = msgspec.structs.replace(self.memory, verdict=NOTHING_TO_DO)
        self._move(z)

    def finish(self, report: Report) -> list[Event]:
        """Take in the report of the job, then the windows that waited for it."""
        job, self.job = self._running(), None
        if not np.array_equal(job.standing.z, self.z):
            return [Outdated(job), *self._catch_up()]
        if _is_unsettled(job, report):
            self._again = True
            for _ in range(len(self._recent) // 2):
                self._recent.popleft()
            return [Unsettled(job, report.decision.reason), *self._catch_up()]
        return [self._decided(job, report), *self._catch_up()]

    def abandon(self) -> list[Event]:
        """The job came to nothing: the windows that waited go on, and after a while another fit is tried."""
        self._running()
        self.job = None
        return self._catch_up()

    def _running(self) -> Job:
        if self.job is None:
            raise RuntimeError("no fit is being made")
        return self.job

    def _catch_up(self) -> list[Event]:
        events: list[Event] = []
        while self._waiting and self.job is None:
            events += self._take(self._waiting.popleft())
        return events

    def _take(self, window: Windows) -> list[Event]:
        squared, self._now_s = self._squared(window, self.z)[0], self._clock.running_s(window)
        self._recent.append((window, not np.isposinf(squared).any()))
        events: list[Event] = [Monitored(float(window.start_s[0]), np.sqrt(squared), self._floors(squared))]
        events += self._tried(window, squared)
        events += self._judged(window, squared)
        if self._drift is None:
            events += self._recovered(float(window.start_s[0]), squared) or self._drifted(squared)
        return [*events, *self._propose()]

    def _squared(self, windows: Windows, z: Array) -> Array:
        """Mean squared gaps (W, C) in noise², from the measured initial states; NaN if absent, inf if one diverged."""
        rollouts = self._replay.run(windows, self.robot.parameters.to_physical(z))
        squared = squared_gap(gap(windows, rollouts, self.robot.layout.noise))
        squared[rollouts.failed] = np.inf
        return squared

    def _floors(self, squared: Array) -> float:
        """RMS gap in commissioned floors over the channels; NaN before commissioning."""
        ratio = squared / np.array(self.memory.floor or [np.nan]) ** 2
        return float(np.sqrt(np.nanmean(ratio))) if np.isfinite(ratio).any() else np.nan

    def _recovered(self, now_s: float, squared: Array) -> list[Event]:
        """The cause of an escalation has gone: the baseline from before it holds again.

        If there was none, the floor was that of the cause, too: the robot is commissioned anew.
        """
        if self._recovery is None or not self._recovery.update(squared):
            return []
        earlier = self.memory.earlier
        self.memory = msgspec.structs.replace(
            self.memory, baseline=earlier, escalated=False, earlier=None, verdict=NOTHING_TO_DO,
            floor=self.memory.floor if earlier is not None else (),
        )  # fmt: skip
        self._watch()
        return [EscalationOver(now_s)]

    def _drifted(self, squared: Array) -> list[Event]:
        """What the drift test says."""
        found = self._test.update(squared) if self._test is not None else None
        if found is None:
            return []
        self._drift = self._begin(found)
        return [self._drift]

    def _begin(self, found: Drift) -> Drifted:
        """Windows from before the change leave, and those around it, which may hold a little of both."""
        began, _ = self._recent[max(len(self._recent) - found.windows, 0)]
        now_s = float(self._recent[-1][0].start_s[0])
        while len(self._recent) > max(found.windows - AROUND, 0):
            self._recent.popleft()
        return Drifted(self.robot.layout.channels[found.channel], float(began.start_s[0]), now_s, found.score)

    def _tried(self, window: Windows, squared: Array) -> list[Event]:
        """The trial period of a correction: what the previous values would have done."""
        if self._trial is None:
            return []
        self._compare(self._trial.comparison, window, squared)
        found, previous, z = self._trial.verdict(), self._trial.previous, self.z
        if found is not None:
            self._move(np.array(previous.z))
            self.memory = msgspec.structs.replace(previous, budget=self.memory.budget)
            self._watch()
            return [Return(self.z, z, found)]
        if self._trial.over:
            self._trial = None
        return []

    def _judged(self, window: Windows, squared: Array) -> list[Event]:
        """A candidate of the host, once there are enough windows to judge it."""
        if self._offer is None:
            return []
        candidate, comparison = self._offer
        self._compare(comparison, window, squared)
        if len(comparison) < 2 * MIN_WINDOWS or len(np.unique(comparison.blocks)) < 2 * MIN_BLOCKS:
            return []
        self._offer = None
        verdict = comparison.check(self._spend())
        if verdict.verdict == "accepted":
            self.memory = msgspec.structs.replace(self.memory, verdict=NOTHING_TO_DO, escalated=False, earlier=None)
            self._move(comparison.z, comparison.others)
        return [Judged(candidate, verdict, self.z)]

    def _compare(self, comparison: Comparison, window: Windows, squared: Array) -> None:
        comparison.add(window, squared, self._squared(window, comparison.z)[0])

    def _propose(self) -> list[Event]:
        """Hand out a fit if there is reason for one, enough windows, and time enough since the last."""
        due = self._drift is not None or self._test is None
        if not due or not self._recent or self._offer is not None or not self._may_fit():
            return []
        usable = [window for window, replayed in self._recent if replayed]
        lost = len(self._recent) - len(usable)
        if lost > LOST_SHARE * len(self._recent):
            if len(self._recent) < self._needed:
                return []
            self._fits_s.append(self._now_s)
            began_s, now_s = (float(self._recent[n][0].start_s[0]) for n in (0, -1))
            return [Diverged(lost, len(self._recent), began_s, now_s)]
        try:
            prepared = hold_out(self.robot, Windows.concatenate(usable))
        except InputError:
            return []  # too few windows yet
        floor = np.array(self.memory.floor) if self.memory.floor else None
        step = self.settings.max_step if self.memory.floor else np.inf
        standing = Standing(self.z, floor, self._spend(), step)
        why, since_s = "commissioning", np.nan
        if self._drift is not None:
            why, since_s = f"{self._drift.channel} has changed", self._drift.since_s
        self.job = Job(prepared, standing, why, since_s, self._again)
        self._fits_s.append(self._now_s)
        return []

    def _may_fit(self) -> bool:
        """Whether the last fit, and as many as an hour may have, are long enough ago."""
        past = self._fits_s
        if past and self._now_s - past[-1] < self.settings.min_interval_s:
            return False
        return len(past) < self.settings.fits_per_hour or self._now_s - past[0] >= HOUR_S

    def _decided(self, job: Job, report: Report) -> Decided:
        decision, found = report.decision, report.identification
        sent = {e.name: e.z_after for e in decision.corrections}
        before = self.memory
        z = np.array([sent.get(n, v) for n, v in zip(self.robot.parameters.names, before.z, strict=True)])
        told = found.uncertainty if sent or decision.action == "hold" else None  # of the values from now on
        verdict = NOTHING_TO_DO if decision.level == "OK" else (decision.level, decision.sentence)
        self.memory = msgspec.structs.replace(self.memory, verdict=verdict)
        if told is not None:
            self.memory = msgspec.structs.replace(self.memory, z_sd=tuple(told.sd.tolist()), status=told.status)
        commissioned = self._set_floor(job, report)
        # What is left now is what the next change is told from, be it explained or escalated. A fit that was rejected
        # says nothing about the robot.
        if decision.action == "reject":
            self._watch()
        else:
            self._note_escalation(decision.action)
            self._move(z, self._squared(job.prepared.windows, z))
        if sent:
            self._trial = TrialPeriod(self.robot, before)
        return Decided(job, report, z, commissioned)

    def _note_escalation(self, action: Action) -> None:
        """A correction explains what was escalated before; a hold leaves it as it is."""
        escalated, earlier = self.memory.escalated, self.memory.earlier
        if action == "escalate":
            escalated, earlier = True, earlier if escalated else self.memory.baseline
        elif action == "correct":
            escalated, earlier = False, None
        self.memory = msgspec.structs.replace(self.memory, escalated=escalated, earlier=earlier)

    def _set_floor(self, job: Job, report: Report) -> bool:
        """Take what the best model leaves as the floor, of channels that have none yet; whether it is the first."""
        floor = floor_of(report, job.prepared.windows, self.robot.layout.noise)
        if not np.isfinite(floor).any():
            return False
        known = np.array(self.memory.floor or np.full(len(floor), np.nan))
        first = not self.memory.floor
        floor = np.where(np.isfinite(known), known, floor)
        self.memory = msgspec.structs.replace(self.memory, floor=tuple(floor.tolist()))
        return first

    def _move(self, z: Array, gap2: Array | None = None) -> None:
        """Take over values (P,), and squared gaps (W, C) with them as the new baseline. The watch begins anew."""
        if not np.array_equal(z, self.z):
            self._offer = None  # it was offered in place of other values; the host will offer it again
        self.memory = msgspec.structs.replace(self.memory, z=tuple(z.tolist()))
        if gap2 is not None:
            self.memory = msgspec.structs.replace(self.memory, baseline=Baseline.of(gap2))
        self._trial = None
        self._recent.clear()
        self._watch()

    def _watch(self) -> None:
        """Begin to watch for a change, and for the end of an escalation, with what is remembered."""
        baseline, earlier = self.memory.baseline, self.memory.earlier
        window_s = self.robot.config.timing.window_s
        self._drift = self._test = self._recovery = None
        self._again = False
        if baseline is not None:
            self._test = DriftTest(baseline, window_s, self.settings.false_alarms_per_day)
            self._recovery = Recovery(earlier, baseline, window_s) if self.memory.escalated else None

    def _spend(self) -> float:
        alpha, budget = self.memory.budget.spend(self._now_s)
        self.memory = msgspec.structs.replace(self.memory, budget=budget)
        return alpha


def _is_unsettled(job: Job, report: Report) -> bool:
    """Whether a change is to be fitted once more, from newer windows, before nothing is said to explain it."""
    decision = report.decision
    unexplained = decision.action == "escalate" and not decision.corrections and not report.identification.findings
    return unexplained and np.isfinite(job.since_s) and not job.again
