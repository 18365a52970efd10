"""The daemon: the thin loop that joins source, pipeline, fits, host and whoever watches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import zmq

from gapd.errors import InputError
from gapd.gap_model.learned import Learned
from gapd.live import journal, overview
from gapd.live.edges import Edges
from gapd.live.events import Decided, Monitored
from gapd.live.fitter import Failed, Fitter
from gapd.live.host_talk import HostTalk
from gapd.live.pipeline import Happening, Pipeline
from gapd.live.problems import Problems
from gapd.live.recorder import Recorder
from gapd.live.recording_format import RecordingError
from gapd.live.source_watch import SourceWatch
from gapd.live.status import Level, Status
from gapd.live.telemetry import canonical
from gapd.messages.frames import Frame
from gapd.model.robot import Robot

# The loop waits this long for input, so that nothing that is due is later than this.
TURN_MS = 50
# ... and at least this long after the last turn: a thousand wake-ups a second cost more than what they are for.
LEAST_TURN_S = 0.01
# Frames taken in one turn: at 1 kHz ten turns' worth, so that a stall is made up for quickly.
FRAMES_PER_TURN = 500
# After a failed write, the state is written again only this much later.
RETRY_S = 5.0


class Daemon:
    """One robot's daemon. `turn` does what is due and returns."""

    def __init__(self, robot: Robot, learned: Learned | None, edges: Edges) -> None:
        """Take up what the last run left."""
        self.robot, self.edges = robot, edges
        memory, version = edges.state.load()
        self.pipeline = Pipeline(robot, robot.config.live.keeper, memory)
        self.problems = Problems(self.pipeline.keeper.memory)
        self.host = HostTalk(edges, self.pipeline, version, self.problems, self._note)
        self.source = SourceWatch(edges, self.pipeline, self.problems)
        self.fitter = Fitter(robot, learned)
        self._turned_s = 0.0
        self._began_s = self._alive_s = time.monotonic()
        self._saved = (memory, version)
        self._retry_s = 0.0
        self._floors: float | None = None
        self._level: Level | None = None
        for note in edges.state.notes:
            canonical(edges.log, "state", level="warning", note=note)
        self._note("started", parameters=robot.parameters.fingerprint, memory=self.pipeline.keeper.memory)
        if robot.config.live.frames.exposed:
            text = "frames come over the network in plain text: set server_public_key and secret_key in live.frames"
            self.problems.note("plaintext", Level.WARN, text)
        self.host.take_up()

    def turn(self) -> None:
        """Wait for input for a moment at most, then do what is due."""
        self._wait()
        now_s = time.monotonic()
        for frame in self.edges.frames.read(FRAMES_PER_TURN):
            self._take(frame, now_s)
        self._fit()
        self.host.talk(now_s)
        self.edges.frames.reopen_if_denied(now_s)
        self.source.look(now_s)
        self._tell_level()
        self._save(now_s)
        self.edges.status.serve(self.status)
        if self.edges.manager.watchdog_s is not None and now_s - self._alive_s >= self.edges.manager.watchdog_s:
            self.edges.manager.alive()
            self._alive_s = now_s

    def close(self) -> None:
        """Let a running fit end, keep what is known, and leave. InputError or RecordingError if that fails."""
        self.fitter.close()
        with ExitStack() as stack:
            if self.edges.recorder is not None:
                stack.callback(self.edges.recorder.close)
            self._keep()

    def status(self) -> Status:
        """What `gapd status` shows."""
        return Status(
            level=self.problems.level,
            state=self.pipeline.keeper.state,
            robot=self.robot.config.robot,
            problems=self.problems.lines,
            counters=self._counters(),
            link=self.host.link_state(),
            estimates=overview.estimates(self.robot, self.pipeline.keeper.memory),
            gap_floors=self._floors,
            since_s=time.monotonic() - self._began_s,
        )

    def _wait(self) -> None:
        time.sleep(max(0.0, self._turned_s + LEAST_TURN_S - time.monotonic()))
        self._turned_s = time.monotonic()
        poller = zmq.Poller()
        sockets = [self.edges.frames.socket, self.edges.link.socket if self.edges.link else None]
        for socket in sockets:
            if socket is not None:
                poller.register(socket, zmq.POLLIN)
        poller.register(self.edges.status, zmq.POLLIN)
        poller.poll(TURN_MS)

    def _take(self, frame: Frame, now_s: float) -> None:
        self._record_frame(frame, now_s)
        happened = self.pipeline.add(frame, now_s)
        row = self.pipeline.row
        self._handle(happened)
        if row is None:
            return
        self.source.accepted(now_s)
        if self.edges.stream is not None:
            self.edges.stream.frame(row)

    def _fit(self) -> None:
        """Take what a fit has led to, and begin the next."""
        result = self.fitter.take()
        if result is not None:
            self._note("fit_ended", failed=isinstance(result, Failed))
        if isinstance(result, Failed):
            self._failed(result)
        elif result is not None:
            self.problems.clear("fit")
            self._handle(self.pipeline.keeper.finish(result))
        if self.pipeline.keeper.job is not None and not self.fitter.busy:
            self.fitter.start(self.pipeline.keeper.job)
            journal.fit_started(self.edges.log, self.pipeline.keeper.job)

    def _failed(self, failed: Failed) -> None:
        again_s = self.robot.config.live.keeper.min_interval_s
        remedy = f"the next one is tried after {again_s:g} s"
        remedy += "" if failed.foreseen else "; if it fails too, report this line"
        canonical(self.edges.log, "fit_failed", level="error", reason=failed.reason, remedy=remedy)
        self.problems.note("fit", Level.ERROR, f"a fit has failed: {failed.reason}; {remedy}")
        self._handle(self.pipeline.keeper.abandon())

    def _handle(self, happened: Sequence[Happening]) -> None:
        for event in happened:
            journal.write(self.edges.log, event, self.robot)
            self._publish(event)
            self._floors = overview.floors(event) or self._floors
            for listener in (self.problems, self.host, self.source):
                listener.heard(event)

    def _tell_level(self) -> None:
        """To the host with each heartbeat, on the stream whenever it changes."""
        if self.edges.link is not None:
            self.edges.link.level = int(self.problems.level)
        if self.edges.stream is not None and self.problems.level != self._level:
            self._level = self.problems.level
            self.edges.stream.level(self.pipeline.robot_s, self._level, self._counters())

    def _publish(self, event: Happening) -> None:
        stream = self.edges.stream
        if stream is None:
            return
        if isinstance(event, Monitored):
            stream.gaps(event.start_s, event.gap.tolist(), event.floors)
        elif isinstance(event, Decided):
            space, check = self.robot.parameters, event.report.check
            sd = space.physical_sd(event.z, event.report.identification.uncertainty.sd)
            stream.estimates(self.pipeline.robot_s, space.to_physical(event.z).tolist(), sd.tolist())
            self._level = None  # with each decision, changed or not
            stream.verdict(
                self.pipeline.robot_s, event.report.decision.action, accepted=check.verdict == "accepted",
                floors_before=check.floors_before, floors_after=check.floors_after, windows=check.windows,
            )  # fmt: skip

    def _record_frame(self, frame: Frame, now_s: float) -> None:
        if self.edges.recorder is not None:
            self._record(lambda recorder: recorder.frame(frame, now_s))

    def _note(self, event: str, **fields: object) -> None:
        """Record what decisions depend on besides frames, so that a replay decides the same."""
        self._record(lambda recorder: recorder.event(self.pipeline.robot_s, event, fields))

    def _record(self, write: Callable[[Recorder], None]) -> None:
        recorder = self.edges.recorder
        if recorder is None:
            return
        dropped = recorder.dropped
        try:
            write(recorder)
        except RecordingError as error:
            self.problems.note("recorder", Level.WARN, str(error))
            canonical(self.edges.log, "recorder", level="warning", key="recorder", every_s=60.0, reason=str(error))
        else:
            if recorder.dropped == dropped:
                self.problems.clear("recorder")

    def _save(self, now_s: float) -> None:
        """Write what has changed: the state, and messages that the outbox did not take."""
        if now_s < self._retry_s:
            return
        if "outbox" in self.problems:
            self._retry_s = now_s + RETRY_S
            self.host.store()
        try:
            self._keep()
        except InputError as error:
            self._retry_s = now_s + RETRY_S
            self.problems.note("state", Level.ERROR, str(error))
            canonical(self.edges.log, "state", level="error", key="state", every_s=60.0, reason=str(error))
        else:
            self.problems.clear("state")

    def _keep(self) -> None:
        now = (self.pipeline.keeper.memory, self.host.post.version)
        if now != self._saved:
            self.edges.state.save(*now)
            self._saved = now

    def _counters(self) -> dict[str, int]:
        malformed = self.edges.frames.malformed
        spent = {"fit_cpu_s": round(self.fitter.cpu_s)}
        return overview.counters(self.pipeline) | spent | {f"messages_{r}": n for r, n in malformed.items() if n}
