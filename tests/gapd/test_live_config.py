"""The tables of a running daemon: what cannot work is refused before anything starts."""

from __future__ import annotations

import pytest

from gapd.live_config import KeeperSettings, Link, Live, Stream, ZmqFrames, is_local, live_faults


def found(live: Live) -> dict[str, str]:
    return {key: fault for key, _, fault in live_faults(live) if fault}


@pytest.mark.parametrize(
    ("endpoint", "fine"),
    [
        ("tcp://host.local:5570", True),
        ("tcp://10.0.0.1:1", True),
        ("tcp://[fe80::1]:5570", True),
        ("ipc:///run/gapd/link", True),
        ("tcp://host", False),
        ("tcp://*", False),
        ("tcp://host:70000", False),
        ("host:5570", False),
        ("udp://host:5570", False),
        ("tcp://ho st:5570", False),
        ("", False),
    ],
)
def test_endpoints(endpoint: str, fine: bool) -> None:
    link = Link("arm7", endpoint, "host.pub", "robot.key")
    live = Live(ZmqFrames(endpoint, allow_plaintext=True), link)
    assert set(found(live)) == (set() if fine else {"frames.endpoint", "link.endpoint"})


def test_a_stream_in_plain_text_stays_on_this_computer() -> None:
    assert found(Live(stream=Stream("tcp://127.0.0.1:9872"))) == {}
    assert "is on the network" in found(Live(stream=Stream("tcp://10.0.0.1:9872")))["stream.endpoint"]


def test_paths_and_names_of_a_link_are_checked() -> None:
    assert "link.server_public_key" in found(Live(link=Link("arm7", "tcp://host:1", "", "robot.key")))
    assert "link.secret_key" in found(Live(link=Link("arm7", "tcp://host:1", "host.pub", "a\nb")))
    assert "link.name" in found(Live(link=Link("", "tcp://host:1", "host.pub", "robot.key")))


@pytest.mark.parametrize(
    "keeper",
    [
        KeeperSettings(windows=3),
        KeeperSettings(min_interval_s=float("nan")),
        KeeperSettings(false_alarms_per_day=0),
        KeeperSettings(max_step=-1),
    ],
)
def test_settings_have_limits(keeper: KeeperSettings) -> None:
    assert len(found(Live(keeper=keeper))) == 1


def test_what_stays_on_this_computer() -> None:
    assert is_local("tcp://127.0.0.1:1")
    assert is_local("ipc:///tmp/x")
    assert not is_local("tcp://127x.example.org:1")
    assert not is_local("tcp://10.0.0.1:1")
