"""Parameters of tendons: what brakes, drives back and limits them."""

from __future__ import annotations

from collections.abc import Iterator

import mujoco

from gaptrain.enumeration.entries import Element, Family, Item, elements
from gaptrain.enumeration.joints import NO_ACTUATION, NO_DAMPER, NO_SPRING, force_limit
from gaptrain.enumeration.magnitudes import Magnitudes
from gaptrain.enumeration.ranges import between, either_sign, either_way, ratio
from gaptrain.enumeration.solver import (
    NO_FRICTIONLOSS,
    NO_LIMIT,
    Solver,
    impedance,
    impedance_family,
    reference,
    reference_family,
)
from gaptrain.enumeration.units import LINEAR, MIXED, Units

DAMPING = Family("tendon damping", "a tenth to ten times the model's value; 0 up to T / v", NO_DAMPER)
DAMPING_POLY = Family(
    "tendon damping, terms of higher order",
    "a tenth to ten times the model's value; 0 up to what makes a third of T at v",
    NO_DAMPER,
)
FRICTION = Family("tendon friction loss", "a tenth to ten times the model's value; 0 up to 0.3 T", NO_FRICTIONLOSS)
ARMATURE = Family("tendon armature", "a fifth to five times the model's value; 0 up to I")
STIFFNESS = Family("tendon stiffness", "a fifth to five times the model's value; 0 up to T / x", NO_SPRING)
STIFFNESS_POLY = Family(
    "tendon stiffness, terms of higher order",
    "a fifth to five times the model's value; 0 up to what makes a tenth of T at x, the square one of either sign",
    NO_SPRING,
)
LENGTH = Family("tendon spring length", "half of the travel, and of a slack range, around the model's value", NO_SPRING)
YIELD = Family("tendon spring yield", "a third to three times the model's value", NO_SPRING)
LIMIT = Family("tendon limits", "a tenth of the range around the model's value", NO_LIMIT)
FORCE = Family("tendon limits of actuator force", "half to twice the model's value", NO_ACTUATION)
LIMIT_SOLREF, LIMIT_SOLIMP = (make("tendon limit", NO_LIMIT) for make in (reference_family, impedance_family))
FRICTION_SOLREF, FRICTION_SOLIMP = (
    make("tendon friction loss", NO_FRICTIONLOSS) for make in (reference_family, impedance_family)
)

SIMPLE = 'would couple a simple body; <body simple="false"> in the MJCF frees it'
_BODY_OF_WRAP = {
    int(mujoco.mjtWrap.mjWRAP_JOINT): "jnt_bodyid",
    int(mujoco.mjtWrap.mjWRAP_SITE): "site_bodyid",
    int(mujoco.mjtWrap.mjWRAP_SPHERE): "geom_bodyid",
    int(mujoco.mjtWrap.mjWRAP_CYLINDER): "geom_bodyid",
}


def tendons(model: mujoco.MjModel, sizes: Magnitudes) -> Iterator[Item]:
    """All parameters of tendons; `sizes` (ntendon,)."""
    for element in elements(model, "tendon"):
        number = element.number
        # A fixed tendon is a sum of joint coordinates, which may be angles.
        spatial = int(model.wrap_type[model.tendon_adr[number]]) != int(mujoco.mjtWrap.mjWRAP_JOINT)
        units = LINEAR if spatial else MIXED
        yield from _braked(model, element, sizes.at(number), units)
        yield from _sprung(model, element, sizes.at(number), units)
        yield from _limited(model, element, units)


