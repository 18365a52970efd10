"""Parameters of actuators that all kinds have: transmission, limit of the force, delay, damping and armature."""

from __future__ import annotations

from collections.abc import Iterator

import mujoco
import numpy as np

from gapd.model.model_fields import rows_of
from gaptrain.enumeration.actuator_laws import law
from gaptrain.enumeration.entries import Element, Family, Item, elements
from gaptrain.enumeration.joints import NO_ACTUATION, NO_DAMPER, force_limit
from gaptrain.enumeration.magnitudes import Magnitudes
from gaptrain.enumeration.ranges import between, ratio
from gaptrain.enumeration.tendons import SIMPLE, couples_simple_body
from gaptrain.enumeration.units import ANGULAR, LINEAR, MIXED, Units

GEAR = Family("actuator gear", "two thirds to one and a half times the model's value", NO_ACTUATION)
FORCE = Family("actuator force limit", "half to twice the model's value", NO_ACTUATION)
DELAY = Family(
    "actuator delay", "from 0 to the length of the history that the MJCF gives the actuator (nsample)", NO_ACTUATION
)
DAMPING = Family("actuator damping", "a tenth to ten times the model's value; 0 up to T / v", NO_DAMPER)
ARMATURE = Family("actuator armature", "a fifth to five times the model's value; 0 up to I")

_TRN = mujoco.mjtTrn
_JOINT = (int(_TRN.mjTRN_JOINT), int(_TRN.mjTRN_JOINTINPARENT))
_TENDON, _SITE = int(_TRN.mjTRN_TENDON), int(_TRN.mjTRN_SITE)
_NO_GEAR = (int(_TRN.mjTRN_BODY), int(_TRN.mjTRN_SO3))
# Contract of jnt_actuatorid and tendon_actuatorid: MuJoCo asks all actuators there for damping and armature.
_SEVERAL = -2


def actuators(model: mujoco.MjModel, sizes: Magnitudes) -> Iterator[Item]:
    """All parameters of actuators; `sizes` (nactuator,)."""
    for element in elements(model, "actuator"):
        number = element.number
        if _switched_off(model, number):
            yield element.omitted("*", "its group is disabled in the MJCF")
            continue
        units = _units(model, number)
        yield from law(model, element, sizes.at(number), units)
        yield from _gear(model, element)
        if model.actuator_forcelimited[number]:
            yield from force_limit(FORCE, element, "force", units.force, "actuator_forcerange", model)
        samples = int(model.actuator_history[number, 0])
        if samples:
            span = between(float(model.actuator_delay[number]), 0.0, samples * float(model.opt.timestep))
            yield element.item(DELAY, "delay", "s", span, element.target("actuator_delay"))
        yield from _passive(model, element, sizes.at(number), units)


def _switched_off(model: mujoco.MjModel, number: int) -> bool:
    group = int(model.actuator_group[number])
    return 0 <= group <= 30 and bool(model.opt.disableactuator >> group & 1)


def _units(model: mujoco.MjModel, number: int) -> Units:
    """Units at the joint for a gear of 1."""
    kind, target = int(model.actuator_trntype[number]), int(model.actuator_trnid[number, 0])
    if kind in _JOINT:
        joint = int(model.jnt_type[target])
        by_type = {int(mujoco.mjtJoint.mjJNT_SLIDE): LINEAR, int(mujoco.mjtJoint.mjJNT_FREE): MIXED}
        return by_type.get(joint, ANGULAR)
    if kind == _TENDON:
        fixed = int(model.wrap_type[model.tendon_adr[target]]) == int(mujoco.mjtWrap.mjWRAP_JOINT)
        return MIXED if fixed else LINEAR
    if kind == int(_TRN.mjTRN_SO3):
        return ANGULAR
    return MIXED if kind == _SITE else LINEAR


def _gear(model: mujoco.MjModel, element: Element) -> Iterator[Item]:
    """Every number of the gear that acts: one for a scalar transmission, an axis for the others."""
    number = element.number
    if int(model.actuator_trntype[number]) in _NO_GEAR:
        return
    if int(model.actuator_gaintype[number]) == int(mujoco.mjtGain.mjGAIN_MUSCLE):
        yield element.omitted("gear", "MuJoCo derives the length range of a muscle from it when it compiles")
        return
    row, _ = rows_of(model, "actuator_gear", number)
    values = model.actuator_gear[row, : _gear_numbers(model, number)]
    used = np.flatnonzero(values)
    for k in used.tolist():
        attribute = "gear" if len(used) == 1 else f"gear_{k}"
        span = ratio(float(values[k]), 1.5, 0.0)
        yield element.item(GEAR, attribute, "1", span, element.target("actuator_gear", k))


def _gear_numbers(model: mujoco.MjModel, number: int) -> int:
    kind, target = int(model.actuator_trntype[number]), int(model.actuator_trnid[number, 0])
    if kind == _SITE:
        return 6
    if kind not in _JOINT:
        return 1
    joint = int(model.jnt_type[target])
    return {int(mujoco.mjtJoint.mjJNT_FREE): 6, int(mujoco.mjtJoint.mjJNT_BALL): 3}.get(joint, 1)


def _passive(model: mujoco.MjModel, element: Element, size: Magnitudes, units: Units) -> Iterator[Item]:
    """Damping and armature that the actuator adds to its joint or tendon."""
    number = element.number
    kind, target = int(model.actuator_trntype[number]), int(model.actuator_trnid[number, 0])
    if kind not in (_TENDON, *_JOINT):
        return
    asked = int((model.tendon_actuatorid if kind == _TENDON else model.jnt_actuatorid)[target])
    if asked not in (number, _SEVERAL):
        reason = (
            "MuJoCo reads damping and armature of an actuator only where the MJCF gives it some; those of the joint or "
            "tendon do the same"
        )
        yield element.omitted("damping", reason)
        return
    force, speed = float(size.force[0]), float(size.speed[0])
    span = ratio(float(model.actuator_damping[number]), 10.0, force / speed)
    yield element.item(DAMPING, "damping", units.damping(), span, element.target("actuator_damping"))
    for order, word in ((2, "quadratic"), (3, "cubic")):
        span = ratio(float(model.actuator_dampingpoly[number, order - 2]), 10.0, force / speed**order / 3)
        goal = element.target("actuator_dampingpoly", order - 2)
        yield element.item(DAMPING, f"damping_{word}", units.damping(order), span, goal)
    if kind == _TENDON and couples_simple_body(model, target):
        yield element.omitted("armature", SIMPLE)
        return
    span = ratio(float(model.actuator_armature[number]), 5.0, float(size.inertia[0]))
    yield element.item(ARMATURE, "armature", units.inertia, span, element.target("actuator_armature"))
