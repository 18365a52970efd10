"""Parameters of joints: what brakes, drives back and limits them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import mujoco

from gapd.model.model_fields import rows_of
from gapd.model.parameters import Target
from gaptrain.enumeration.entries import Element, Family, Item, elements
from gaptrain.enumeration.magnitudes import Magnitudes
from gaptrain.enumeration.ranges import Range, between, either_sign, either_way, ratio
from gaptrain.enumeration.solver import (
    NO_FRICTIONLOSS,
    NO_LIMIT,
    Solver,
    impedance,
    impedance_family,
    reference,
    reference_family,
)
from gaptrain.enumeration.units import ANGULAR, LINEAR, MIXED, Units

NO_DAMPER = int(mujoco.mjtDisableBit.mjDSBL_DAMPER)
NO_SPRING = int(mujoco.mjtDisableBit.mjDSBL_SPRING)
NO_ACTUATION = int(mujoco.mjtDisableBit.mjDSBL_ACTUATION)
DAMPING = Family("joint damping", "a tenth to ten times the model's value; 0 up to T / v", NO_DAMPER)
DAMPING_POLY = Family(
    "joint damping, terms of higher order",
    "a tenth to ten times the model's value; 0 up to what makes a third of T at v",
    NO_DAMPER,
)
FRICTION = Family("joint friction loss", "a tenth to ten times the model's value; 0 up to 0.3 T", NO_FRICTIONLOSS)
ARMATURE = Family("joint armature", "a fifth to five times the model's value; 0 up to I")
STIFFNESS = Family("joint stiffness", "a fifth to five times the model's value; 0 up to T / x", NO_SPRING)
STIFFNESS_POLY = Family(
    "joint stiffness, terms of higher order",
    "a fifth to five times the model's value; 0 up to what makes a tenth of T at x, the square one of either sign",
    NO_SPRING,
)
SPRING = Family("joint spring reference", "0.5 rad, or half the travel of a slide, around the model's value", NO_SPRING)
OFFSET = Family("joint offset (reading of the encoder in the reference pose)", "0.15 rad or 0.15 of the travel around")
YIELD = Family("joint spring yield", "a third to three times the model's value", NO_SPRING)
LIMIT = Family("joint limits", "a tenth of the range around the model's value", NO_LIMIT)
FORCE = Family("joint limits of actuator force", "half to twice the model's value", NO_ACTUATION)
LIMIT_SOLREF = reference_family("joint limit", NO_LIMIT)
LIMIT_SOLIMP = impedance_family("joint limit", NO_LIMIT)
FRICTION_SOLREF = reference_family("joint friction loss", NO_FRICTIONLOSS)
FRICTION_SOLIMP = impedance_family("joint friction loss", NO_FRICTIONLOSS)

_FREE, _BALL, _SLIDE = (int(getattr(mujoco.mjtJoint, f"mjJNT_{n}")) for n in ("FREE", "BALL", "SLIDE"))


@dataclass(frozen=True)
class _Joint:
    """A joint with its coordinates (dofs) and typical sizes."""

    element: Element
    first: int
    dofs: int
    size: Magnitudes  # (1,)
    units: Units

    def every(self, field: str, inner: int = 1, index: int = 0) -> tuple[Target, ...]:
        """The cell of each of its coordinates: an MJCF has one number for all."""
        return tuple(self.element.target(field, k * inner + index) for k in range(self.dofs))

    def scale(self, motion: float, order: int) -> float:
        """Coefficient of a force that grows with a power of a motion: T over the motion to the order."""
        return float(self.size.force[0]) / motion**order


def joints(model: mujoco.MjModel, size: Magnitudes) -> Iterator[Item]:
    """All parameters of joints; `size` (nv,)."""
    for element in elements(model, "joint"):
        joint = _joint(model, element, size)
        yield from _braked(model, joint)
        yield from _sprung(model, joint)
        yield from _limited(model, joint)


def _joint(model: mujoco.MjModel, element: Element, size: Magnitudes) -> _Joint:
    kind = int(model.jnt_type[element.number])
    first, dofs = rows_of(model, "dof_damping", element.number)
    units = {_FREE: MIXED, _SLIDE: LINEAR}.get(kind, ANGULAR)
    return _Joint(element, first, dofs, size.at(slice(first, first + dofs)), units)


def _braked(model: mujoco.MjModel, joint: _Joint) -> Iterator[Item]:
    """Damping, friction, armature."""
    element, dof, speed, units = joint.element, joint.first, float(joint.size.speed[0]), joint.units
    span = ratio(float(model.dof_damping[dof]), 10.0, joint.scale(speed, 1))
    yield element.item(DAMPING, "damping", units.damping(), span, *joint.every("dof_damping"))
    for order, word in ((2, "quadratic"), (3, "cubic")):
        span = ratio(float(model.dof_dampingpoly[dof, order - 2]), 10.0, joint.scale(speed, order) / 3)
        targets = joint.every("dof_dampingpoly", 2, order - 2)
        yield element.item(DAMPING_POLY, f"damping_{word}", units.damping(order), span, *targets)
    friction = float(model.dof_frictionloss[dof])
    span = ratio(friction, 10.0, 0.3 * float(joint.size.force[0]))
    yield element.item(FRICTION, "frictionloss", units.force, span, *joint.every("dof_frictionloss"))
    if friction:
        solver = Solver(element, "friction_", "dof_solref", "dof_solimp", units.position, joint.dofs)
        yield from reference(FRICTION_SOLREF, solver, model.dof_solref[dof], friction=True)
        yield from impedance(FRICTION_SOLIMP, solver, model.dof_solimp[dof], friction=True)
    span = ratio(float(model.dof_armature[dof]), 5.0, float(joint.size.inertia[0]))
    yield element.item(ARMATURE, "armature", units.inertia, span, *joint.every("dof_armature"))


def _sprung(model: mujoco.MjModel, joint: _Joint) -> Iterator[Item]:
    """Stiffness, where the spring is at rest, and the offset of the joint."""
    element, number, travel = joint.element, joint.element.number, float(joint.size.travel[0])
    units = joint.units
    span = ratio(float(model.jnt_stiffness[number]), 5.0, joint.scale(travel, 1))
    yield element.item(STIFFNESS, "stiffness", units.stiffness(), span, element.target("jnt_stiffness"))
    for order, word, make in ((2, "quadratic", either_sign), (3, "cubic", ratio)):
        span = make(float(model.jnt_stiffnesspoly[number, order - 2]), 5.0, joint.scale(travel, order) / 10)
        target = element.target("jnt_stiffnesspoly", order - 2)
        yield element.item(STIFFNESS_POLY, f"stiffness_{word}", units.stiffness(order), span, target)
    if model.jnt_plasticadr[number] >= 0:
        span = ratio(float(model.jnt_springyield[number]), 3.0, travel)
        yield element.item(YIELD, "springyield", units.position, span, element.target("jnt_springyield"))
    if joint.dofs > 1:
        yield element.omitted("springref", "is a quaternion in free and ball joints, not a number")
        return
    # Both move the joint alone: rest lengths of tendons that the compiler took from the reference pose stay.
    at = int(model.jnt_qposadr[number])
    span = either_way(float(model.qpos_spring[at]), travel / 2)
    yield element.item(SPRING, "springref", units.position, span, element.target("qpos_spring"))
    span = either_way(float(model.qpos0[at]), 0.15 * travel)
    yield element.item(OFFSET, "offset", units.position, span, element.target("qpos0"))


def _limited(model: mujoco.MjModel, joint: _Joint) -> Iterator[Item]:
    """Range and its softness, and the limit of the actuators' force."""
    element, number = joint.element, joint.element.number
    if model.jnt_limited[number]:
        yield from _range(model, joint)
        solver = Solver(element, "limit_", "jnt_solref", "jnt_solimp", joint.units.position)
        yield from reference(LIMIT_SOLREF, solver, model.jnt_solref[number])
        yield from impedance(LIMIT_SOLIMP, solver, model.jnt_solimp[number])
    if model.jnt_actfrclimited[number]:
        yield from force_limit(FORCE, element, "actuatorfrc", joint.units.force, "jnt_actfrcrange", model)


