"""Parameters of equality constraints: how soft they are, and what they hold equal."""

from __future__ import annotations

from collections.abc import Iterator

import mujoco
import numpy as np
from numpy.typing import NDArray

from gaptrain.enumeration.entries import Element, Family, Item, elements
from gaptrain.enumeration.magnitudes import ModelMagnitudes
from gaptrain.enumeration.ranges import Range, either_way, ratio
from gaptrain.enumeration.solver import NO_EQUALITY, Solver, impedance, impedance_family, reference, reference_family

Array = NDArray[np.float64]

SOLREF, SOLIMP = (make("equality", NO_EQUALITY) for make in (reference_family, impedance_family))
POLY = Family(
    "equality of joints or tendons: coefficients of the polynomial",
    "0.1 rad or a tenth of the travel around the constant one, a fifth of the model's value around the others; 0 up to "
    "what moves the constrained joint by a tenth of its travel at the other's travel",
    NO_EQUALITY,
)
ANCHOR = Family(
    "connect and weld: anchors", "half the size of a typical body of the model around the model's value", NO_EQUALITY
)
TORQUE = Family(
    "weld: torque scale", "a third to three times the model's value; 0 up to the size of a body", NO_EQUALITY
)

_POLYNOMIAL = (int(mujoco.mjtEq.mjEQ_JOINT), int(mujoco.mjtEq.mjEQ_TENDON))
_CONNECT, _WELD = int(mujoco.mjtEq.mjEQ_CONNECT), int(mujoco.mjtEq.mjEQ_WELD)
XYZ = ("x", "y", "z")


def equalities(model: mujoco.MjModel, sizes: ModelMagnitudes) -> Iterator[Item]:
    """All parameters of equality constraints."""
    for element in elements(model, "equality"):
        if not model.eq_active0[element.number]:
            yield element.omitted("*", "is not active in the MJCF")
            continue
        kind = int(model.eq_type[element.number])
        solver = Solver(element, "", "eq_solref", "eq_solimp", "m or rad")
        yield from reference(SOLREF, solver, model.eq_solref[element.number])
        yield from impedance(SOLIMP, solver, model.eq_solimp[element.number])
        if kind in _POLYNOMIAL:
            yield from _polynomial(model, element, sizes)
        elif kind in (_CONNECT, _WELD):
            yield from _anchor(model, element, kind, sizes.length)


def _polynomial(model: mujoco.MjModel, element: Element, sizes: ModelMagnitudes) -> Iterator[Item]:
    """Coefficients a0 .. a4 of y = sum a_k x^k, or a0 alone where nothing else is named."""
    number = element.number
    travel = _travels(model, number, sizes)
    for order in range(5 if model.eq_obj2id[number] >= 0 else 1):
        value = float(model.eq_data[number, order])
        span = _coefficient(value, order, travel)
        yield element.item(POLY, f"polycoef_{order}", "SI", span, element.target("eq_data", order))


def _travels(model: mujoco.MjModel, number: int, sizes: ModelMagnitudes) -> tuple[float, float]:
    """Travel of the constrained joint or tendon and of the other one."""
    both = (int(model.eq_obj1id[number]), int(model.eq_obj2id[number]))
    if int(model.eq_type[number]) == int(mujoco.mjtEq.mjEQ_TENDON):
        one, two = (float(sizes.tendon.travel[i]) for i in both)
    else:
        one, two = (float(sizes.dof.travel[model.jnt_dofadr[i]]) for i in both)
    return one, two


def _coefficient(value: float, order: int, travel: tuple[float, float]) -> Range:
    reach = travel[0] / travel[1] ** order / 10
    return either_way(value, max(abs(value) / 5, reach) if order and value else reach)


def _anchor(model: mujoco.MjModel, element: Element, kind: int, length: float) -> Iterator[Item]:
    """Anchors, and the weight that a weld gives to angles."""
    number = element.number
    data = model.eq_data[number]
    if kind == _WELD:
        span = ratio(float(data[10]), 3.0, length)
        yield element.item(TORQUE, "torquescale", "m", span, element.target("eq_data", 10))
    if int(model.eq_objtype[number]) != int(mujoco.mjtObj.mjOBJ_BODY):
        yield element.omitted("anchor", "lies at its sites, whose places are geometry")
        return
    yield from _point(element, "anchor", data, 0, length)
    if kind == _WELD:
        yield from _pose(element, data, length)


def _pose(element: Element, data: Array, length: float) -> Iterator[Item]:
    """Position of a weld's pose; MuJoCo computes the pose anew in mj_setConst where the MJCF gives none."""
    if data[11]:
        yield element.omitted("relpose", "follows from the reference pose of the model")
        return
    yield from _point(element, "relpose", data, 3, length)
    yield element.omitted("relpose_quat", "is a quaternion, not a number")


def _point(element: Element, attribute: str, data: Array, first: int, length: float) -> Iterator[Item]:
    for k in range(3):
        span = either_way(float(data[first + k]), length / 2)
        yield element.item(ANCHOR, f"{attribute}_{XYZ[k]}", "m", span, element.target("eq_data", first + k))
