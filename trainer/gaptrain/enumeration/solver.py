"""Solver parameters of soft constraints, the same for joints, contacts, tendons and equalities: solref and solimp."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from gapd.model.parameters import Target
from gaptrain.enumeration.entries import Element, Family, Item
from gaptrain.enumeration.ranges import Range, between, ratio

Array = NDArray[np.float64]

# Flags of an MJCF that switch constraints off, all or some of them.
_ALL = int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
NO_CONTACT = _ALL | int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
NO_LIMIT = _ALL | int(mujoco.mjtDisableBit.mjDSBL_LIMIT)
NO_FRICTIONLOSS = _ALL | int(mujoco.mjtDisableBit.mjDSBL_FRICTIONLOSS)
NO_EQUALITY = _ALL | int(mujoco.mjtDisableBit.mjDSBL_EQUALITY)
# What MuJoCo clamps impedances to (mjMINIMP, mjMAXIMP).
LEAST, MOST = 0.0001, 0.9999


@dataclass(frozen=True)
class Solver:
    """One soft constraint of an element: how its parameters begin, and the two fields that hold them."""

    element: Element
    prefix: str
    solref: str
    solimp: str
    unit: str  # of the constraint's violation
    rows: int = 1  # of each field that belong to the element

    def targets(self, field: str, index: int, *factor: float) -> tuple[Target, ...]:
        """The same number in every row."""
        inner = 2 if field == self.solref else 5
        return tuple(self.element.target(field, row * inner + index, *factor) for row in range(self.rows))


def reference_family(what: str, off: int) -> Family:
    """Family of solref parameters."""
    return Family(
        f"{what}: solref",
        "time constants a quarter to four times the model's, damping ratios a third to three times; in MuJoCo's direct "
        "format stiffness and damping a tenth to ten times, a damping of 0 up to the critical one",
        off,
    )


def impedance_family(what: str, off: int) -> Family:
    """Family of solimp parameters."""
    return Family(
        f"{what}: solimp",
        "impedances from half the model's value to 0.9999, widths a tenth to ten times, midpoint 0.05 to 0.95, power 1 "
        "to 6",
        off,
    )


def reference(family: Family, solver: Solver, value: Array, *, friction: bool = False) -> Iterator[Item]:
    """Parameters of solref (2,). Friction has no position to return to: only its first or its damping counts."""
    time_or_stiffness, ratio_or_damping = (float(v) for v in value)
    element, field = solver.element, solver.solref
    if time_or_stiffness > 0 and ratio_or_damping > 0:
        span = ratio(time_or_stiffness, 4.0, 0.0)
        yield element.item(family, f"{solver.prefix}timeconst", "s", span, *solver.targets(field, 0))
        if not friction:
            span = ratio(ratio_or_damping, 3.0, 0.0)
            yield element.item(family, f"{solver.prefix}dampratio", "1", span, *solver.targets(field, 1))
    elif time_or_stiffness <= 0 and ratio_or_damping <= 0 and (time_or_stiffness or ratio_or_damping):
        stiffness = -time_or_stiffness
        if not friction:
            span = ratio(stiffness, 10.0, 0.0)
            yield element.item(family, f"{solver.prefix}stiffness", "1/s²", span, *solver.targets(field, 0, -1.0))
        span = ratio(-ratio_or_damping, 10.0, 2 * np.sqrt(stiffness))
        yield element.item(family, f"{solver.prefix}damping", "1/s", span, *solver.targets(field, 1, -1.0))
    elif time_or_stiffness or ratio_or_damping:
        yield element.omitted(f"{solver.prefix}solref", "its numbers have different signs, which MuJoCo replaces")


def impedance(family: Family, solver: Solver, value: Array, *, friction: bool = False) -> Iterator[Item]:
    """Parameters of solimp (5,). Friction has no violation: the shape of the impedance over it has no effect."""
    spans = (
        ("start", "1", _impedance(value[0])),
        ("end", "1", _impedance(value[1])),
        ("width", solver.unit, ratio(float(value[2]), 10.0, 0.01)),
        ("midpoint", "1", between(float(value[3]), 0.05, 0.95)),
        ("power", "1", between(float(value[4]), 1.0, 6.0)),
    )
    for index, (attribute, unit, span) in enumerate(spans[:2] if friction else spans):
        name = f"{solver.prefix}impedance_{attribute}"
        yield solver.element.item(family, name, unit, span, *solver.targets(solver.solimp, index))


def _impedance(value: float) -> Range:
    return between(float(value), max(float(value) / 2, LEAST), MOST)