def _range(model: mujoco.MjModel, joint: _Joint) -> Iterator[Item]:
    element, (low, high) = joint.element, (float(x) for x in model.jnt_range[joint.element.number])
    reach = 0.1 * (high - low)
    # The range of a ball joint is one angle, from 0.
    if int(model.jnt_type[element.number]) != _BALL:
        yield element.item(
            LIMIT, "range_min", joint.units.position, either_way(low, reach), element.target("jnt_range", 0)
        )
    span = between(high, high - reach, high + reach)
    yield element.item(LIMIT, "range_max", joint.units.position, span, element.target("jnt_range", 1))


def force_limit(
    family: Family, element: Element, attribute: str, unit: str, field: str, model: mujoco.MjModel
) -> Iterator[Item]:
    """One parameter of a range (2,) that is as wide in both directions, else one for each end that is not 0."""
    low, high = (float(x) for x in getattr(model, field)[element.number])
    if low == -high and high > 0:
        targets = element.target(field, 0, -1.0), element.target(field, 1)
        yield element.item(family, f"{attribute}_limit", unit, ratio(high, 2.0, 0.0), *targets)
        return
    for index, (end, value) in enumerate((("min", low), ("max", high))):
        span = _end(value)
        if span is not None:
            yield element.item(family, f"{attribute}_{end}", unit, span, element.target(field, index))


def _end(value: float) -> Range | None:
    return ratio(value, 2.0, 0.0) if value else None
