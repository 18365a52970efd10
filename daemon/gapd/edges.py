"""Everything that leads into the daemon or out of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gapd.hostlink import HostLink
from gapd.outbox import Outbox
from gapd.recorder import Recorder
from gapd.sources.zmq_frames import FrameSource
from gapd.state_folder import StateFolder
from gapd.status import StatusSocket
from gapd.stream import Publisher
from gapd.telemetry import Logger, ServiceManager

Array = NDArray[np.float64]


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
