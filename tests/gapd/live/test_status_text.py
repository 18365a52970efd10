"""The status for people: every line says one thing, whatever the daemon tells."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from gapd.live.status import Estimate, Level, LinkState, Status
from gapd.live.status_text import status_text

STATUS = Status(
    Level.WARN, "watching", "tiny", ("the link is down; start it",), {"frames": 12, "windows_ok": 3},
    LinkState("tcp://host:1", True, 0, 0.0, 4),
    (Estimate("joint/j/damping", "N·m·s/rad", 0.1234567, 0.00123, "estimated"),
     Estimate("joint/j/armature", "kg·m²", 0.01, math.nan, "unestimated")),
    1.234567, 60.0,
)  # fmt: skip


def lines(**other: Any) -> list[str]:
    told = msgspec.json.decode(msgspec.json.encode(msgspec.structs.replace(STATUS, **other)))
    return status_text(told).splitlines()


def test_everything_is_there() -> None:
    assert lines() == [
        "level     WARN",
        "robot     tiny",
        "state     watching",
        "gap       1.23 commissioned floors",
        "host      tcp://host:1 up, version 4",
        "problem   the link is down; start it",
        "counters  frames 12, windows_ok 3",
        "",
        "parameter          value      sd       unit       status",
        "----------------  ------  ------  ---------  -----------",
        "joint/j/damping   0.1235  0.0012  N·m·s/rad    estimated",
        "joint/j/armature    0.01       -      kg·m²  unestimated",
    ]


def test_what_is_not_there_is_left_out() -> None:
    found = lines(link=None, gap_floors=None, problems=(), estimates=())
    assert [line.split()[0] for line in found if line.split()] == [
        "level", "robot", "state", "counters", "parameter", "---------",
    ]  # fmt: skip


def test_a_host_that_is_down() -> None:
    link = LinkState("tcp://host:1", False, 3, 61.4, 4, "tcp://host:1: nothing listens there; start it")
    assert "host      tcp://host:1 down, version 4, 3 waiting for 61 s" in lines(link=link)
    assert "host      tcp://host:1 down, version 0" in lines(link=LinkState("tcp://host:1"))


def test_what_steers_a_terminal_is_escaped() -> None:
    assert "problem   \\x1b[2J gone" in lines(problems=("\x1b[2J gone",))
