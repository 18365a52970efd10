"""Robots that are enrolled, and the definition of their parameters. Reading only."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gapd.errors import nearest
from gapd.model.parameters import Parameter, ParameterSet
from gaptrain.host.database import HostError
from gaptrain.host.rows import ENROL, DamagedError, decode_row, of_robot

_PARAMETERS = msgspec.json.Decoder(tuple[Parameter, ...])
_CONTEXT = msgspec.json.Decoder(dict[str, float])
_ROBOT = "SELECT name, public_key, robot_type, config, fingerprint, context, enrolled, revoked FROM robots"


@dataclass(frozen=True)
class Enrolled:
    """One robot that the host knows. Wall times in seconds."""

    name: str
    public_key: str  # Z85
    robot_type: str
    config: Path  # robot.toml
    fingerprint: str  # of the parameters
    context: Mapping[str, float]  # nominal by name, in order
    enrolled: float
    revoked: float | None


class _Row(msgspec.Struct):
    name: str
    public_key: str
    robot_type: str
    config: str
    fingerprint: str
    context: bytes
    enrolled: float
    revoked: float | None


@dataclass(frozen=True)
class Robots:
    """Every robot that was ever enrolled, by name; the damage of those whose row cannot be read, by public key."""

    readable: tuple[Enrolled, ...]
    damaged: Mapping[str, DamagedError]


def all_robots(database: sqlite3.Connection) -> Robots:
    """Read all robots; one whose row is damaged does not stand in the way of the others."""
    readable: list[Enrolled] = []
    damaged: dict[str, DamagedError] = {}
    for row in database.execute(f"{_ROBOT} ORDER BY name"):
        try:
            readable.append(_enrolled(row))
        except DamagedError as error:
            damaged[row[1]] = error
    return Robots(tuple(readable), damaged)


def the_robot(database: sqlite3.Connection, name: str) -> Enrolled:
    """The robot of that name; HostError if there is none, or its row is damaged."""
    row = database.execute(f"{_ROBOT} WHERE name = ?", (name,)).fetchone()
    if row is None:
        known = [other for (other,) in database.execute("SELECT name FROM robots") if isinstance(other, str)]
        raise HostError(f"robot {name!r} is not enrolled{nearest(name, known)}; see `gaptrain enrol --list`")
    return _enrolled(row)


def _enrolled(row: Sequence[object]) -> Enrolled:
    r = decode_row(_Row, row, row[0], "robots", ENROL)
    with of_robot(r.name, "robots", ENROL):
        context = _CONTEXT.decode(r.context)
        if "\0" in r.config:
            raise ValueError("config holds a null character")
    path = Path(r.config)
    return Enrolled(r.name, r.public_key, r.robot_type, path, r.fingerprint, context, r.enrolled, r.revoked)


class Definitions:
    """Parameter sets by fingerprint, each decoded once."""

    def __init__(self, database: sqlite3.Connection) -> None:
        """Read from this database."""
        self._database = database
        self._known: dict[str, ParameterSet] = {}

    def space(self, robot: str, fingerprint: str) -> ParameterSet:
        """The parameters with that fingerprint, which this robot has; HostError if they are damaged."""
        if fingerprint not in self._known:
            sql = "SELECT parameters FROM definitions WHERE fingerprint = ?"
            row = self._database.execute(sql, (fingerprint,)).fetchone()
            with of_robot(robot, "definitions", ENROL):
                if row is None:
                    raise ValueError(f"nothing is there for {fingerprint}")
                self._known[fingerprint] = ParameterSet(_PARAMETERS.decode(row[0]))
        return self._known[fingerprint]
