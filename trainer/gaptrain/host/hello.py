"""Whether a robot that says hello can be served. Pure."""

from __future__ import annotations

from gapd.messages.link import PROTOCOL, Hello, Refused
from gaptrain.host.message_faults import LONGEST_TEXT
from gaptrain.host.registry import Enrolled

LONGEST_OUTBOX = 100


def unfit(robot: Enrolled, hello: Hello) -> Refused | None:
    """Why the robot with this key cannot be served, if so."""
    if hello.protocol != PROTOCOL:
        return Refused(
            "protocol", f"robot speaks protocol {hello.protocol}, host {PROTOCOL}; update gapd on the older side"
        )
    if hello.robot != robot.name:
        return Refused(
            "unknown_robot",
            f"this key is of robot {robot.name!r}, not of {hello.robot[:100]!r}; correct the robot's name or its key",
        )
    if hello.parameters != robot.fingerprint:
        return Refused("wrong_parameters", enrol_again(robot))
    if not 0 < len(hello.outbox) <= LONGEST_OUTBOX or len(hello.software) > LONGEST_TEXT:
        return Refused("protocol", f"the outbox has no name of 1 to {LONGEST_OUTBOX} characters; update gapd")
    return None


def enrol_again(robot: Enrolled) -> str:
    """What to do where the parameters of both ends differ."""
    return (
        f"names, scales or bounds of the parameters differ; copy parameters.toml to both ends and run "
        f"`gaptrain enrol {robot.name}` again"
    )
