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


def all_robots(database: sqlite3.Connection) -> tuple[Enrolled, ...]:
    """Every robot that was ever enrolled, by name."""
    return tuple(_enrolled(row) for row in database.execute(f"{_ROBOT} ORDER BY name"))


def the_robot(database: sqlite3.Connection, name: str) -> Enrolled:
    """The robot of that name; HostError if there is none."""
    row = database.execute(f"{_ROBOT} WHERE name = ?", (name,)).fetchone()
    if row is None:
        known = [other for (other,) in database.execute("SELECT name FROM robots")]
        raise HostError(f"robot {name!r} is not enrolled{nearest(name, known)}; see `gaptrain enrol --list`")
    return _enrolled(row)


def _enrolled(row: tuple[Any, ...]) -> Enrolled:
    name, key, robot_type, config, fingerprint, context, enrolled, revoked = row
    return Enrolled(name, key, robot_type, Path(config), fingerprint, _CONTEXT.decode(context), enrolled, revoked)


class Definitions:
    """Parameter sets by fingerprint, each decoded once."""

    def __init__(self, database: sqlite3.Connection) -> None:
        """Read from this database."""
        self._database = database
        self._known: dict[str, ParameterSet] = {}

    def space(self, fingerprint: str) -> ParameterSet:
        """The parameters with that fingerprint."""
        if fingerprint not in self._known:
            row = self._database.execute("SELECT parameters FROM definitions WHERE fingerprint = ?", (fingerprint,))
            self._known[fingerprint] = ParameterSet(_PARAMETERS.decode(row.fetchone()[0]))
        return self._known[fingerprint]
