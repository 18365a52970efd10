"""Recalibrate one robot from the evidence of its escalation, and store what is to be offered to it."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gapd.errors import GapdError
from gapd.fit.cycle import prepare
from gapd.gap_model.bundle import open_active
from gapd.measured.evidence import unpack
from gapd.measured.windows import Frames
from gapd.model.robot import Robot
from gaptrain.host import jobs
from gaptrain.host.database import HostError, open_existing, transaction, using
from gaptrain.host.engines import ENGINES, Engine, Refit
from gaptrain.host.evidence_files import EvidenceFiles
from gaptrain.host.interruption import Interruption
from gaptrain.host.locks import RECALIBRATION, only_one
from gaptrain.host.registry import Enrolled, the_robot
from gaptrain.host.versions import newest, newest_number

NOTHING_TO_DO = "nothing to do"


@dataclass(frozen=True)
class Outcome:
    """What a recalibration came to; candidate is empty where nothing is offered."""

    robot: str
    candidate: str
    reason: str
    remedy: str

    @property
    def sentence(self) -> str:
        """One line."""
        what = f"candidate {self.candidate} is offered" if self.candidate else "nothing to offer"
        return f"{self.robot}: {what}: {self.reason}; {self.remedy}"


def run_job(state: Path, name: str, engine: Engine, number: int | None, threads: int) -> Outcome:
    """Refit on the evidence of job `number`, or of the newest one whose evidence is here; record the result."""
    busy = "another recalibration runs; wait for it"
    with using(open_existing, state) as database, only_one(state, RECALIBRATION, busy):
        robot = the_robot(database, name)
        job = _job(database, robot, number)
        with Interruption(lambda: jobs.put_back(database, job)) as interruption:
            jobs.begin_job(database, job.number, time.time())
            try:
                refit = _answer(database, robot, job, _refit(database, state, robot, job, engine, threads))
            except GapdError as error:
                interruption.too_late()
                remedy = "mend that and run `gaptrain recalibrate` again"
                jobs.end_job(database, job.number, "failed", str(error), remedy, time.time())
                raise
            interruption.too_late()
            return _record(database, robot, job, refit, f"recalibration {job.number}, {engine}")


def _job(database: sqlite3.Connection, robot: Enrolled, number: int | None) -> jobs.Job:
    if number is None:
        job = jobs.with_evidence(database, robot.name)
        if job is None:
            raise HostError(f"robot {robot.name}: no escalation with complete evidence; wait for one")
        return job
    job = jobs.numbered(database, number)
    if job is None or job.robot != robot.name:
        raise HostError(f"robot {robot.name} has no job {number}; leave out --job")
    return job


def _refit(
    database: sqlite3.Connection, state: Path, enrolled: Enrolled, job: jobs.Job, engine: Engine, threads: int
) -> Refit:
    robot = open_active(enrolled.config)
    if robot.parameters.fingerprint != enrolled.fingerprint:
        raise HostError(
            f"{enrolled.config}: its parameters are not those that {enrolled.name} is enrolled with; run "
            f"`gaptrain enrol {enrolled.name}` again"
        )
    frames = _evidence(EvidenceFiles(state).path(job.evidence), robot)
    current = newest(database, enrolled.name)
    before = robot.parameters.z_nominal if current is None else current.values.z
    return ENGINES[engine](robot, prepare(robot, [frames]), before, threads)


def _evidence(path: Path, robot: Robot) -> Frames:
    if not path.is_file():
        raise HostError(f"{path}: the recording is gone; wait for the robot's next escalation")
    frames, layout = unpack(path.read_bytes(), path.name), robot.layout
    got = (frames.measured.shape[1], frames.command.shape[1], frames.context.shape[1])
    wanted = (len(layout.channels), len(layout.actuators), len(robot.config.context))
    if got != wanted:
        raise HostError(
            f"{path}: {got} channels, commands and context values, robot.toml has {wanted}; use the same robot.toml on "
            "both ends"
        )
    return frames


def _answer(database: sqlite3.Connection, robot: Enrolled, job: jobs.Job, refit: Refit) -> Refit:
    """The refit with what the robot asked for: where no values help, its terms are named again, and what to do.

    A refit that finds nothing does not mean that nothing is there: no parameter expresses such a term.
    """
    terms, remedy = jobs.asked(database, job)
    if refit.values is not None or not terms:
        return replace(refit, remedy=refit.remedy or NOTHING_TO_DO)
    model = f"if it is to stay, add it to the model, then run `gaptrain enrol {robot.name}` again"
    remedies = dict.fromkeys(r for r in (remedy, refit.remedy, model) if r)
    reason = f"the robot named {jobs.named(terms)}; the refit: {refit.reason}"
    return replace(refit, reason=reason, remedy="; ".join(remedies))


def _record(database: sqlite3.Connection, robot: Enrolled, job: jobs.Job, refit: Refit, source: str) -> Outcome:
    """Store job and candidate together. Values are absolute: they are offered on the version that is current now."""
    wall_s, candidate = time.time(), ""
    with transaction(database):
        if refit.values is not None:
            z, z_sd = (np.asarray(v, float) for v in refit.values)
            version = newest_number(database, robot.name)
            candidate = jobs.add_candidate(database, robot.name, version, robot.fingerprint, z, z_sd, source, wall_s)
        ended: jobs.Ended = "offered" if candidate else "nothing"
        jobs.end_job(database, job.number, ended, refit.reason, refit.remedy, wall_s, candidate)
    return Outcome(robot.name, candidate, refit.reason, refit.remedy)
