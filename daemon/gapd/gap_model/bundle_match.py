"""Whether a bundle was made for this robot: the first thing that is otherwise, with both values. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import mujoco
import numpy as np
from numpy.typing import NDArray

from gapd.errors import ConfigError
from gapd.gap_model.manifest import (
    ENGINE,
    MODEL,
    Manifest,
    ParameterFacts,
    Range,
    channel_facts,
    parameter_facts,
    range_names,
    timing_facts,
)
from gapd.model.mjcf import compile_text
from gapd.model.model_fields import JOINT_COORDINATES, object_of, physics
from gapd.model.robot import Robot

# Difference of two models as a share of the largest value in the row: an MJCF that was written out anew is rounded.
TOLERANCE = 1e-5
USE_ITS_OWN = "use the configuration it was made for, or fit it again"
REBUILD = "export it again with `gaptrain export`"


@dataclass(frozen=True)
class Mismatch:
    """What is found in the bundle and in the robot, and what to do."""

    found: str
    remedy: str = USE_ITS_OWN


def manifest_mismatch(manifest: Manifest, robot: Robot) -> Mismatch | None:
    """First difference of another robot, engine, set of parameters or channels, or window; None if there is none."""
    if manifest.robot != robot.config.robot:
        found = f"robot = {manifest.robot!r}, robot.toml says {robot.config.robot!r}"
        return Mismatch(found, "install the bundle of this robot type")
    major = mujoco.__version__.split(".", maxsplit=1)[0]
    if manifest.engine != ENGINE or manifest.engine_version.split(".", maxsplit=1)[0] != major:
        found = f"engine = {manifest.engine} {manifest.engine_version}, here runs {ENGINE} {mujoco.__version__}"
        return Mismatch(found, "parameters do not carry over between engines: fit it again with this one")
    parameters = robot.parameters
    for kind, theirs, ours in (
        ("parameter", _movable(manifest.parameters), _movable(parameter_facts(parameters.free))),
        ("frozen parameter", manifest.frozen, parameter_facts(parameters.frozen)),
        ("channel", manifest.channels, channel_facts(robot)),
        ("context", manifest.context, robot.config.context_names),
        ("timing", (manifest.timing,), (timing_facts(robot),)),
        ("input", tuple(r.name for r in manifest.ranges), range_names(robot)),
    ):
        difference = _first_difference(theirs, ours)
        if difference:
            return Mismatch(f"{kind} {difference}")
    fault = next(_number_faults(manifest, robot), "")
    return Mismatch(fault, REBUILD) if fault else None


def _movable(facts: tuple[ParameterFacts, ...]) -> tuple[ParameterFacts, ...]:
    """Facts without nominals: those may move with every recalibration, for the network never sees them."""
    return tuple(msgspec.structs.replace(p, nominal=0.0) for p in facts)


def _first_difference(theirs: Sequence[Any], ours: Sequence[Any]) -> str:
    if len(theirs) != len(ours):
        return f"count = {len(theirs)}, the robot has {len(ours)}"
    for a, b in zip(theirs, ours, strict=True):
        if isinstance(a, str) and a != b:
            return f"{a!r}, the robot has {b!r}"
        for name in getattr(a, "__struct_fields__", ()):
            if getattr(a, name) != getattr(b, name):
                whose = f"{a.name} " if hasattr(a, "name") and name != "name" else ""
                return f"{whose}{name} = {_shown(getattr(a, name))}, the robot has {_shown(getattr(b, name))}"
    return ""


def _shown(value: object) -> str:
    return msgspec.json.encode(value).decode() if isinstance(value, tuple) else repr(value)


def _number_faults(manifest: Manifest, robot: Robot) -> Iterator[str]:
    """Numbers of the manifest that no export writes."""
    wanted = (len(robot.parameters), len(robot.layout.channels))
    rows = [len(row) for row in manifest.graph.probability]
    if rows != [wanted[1]] * wanted[0]:
        yield f"graph.probability has rows of {rows}, the robot has {wanted[0]} parameters and {wanted[1]} channels"
    elif not all(0 <= p <= 1 for row in manifest.graph.probability for p in row):
        yield "graph.probability is not within 0 .. 1"
    for known in manifest.ranges:
        if not _is_range(known):
            yield f"range of {known.name} is {known.min} .. {known.max}"


def _is_range(known: Range) -> bool:
    return bool(-np.inf < known.min <= known.max < np.inf)


def model_mismatch(raw: bytes, robot: Robot) -> Mismatch | None:
    """First difference of the bundle's MJCF from the robot's, apart from what parameters write; None if none."""
    try:
        theirs = compile_text(MODEL, raw.decode("utf-8"))
    except (ConfigError, UnicodeDecodeError) as error:
        return Mismatch(f"{MODEL} cannot be used ({error})", REBUILD)
    written = {cells.field: cells.flat for cells in robot.binding.cells}
    difference = first_difference(robot.model, theirs, written)
    return Mismatch(difference) if difference else None


def first_difference(ours: mujoco.MjModel, theirs: mujoco.MjModel, written: dict[str, NDArray[np.intp]]) -> str:
    """First field in which two models differ, in words; cells that are `written` (flat indices by field) may."""
    for count in ("nbody", "njnt", "nactuator", "nsensor", "ngeom", "nsite", "ntendon", "neq"):
        a, b = getattr(ours, count), getattr(theirs, count)
        if a != b:
            return f"the model has {count} = {a}, the bundle was made for {b}"
    for (field, a), (_, b) in zip(physics(ours), physics(theirs), strict=True):
        if a.shape != b.shape:
            return f"{field} has shape {list(a.shape)}, the bundle was made for {list(b.shape)}"
        unlike = _unlike(a, b)
        unlike[written.get(field, np.empty(0, np.intp))] = False
        if unlike.any():
            cell = int(np.argmax(unlike))
            pair = f"{a.reshape(-1)[cell]:.6g}, the bundle was made for {b.reshape(-1)[cell]:.6g}"
            return f"{_named(ours, field, a, cell)} is {pair}"
    return ""


def _unlike(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    """Cells (flat) in which two arrays of one shape differ."""
    if a.dtype.kind != "f" or not a.size:
        return np.asarray(a != b).reshape(-1)
    rows = a.shape[0] if a.ndim > 1 else a.size
    a, b = a.reshape(rows, -1), b.reshape(rows, -1)
    largest = np.maximum(np.abs(a), np.abs(b)).max(axis=1, keepdims=True)
    return np.asarray(np.abs(a - b) > TOLERANCE * largest).reshape(-1)


def _named(model: mujoco.MjModel, field: str, array: NDArray[Any], cell: int) -> str:
    """The field with index and element, as in "body_mass of 'arm'"."""
    inner = int(np.prod(array.shape[1:])) if array.ndim else 1
    kind = None if field.startswith("opt.") else object_of(field)
    if kind is None:
        return field if array.size == 1 else f"{field}[{cell}]"
    row = cell // inner
    if field.startswith("dof_") or field in JOINT_COORDINATES:
        row = int(model.dof_jntid[row])
    name = mujoco.mj_id2name(model, kind, row) or row
    return f"{field}{f'[{cell % inner}]' if inner > 1 else ''} of {name!r}"
