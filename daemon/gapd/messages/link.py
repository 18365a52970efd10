"""The link between a robot and its host: MessagePack, one message per ZeroMQ message, at most MAX_BYTES each.

Corrections, escalations and verdicts are *durable*: the robot keeps them until the host acknowledges (epoch, sequence),
the host applies each once. All other messages may be lost and are asked for again.
"""

from __future__ import annotations

from typing import Literal

import msgspec

PROTOCOL = 1
MAX_BYTES = 65536
# Evidence in one chunk: leaves room for the envelope.
CHUNK_BYTES = 48 * 1024
# Parameters whose covariance fits into one message beside everything else.
MAX_ACTIVE = 64


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of all messages; `kind` on the wire names the type."""


class Hello(Message, frozen=True, tag="hello"):
    """First message of a connection. `outbox` identifies the robot's outbox, so that a new one gets a new epoch.

    `parameters` is the fingerprint of names, scales and bounds: scaled values mean the same on both ends.
    """

    protocol: int
    robot: str
    outbox: str
    parameters: str
    software: str


class Welcome(Message, frozen=True, tag="welcome"):
    """Answer to Hello: epoch of this outbox, highest sequence applied in it, current version and scaled values (P,).

    z is empty before the first correction: the simulator then has its nominal values.
    """

    epoch: int
    high_water: int
    version: int
    z: tuple[float, ...]


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """From either end, in place of silence. The host's has version and nothing pending."""

    version: int
    pending: int = 0
    level: int = 0


class Durable(Message, frozen=True):
    """Head of what the robot keeps until it is acknowledged; timestamp is the robot's clock in seconds."""

    epoch: int
    sequence: int
    timestamp: float


class Correction(Durable, frozen=True, tag="correction"):
    """Absolute values of all parameters, scaled (P,), to replace those of `base_version`.

    covariance is the packed lower triangle, float32 little endian, of the parameters numbered by `active`. changed
    names what moved and effective those of them that make up for a model error. previous: earlier values come back.
    """

    base_version: int
    z: tuple[float, ...]
    z_sd: tuple[float, ...]
    active: tuple[int, ...]
    covariance: bytes
    changed: tuple[str, ...]
    effective: tuple[str, ...]
    reason: str
    gap_before: float
    gap_after: float
    windows: int
    previous: bool = False


class Term(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A structural finding: a force that no parameter expresses."""

    joint: str
    regressor: str
    coefficient: float
    sd: float
    unit: str
    share: float


class Escalation(Durable, frozen=True, tag="escalation"):
    """Asks for a full recalibration. evidence is the sha256 of a recording that the host may fetch in chunks."""

    base_version: int
    reason: str
    remedy: str
    terms: tuple[Term, ...]
    evidence: str
    evidence_bytes: int


class Verdict(Durable, frozen=True, tag="verdict"):
    """What the robot's check says about a candidate of the host; if accepted, its values are those of the robot."""

    candidate: str
    base_version: int
    verdict: Literal["accepted", "rejected"]
    reason: str
    gap_before: float
    gap_after: float
    windows: int


class Ack(Message, frozen=True, tag="ack"):
    """The message is committed on the host, and everything before it."""

    epoch: int
    sequence: int
    version: int


class Nack(Message, frozen=True, tag="nack"):
    """The message is refused for good. `stale_base`: values moved on to version and z; the robot checks again."""

    epoch: int
    sequence: int
    code: Literal["stale_base", "wrong_epoch", "wrong_parameters", "invalid"]
    remedy: str
    version: int
    z: tuple[float, ...] = ()


class Refused(Message, frozen=True, tag="refused"):
    """Answer to a Hello that cannot be served; the robot waits longer before it tries again."""

    code: Literal["protocol", "unknown_robot", "wrong_parameters"]
    remedy: str


class EvidenceRequest(Message, frozen=True, tag="evidence_request"):
    """Asks for bytes of a recording from offset."""

    evidence: str
    offset: int


class Chunk(Message, frozen=True, tag="chunk"):
    """Bytes of a recording; empty with total 0 if the robot no longer has it."""

    evidence: str
    offset: int
    total: int
    sha256: str
    data: bytes


class Candidate(Message, frozen=True, tag="candidate"):
    """Values that the host offers, scaled (P,), in place of those of base_version; the robot checks them."""

    candidate: str
    base_version: int
    z: tuple[float, ...]
    z_sd: tuple[float, ...]
    source: str


FromRobot = Hello | Heartbeat | Correction | Escalation | Verdict | Chunk
FromHost = Welcome | Refused | Heartbeat | Ack | Nack | EvidenceRequest | Candidate

ENCODER = msgspec.msgpack.Encoder()
FROM_ROBOT = msgspec.msgpack.Decoder(FromRobot)
FROM_HOST = msgspec.msgpack.Decoder(FromHost)
