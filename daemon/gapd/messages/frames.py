"""What a robot sends in: one frame per instant, with the nouns of sensor_msgs/JointState."""

from __future__ import annotations

import msgspec


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """State of the robot at `timestamp`, seconds of its own clock, in SI units and radians.

    position, velocity and effort are parallel to name, or empty where they are not measured; an absent single value
    is nan. command is in the order of the model's actuators and acts from this instant to the next frame. sensors
    holds further channels by name, context known inputs by name. Without a sequence loss cannot be told.
    """

    timestamp: float
    name: tuple[str, ...] = ()
    position: tuple[float, ...] = ()
    velocity: tuple[float, ...] = ()
    effort: tuple[float, ...] = ()
    command: tuple[float, ...] = ()
    sensors: dict[str, float] = {}
    context: dict[str, float] = {}
    sequence: int | None = None
    episode_return: float | None = None


ENCODER = msgspec.msgpack.Encoder()
DECODER = msgspec.msgpack.Decoder(Frame)
