"""Robots that are enrolled, and the definition of their parameters. Reading only."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gapd.errors import nearest
from gapd.model.parameters import Parameter, ParameterSet
from gaptrain.host.database import HostError

_PARAMETERS = msgspec.json.Decoder(tuple[Parameter, ...])
_CONTEXT = msgspec.json.Decoder(dict[str, float])


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


def all_robots(database: sqlite3.Connection) -> tuple[Enrolled, ...]:
    """Every robot that was ever enrolled, by name."""
    rows = database.execute(
        "SELECT name, public_key, robot_type, config, fingerprint, context, enrolled, revoked FROM robots ORDER BY name"
    )
    return tuple(_enrolled(row) for row in rows)


def the_robot(database: sqlite3.Connection, name: str) -> Enrolled:
    """The robot of that name; HostError if there is none."""
    known = {robot.name: robot for robot in all_robots(database)}
    if name not in known:
        raise HostError(f"robot {name!r} is not enrolled{nearest(name, known)}; see `gaptrain enrol --list`")
    return known[name]


def _enrolled(row: tuple[Any, ...]) -> Enrolled:
    name, key, robot_type, config, identity, context, enrolled, revoked = row
    return Enrolled(name, key, robot_type, Path(config), identity, _CONTEXT.decode(context), enrolled, revoked)


class Definitions:
    """Parameter sets by fingerprint, each decoded once."""

    def __init__(self, database: sqlite3.Connection) -> None:
        """Read from this database."""
        self._database = database
        self._known: dict[str, ParameterSet] = {}

    def space(self, identity: str) -> ParameterSet:
        """The parameters with that fingerprint."""
        if identity not in self._known:
            row = self._database.execute("SELECT parameters FROM definitions WHERE fingerprint = ?", (identity,))
            self._known[identity] = ParameterSet(_PARAMETERS.decode(row.fetchone()[0]))
        return self._known[identity]
