"""Everything that leads into the daemon or out of it."""

from __future__ import annotations

from dataclasses import dataclass

from gapd.link.hostlink import HostLink
from gapd.link.outbox import Outbox
from gapd.live.recorder import Recorder
from gapd.live.state_folder import StateFolder
from gapd.live.status import StatusSocket
from gapd.live.stream import Publisher
from gapd.live.telemetry import Logger, ServiceManager
from gapd.sources.zmq_frames import FrameSource


@dataclass
class Edges:
    """Everything that leads in or out; what robot.toml does not name is None."""

    frames: FrameSource
    state: StateFolder
    status: StatusSocket
    log: Logger
    manager: ServiceManager
    outbox: Outbox | None = None
    link: HostLink | None = None
    stream: Publisher | None = None
    recorder: Recorder | None = None
