"""Enrol robots: whose key may speak, and what its scaled values mean. A running host notices within seconds."""

from __future__ import annotations

import re
import sqlite3
import time
from pathlib import Path

import msgspec
import numpy as np

from gapd.errors import ConfigError, printable
from gapd.gap_model.bundle import open_active
from gapd.keys import read_public
from gapd.model.parameters import ParameterSet
from gapd.model.robot import Robot
from gaptrain.host import jobs
from gaptrain.host.database import open_existing, open_state, read_state, transaction, using
from gaptrain.host.registry import Definitions, Enrolled, all_robots, the_robot
from gaptrain.host.rows import DamagedError
from gaptrain.host.values import Values
from gaptrain.host.versions import Origin, Version, add_version, history, newest, when

# Names become parts of file names and words in log lines.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# z and z_sd of all parameters must fit into one message.
MOST_PARAMETERS = 3000


def enrol(state: Path, name: str, config: Path, key_file: Path) -> Enrolled:
    """Enrol a robot with the public key in a .pub file, or enrol it again with another key or other parameters.

    Values that the host has already are carried over to changed parameters by their names.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"robot {name!r}: use 1 to 63 letters, digits, '.', '_' and '-', the first a letter or digit")
    key = read_public(key_file).decode()
    robot = open_active(config)
    space = robot.parameters
    if len(space) > MOST_PARAMETERS:
        raise ConfigError(f"{config}: {len(space)} free parameters, a message holds {MOST_PARAMETERS}; freeze some")
    with using(open_state, state) as database, transaction(database):
        _require_own_key(database, name, key)
        _define(database, space)
        _write(database, name, key, robot, config)
        _carry_over(database, name, space)
        return the_robot(database, name)


def revoke(state: Path, name: str) -> None:
    """Refuse the robot's key from now on; its history stays."""
    with using(open_existing, state) as database:
        the_robot(database, name)
        sql = "UPDATE robots SET revoked = ? WHERE name = ? AND revoked IS NULL"
        database.execute(sql, (time.time(), name))


def listing(state: Path) -> str:
    """A line for each robot: name, type, current version, key, state; or what of it is damaged."""
    with using(read_state, state) as database:
        robots = all_robots(database)
        lines = [_line(database, robot) for robot in robots.readable]
        lines += [_damaged_line(error) for error in robots.damaged.values()]
    return "\n".join(lines) or "no robot is enrolled; run `gaptrain enrol NAME --config robot.toml --key robot.pub`"


def versions_text(state: Path, name: str) -> str:
    """A line for each version of a robot's values, oldest first: number, when, where from, why."""
    with using(read_state, state) as database:
        the_robot(database, name)
        lines = [_version_line(version) for version in history(database, name)]
    return "\n".join(lines) or f"{name}: nominal values, nothing has been corrected yet"


def _version_line(version: Version) -> str:
    return f"{version.number:4}  {when(version.received)}  {version.source:20}  {printable(version.reason)}"


def _line(database: sqlite3.Connection, robot: Enrolled) -> str:
    try:
        current = newest(database, robot.name)
    except DamagedError as error:
        return _damaged_line(error)
    values = f"version {current.number} ({current.source})" if current else "nominal values"
    state = "enrolled" if robot.revoked is None else "revoked"
    return f"{robot.name:20} {robot.robot_type:16} {state:9} {values:32} key {robot.public_key[:8]}... {robot.config}"


def _damaged_line(error: DamagedError) -> str:
    return f"{printable(error.robot):20} damaged: {error}"


def _require_own_key(database: sqlite3.Connection, name: str, key: str) -> None:
    row = database.execute("SELECT name FROM robots WHERE public_key = ? AND name != ?", (key, name)).fetchone()
    if row is not None:
        raise ConfigError(f"robot {name}: this key is of robot {row[0]!r}; make another one for each robot")


def _define(database: sqlite3.Connection, space: ParameterSet) -> None:
    """Store the parameters; of the same scaled coordinates the latest nominals and targets count."""
    database.execute(
        "INSERT INTO definitions VALUES (?, ?) ON CONFLICT DO UPDATE SET parameters = excluded.parameters",
        (space.fingerprint, msgspec.json.encode(space.free + space.frozen)),
    )


def _write(database: sqlite3.Connection, name: str, key: str, robot: Robot, config: Path) -> None:
    context = dict(zip(robot.config.context_names, robot.context_nominal.tolist(), strict=True))
    database.execute(
        "INSERT INTO robots VALUES (?, ?, ?, ?, ?, ?, ?, NULL) ON CONFLICT (name) DO UPDATE SET "
        "public_key = excluded.public_key, robot_type = excluded.robot_type, config = excluded.config, "
        "fingerprint = excluded.fingerprint, context = excluded.context, enrolled = excluded.enrolled, revoked = NULL",
        (
            name, key, robot.config.robot, str(config.resolve()), robot.parameters.fingerprint,
            msgspec.json.encode(context), time.time(),
        ),
    )  # fmt: skip


def _carry_over(database: sqlite3.Connection, name: str, space: ParameterSet) -> None:
    """Where the scaled coordinates changed, the current values become a new version in the new ones."""
    current, wall_s = newest(database, name), time.time()
    if current is None or current.fingerprint == space.fingerprint:
        return
    reason = "the parameters have changed"
    jobs.withdraw(database, name, reason, wall_s)
    values = _converted(current, Definitions(database).space(name, current.fingerprint), space)
    add_version(database, name, current.number + 1, space.fingerprint, values, Origin("enrolment", reason), wall_s)


def _converted(current: Version, old: ParameterSet, new: ParameterSet) -> Values:
    """Values by name in other coordinates; new parameters at nominal, as uncertain as a fourth of their range."""
    physical = old.to_physical(current.values.z)
    physical_sd = old.physical_sd(current.values.z, current.values.z_sd)
    value, spread = new.nominal.copy(), np.full(len(new), np.nan)
    for p, name in enumerate(new.names):
        if name in old.names:
            q = old.names.index(name)
            value[p], spread[p] = np.clip(physical[q], new.min[p], new.max[p]), physical_sd[q]
    z = np.clip(new.to_scaled(value), new.z_min, new.z_max)
    z_sd = spread / new.physical_sd(z, np.ones(len(new)))
    return Values.independent(z, np.where(np.isfinite(z_sd), z_sd, (new.z_max - new.z_min) / 4))
