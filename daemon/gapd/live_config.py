"""The tables of robot.toml that only a running daemon needs: where frames come from and where results go."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from gapd.limits import name_fault, number_fault, path_fault

Fault = tuple[str, object, str]


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[source]: frames over ZeroMQ. A source on another computer needs its public key and a secret of ours (CURVE)."""

    endpoint: str
    bind: bool = False
    topic: str = "frames"
    server_public_key: str = ""
    secret_key: str = ""
    allow_plaintext: bool = False


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[link]: the host, the files with its public key and with this robot's secret, and the name it is enrolled by."""

    name: str
    endpoint: str
    server_public_key: str
    secret_key: str


class Stream(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[stream]: results for tools on this computer; frames are sent on one in `frames_every`, 0 for none."""

    endpoint: str = "tcp://127.0.0.1:9872"
    frames_every: int = 5


class KeeperSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[keeper]: when fits are made and how far a correction may go."""

    windows: int = 60  # newest windows of which a fit is made
    min_interval_s: float = 60.0  # between two fits
    false_alarms_per_day: float = 1.0  # of the drift test; each costs one fit
    max_step: float = 2.0  # largest move of one correction after commissioning, scaled: a factor of e² on a log scale


class Live(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of them. `state` is the folder of what outlives a restart, from the folder of robot.toml."""

    source: Source | None = None
    link: Link | None = None
    stream: Stream | None = None
    keeper: KeeperSettings = KeeperSettings()
    state: str = "state"


def live_faults(live: Live) -> Iterator[Fault]:
    """Key, value and fault (empty if fine) of everything that the types cannot tell."""
    yield "state", live.state, path_fault(live.state)
    if live.source is not None:
        yield from _endpoint("source.endpoint", live.source.endpoint)
        yield "source.topic", live.source.topic, name_fault(live.source.topic)
        one = bool(live.source.server_public_key) != bool(live.source.secret_key)
        yield "source.secret_key", live.source.secret_key, "goes with server_public_key; set both" if one else ""
    if live.link is not None:
        yield "link.name", live.link.name, name_fault(live.link.name)
        yield from _endpoint("link.endpoint", live.link.endpoint)
        yield "link.server_public_key", live.link.server_public_key, path_fault(live.link.server_public_key)
        yield "link.secret_key", live.link.secret_key, path_fault(live.link.secret_key)
    if live.stream is not None:
        yield from _endpoint("stream.endpoint", live.stream.endpoint)
        yield "stream.frames_every", live.stream.frames_every, number_fault(live.stream.frames_every, 0, 1e6, "a count")
    keeper = live.keeper
    yield "keeper.windows", keeper.windows, number_fault(keeper.windows, 20, 1000, "a number of windows")
    yield "keeper.min_interval_s", keeper.min_interval_s, number_fault(keeper.min_interval_s, 0, 86400, "a time")
    yield (
        "keeper.false_alarms_per_day", keeper.false_alarms_per_day,
        number_fault(keeper.false_alarms_per_day, 1e-6, 1000, "a rate"),
    )  # fmt: skip
    yield "keeper.max_step", keeper.max_step, number_fault(keeper.max_step, 0.01, 100, "a scaled step")


def is_local(endpoint: str) -> bool:
    """Whether an endpoint stays on this computer."""
    return endpoint.startswith(("ipc://", "inproc://", "tcp://127.", "tcp://localhost:", "tcp://[::1]:"))


def _endpoint(key: str, value: str) -> Iterator[Fault]:
    tcp = re.fullmatch(r"tcp://(?:[^\s/:*]+|\[[0-9A-Fa-f:.]+\]):([1-9]\d{0,4})", value)
    good = (tcp and int(tcp[1]) < 2**16) or re.fullmatch(r"ipc://\S{1,100}", value)
    yield key, value, "" if good else "must be like tcp://host:port or ipc://path"
