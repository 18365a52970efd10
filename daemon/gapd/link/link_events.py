"""What the host link tells the daemon."""

from __future__ import annotations

from dataclasses import dataclass

from gapd.link.outbox_rows import Stored
from gapd.messages import link as wire


@dataclass(frozen=True)
class Connected:
    """The host answered Hello: its epoch, high-water mark, version and values. Waiting messages go out from now on."""

    welcome: wire.Welcome


@dataclass(frozen=True)
class Disconnected:
    """No link, and why. Each reason comes once until the link is up again: attempts that fail alike are silent."""

    reason: str
    remedy: str


@dataclass(frozen=True)
class Refused:
    """The host will not serve this robot as it is; asked again after REFUSED_RETRY_S."""

    code: str
    remedy: str


@dataclass(frozen=True)
class Acknowledged:
    """Everything up to `sequence` is final on the host and gone from the outbox; its values are those of `version`."""

    sequence: int
    version: int


@dataclass(frozen=True)
class Rejected:
    """The host refused one message for good; it is gone from the outbox. version and z (P,) are what holds there."""

    sequence: int
    message: Stored
    code: str
    remedy: str
    version: int
    z: tuple[float, ...]


@dataclass(frozen=True)
class EvidenceWanted:
    """The host asks for bytes of a recording from `offset`: answer with `send_chunk`."""

    evidence: str
    offset: int


@dataclass(frozen=True)
class CandidateOffered:
    """The host offers values: check them, answer with a Verdict through the outbox."""

    candidate: wire.Candidate


Event = Connected | Disconnected | Refused | Acknowledged | Rejected | EvidenceWanted | CandidateOffered


@dataclass(frozen=True)
class LinkStatus:
    """What `gapd status` shows. oldest_s: age in seconds of what waits longest, by the robot's clock; 0 if nothing.

    `dropped` counts messages of the host that had no meaning, `corrupt` those of the outbox that were damaged on disk.
    """

    up: bool
    endpoint: str
    pending: int
    oldest_s: float
    error: str
    version: int
    dropped: int
    corrupt: int