def _braked(model: mujoco.MjModel, element: Element, size: Magnitudes, units: Units) -> Iterator[Item]:
    number, force, speed = element.number, float(size.force[0]), float(size.speed[0])
    span = ratio(float(model.tendon_damping[number]), 10.0, force / speed)
    yield element.item(DAMPING, "damping", units.damping(), span, element.target("tendon_damping"))
    for order, word in ((2, "quadratic"), (3, "cubic")):
        span = ratio(float(model.tendon_dampingpoly[number, order - 2]), 10.0, force / speed**order / 3)
        target = element.target("tendon_dampingpoly", order - 2)
        yield element.item(DAMPING_POLY, f"damping_{word}", units.damping(order), span, target)
    friction = float(model.tendon_frictionloss[number])
    span = ratio(friction, 10.0, 0.3 * force)
    yield element.item(FRICTION, "frictionloss", units.force, span, element.target("tendon_frictionloss"))
    if friction:
        solver = Solver(element, "friction_", "tendon_solref_fri", "tendon_solimp_fri", units.position)
        yield from reference(FRICTION_SOLREF, solver, model.tendon_solref_fri[number], friction=True)
        yield from impedance(FRICTION_SOLIMP, solver, model.tendon_solimp_fri[number], friction=True)
    if couples_simple_body(model, number):
        yield element.omitted("armature", SIMPLE)
        return
    span = ratio(float(model.tendon_armature[number]), 5.0, float(size.inertia[0]))
    yield element.item(ARMATURE, "armature", units.inertia, span, element.target("tendon_armature"))


def couples_simple_body(model: mujoco.MjModel, tendon: int) -> bool:
    """Whether armature of the tendon would couple coordinates between which a simple body's mass matrix has no place.

    MuJoCo then takes the value and simulates something else than the MJCF compiled with it.
    """
    first = int(model.tendon_adr[tendon])
    for wrap in range(first, first + int(model.tendon_num[tendon])):
        bodies = _BODY_OF_WRAP.get(int(model.wrap_type[wrap]))
        body = int(getattr(model, bodies)[model.wrap_objid[wrap]]) if bodies else 0
        if model.body_simple[body] and model.body_weldid[body]:  # what does not move counts as simple too
            return True
    return False


def _sprung(model: mujoco.MjModel, element: Element, size: Magnitudes, units: Units) -> Iterator[Item]:
    number, force, travel = element.number, float(size.force[0]), float(size.travel[0])
    span = ratio(float(model.tendon_stiffness[number]), 5.0, force / travel)
    yield element.item(STIFFNESS, "stiffness", units.stiffness(), span, element.target("tendon_stiffness"))
    for order, word, make in ((2, "quadratic", either_sign), (3, "cubic", ratio)):
        span = make(float(model.tendon_stiffnesspoly[number, order - 2]), 5.0, force / travel**order / 10)
        target = element.target("tendon_stiffnesspoly", order - 2)
        yield element.item(STIFFNESS_POLY, f"stiffness_{word}", units.stiffness(order), span, target)
    yield from _spring_length(model, element, travel, units)
    if model.tendon_plasticadr[number] >= 0:
        span = ratio(float(model.tendon_springyield[number]), 3.0, travel)
        yield element.item(YIELD, "springyield", units.position, span, element.target("tendon_springyield"))


def _spring_length(model: mujoco.MjModel, element: Element, travel: float, units: Units) -> Iterator[Item]:
    """Length at rest: one number, or both ends of the range in which the tendon is slack."""
    low, high = (float(x) for x in model.tendon_lengthspring[element.number])
    field = "tendon_lengthspring"
    if low == high:
        targets = element.target(field, 0), element.target(field, 1)
        yield element.item(LENGTH, "springlength", units.position, either_way(low, travel / 2), *targets)
        return
    reach = (high - low) / 4  # so that the ends cannot change places
    for index, (end, value) in enumerate((("min", low), ("max", high))):
        target = element.target(field, index)
        yield element.item(LENGTH, f"springlength_{end}", units.position, either_way(value, reach), target)


def _limited(model: mujoco.MjModel, element: Element, units: Units) -> Iterator[Item]:
    number = element.number
    if model.tendon_limited[number]:
        low, high = (float(x) for x in model.tendon_range[number])
        for index, (end, value) in enumerate((("min", low), ("max", high))):
            span = between(value, value - (high - low) / 10, value + (high - low) / 10)
            yield element.item(LIMIT, f"range_{end}", units.position, span, element.target("tendon_range", index))
        solver = Solver(element, "limit_", "tendon_solref_lim", "tendon_solimp_lim", units.position)
        yield from reference(LIMIT_SOLREF, solver, model.tendon_solref_lim[number])
        yield from impedance(LIMIT_SOLIMP, solver, model.tendon_solimp_lim[number])
    if model.tendon_actfrclimited[number]:
        yield from force_limit(FORCE, element, "actuatorfrc", units.force, "tendon_actfrcrange", model)
