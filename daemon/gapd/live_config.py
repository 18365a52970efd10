"""The tables [live.*] of robot.toml, which only a running daemon needs: where frames come from and where results go."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

import msgspec

from gapd.limits import name_fault, number_fault, path_fault

Fault = tuple[str, object, str]

EXPOSED = (
    "is on the network, where anybody can feign frames; set server_public_key and secret_key (gapd keygen), "
    "or allow_plaintext = true"
)


class ZmqFrames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[live.frames]: where frames come from.

    With server_public_key (of the source) and secret_key (of this robot), files as `gapd keygen` writes them, the
    source is a CURVE server, whichever end binds. `ignore`: names in frames that the model does not have.
    """

    endpoint: str = "tcp://127.0.0.1:5571"
    bind: bool = False
    topic: str = "frames"
    server_public_key: str = ""
    secret_key: str = ""
    allow_plaintext: bool = False
    ignore: tuple[str, ...] = ()

    @property
    def encrypted(self) -> bool:
        """Whether CURVE is used."""
        return bool(self.server_public_key and self.secret_key)

    @property
    def exposed(self) -> bool:
        """Whether frames cross a network in plain text: status WARN."""
        return not self.encrypted and not is_local(self.endpoint)

    def fault(self) -> tuple[str, str]:
        """Key and fault of the first wrong value; both empty if all are fine."""
        return next(((key, fault) for key, fault in self._faults() if fault), ("", ""))

    def _faults(self) -> Iterator[tuple[str, str]]:
        yield "endpoint", endpoint_fault(self.endpoint)
        yield "topic", name_fault(self.topic)
        for key, other in (("server_public_key", "secret_key"), ("secret_key", "server_public_key")):
            value: str = getattr(self, key)
            yield key, path_fault(value) if value else ""
            yield key, f"is needed with {other}; name the file" if getattr(self, other) and not value else ""
        yield "endpoint", EXPOSED if self.exposed and not self.allow_plaintext else ""
        for name in self.ignore:
            yield "ignore", name_fault(name)


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[live.link]: the host, the files with its public key and this robot's secret, the name it is enrolled by."""

    name: str
    endpoint: str
    server_public_key: str
    secret_key: str


class Stream(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[live.stream]: results for tools on this computer; frames are sent on one in `frames_every`, 0 for none."""

    endpoint: str = "tcp://127.0.0.1:9872"
    frames_every: int = 5


class RemoteStream(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[live.remote_stream]: results for other computers, with CURVE.

    `secret_key` is this robot's, `allowed` the .pub files of those who may listen; frames are sent one in
    `frames_every`, 0 for none.
    """

    endpoint: str
    secret_key: str
    allowed: tuple[str, ...]
    frames_every: int = 50

    def fault(self) -> tuple[str, str]:
        """Key and fault of the first wrong value; both empty if all are fine."""
        return next(((key, fault) for key, fault in self._faults() if fault), ("", ""))

    def _faults(self) -> Iterator[tuple[str, str]]:
        yield "endpoint", endpoint_fault(self.endpoint)
        yield "secret_key", path_fault(self.secret_key)
        yield "allowed", "" if self.allowed else "lets nobody in; name the .pub files of those who may listen"
        for path in self.allowed:
            yield "allowed", path_fault(path)
        yield "frames_every", number_fault(self.frames_every, 0, 1e6, "a count")


class KeeperSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[live.keeper]: when fits are made and how far a correction may go."""

    windows: int = 60  # newest windows of which a fit is made; as many as it needs if that is more
    min_interval_s: float = 60.0  # between two fits
    fits_per_hour: int = 30  # at most; of ten seconds each they take a twelfth of a core
    false_alarms_per_day: float = 1.0  # of the drift test; each costs one fit
    max_step: float = 2.0  # largest move of one correction after commissioning, scaled: a factor of e² on a log scale


class Live(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of them. `state` is the folder of what outlives a restart, from the folder of robot.toml."""

    frames: ZmqFrames = ZmqFrames()
    link: Link | None = None
    stream: Stream | None = None
    remote_stream: RemoteStream | None = None
    keeper: KeeperSettings = KeeperSettings()
    state: str = "state"


def live_faults(live: Live) -> Iterator[Fault]:
    """Key, value and fault (empty if fine) of everything that the types cannot tell."""
    yield "state", live.state, path_fault(live.state)
    key, fault = live.frames.fault()
    yield f"frames.{key}", getattr(live.frames, key, ""), fault
    if live.link is not None:
        yield "link.name", live.link.name, name_fault(live.link.name)
        yield "link.endpoint", live.link.endpoint, endpoint_fault(live.link.endpoint)
        yield "link.server_public_key", live.link.server_public_key, path_fault(live.link.server_public_key)
        yield "link.secret_key", live.link.secret_key, path_fault(live.link.secret_key)
    if live.stream is not None:
        yield "stream.endpoint", live.stream.endpoint, endpoint_fault(live.stream.endpoint)
        exposed = "" if is_local(live.stream.endpoint) else "is on the network; bind 127.0.0.1, and add remote_stream"
        yield "stream.endpoint", live.stream.endpoint, exposed
        yield "stream.frames_every", live.stream.frames_every, number_fault(live.stream.frames_every, 0, 1e6, "a count")
    if live.remote_stream is not None:
        key, fault = live.remote_stream.fault()
        yield f"remote_stream.{key}", getattr(live.remote_stream, key, ""), fault
        alone = "" if live.stream is not None else "needs [live.stream] too"
        yield "remote_stream.endpoint", live.remote_stream.endpoint, alone
    keeper = live.keeper
    yield "keeper.windows", keeper.windows, number_fault(keeper.windows, 20, 1000, "a number of windows")
    yield "keeper.min_interval_s", keeper.min_interval_s, number_fault(keeper.min_interval_s, 0, 86400, "a time")
    yield "keeper.fits_per_hour", keeper.fits_per_hour, number_fault(keeper.fits_per_hour, 1, 3600, "a count")
    yield (
        "keeper.false_alarms_per_day", keeper.false_alarms_per_day,
        number_fault(keeper.false_alarms_per_day, 1e-6, 1000, "a rate"),
    )  # fmt: skip
    yield "keeper.max_step", keeper.max_step, number_fault(keeper.max_step, 0.01, 100, "a scaled step")


def is_local(endpoint: str) -> bool:
    """Whether only this machine can reach the endpoint: loopback, ipc, inproc."""
    if endpoint.startswith(("ipc://", "inproc://")):
        return True
    host = re.sub(r"^tcp://(.*):[^:]*$", r"\1", endpoint).strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def endpoint_fault(endpoint: str) -> str:
    """Fault of a ZeroMQ endpoint."""
    tcp = re.fullmatch(r"tcp://(?:[^\s/:]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5}|\*)", endpoint)
    fine = tcp and (tcp[1] == "*" or 0 < int(tcp[1]) < 2**16)
    return "" if fine or re.fullmatch(r"(ipc|inproc)://\S{1,100}", endpoint) else "must be like tcp://127.0.0.1:5571"
