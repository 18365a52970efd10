"""Parameters of the law by which an actuator turns commands into force: servos, motors, and the general affine law.

The kind follows from gain, bias and dynamics types. Numbers that one physical gain sets together are one parameter: the
kp of a position servo stands in gainprm[0] and, negative, in biasprm[1].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import mujoco
import numpy as np

from gaptrain.enumeration.entries import Element, Family, Item
from gaptrain.enumeration.joints import NO_ACTUATION
from gaptrain.enumeration.magnitudes import Magnitudes
from gaptrain.enumeration.motors import dc_motor, muscle
from gaptrain.enumeration.ranges import either_sign, ratio
from gaptrain.enumeration.units import Units

KP = Family("servo stiffness kp", "a quarter to four times the model's value", NO_ACTUATION)
KV = Family(
    "servo damping kv",
    "a quarter to four times the model's value; 0 up to the critical damping of kp with the inertia that it moves",
    NO_ACTUATION,
)
KI = Family("servo integral gain and its limits", "a quarter to four times the model's value", NO_ACTUATION)
GAIN = Family(
    "actuator gain",
    "half to twice the model's value; 0 up to T per unit of command, slopes over length and speed up to a tenth of it "
    "over x and v",
    NO_ACTUATION,
)
BIAS = Family(
    "actuator bias: constant force, and slopes over length and speed",
    "half to twice the model's value; 0 up to a tenth of T of either sign, slopes up to that over x and v",
    NO_ACTUATION,
)
TIME = Family("actuator time constant", "a third to three times the model's value", NO_ACTUATION)

_GAIN, _BIAS, _DYN = mujoco.mjtGain, mujoco.mjtBias, mujoco.mjtDyn
_FILTERS = (int(_DYN.mjDYN_FILTER), int(_DYN.mjDYN_FILTEREXACT))
_USER = (int(_GAIN.mjGAIN_USER), int(_BIAS.mjBIAS_USER), int(_DYN.mjDYN_USER))
SUFFIXES = ("", "_length", "_velocity")


@dataclass(frozen=True)
class _Law:
    """An actuator with its types and numbers."""

    model: mujoco.MjModel
    element: Element
    size: Magnitudes  # (1,)
    units: Units

    @property
    def types(self) -> tuple[int, int, int]:
        """Types of gain, bias and dynamics."""
        model, number = self.model, self.element.number
        gain, bias = int(model.actuator_gaintype[number]), int(model.actuator_biastype[number])
        return gain, bias, int(model.actuator_dyntype[number])

    def gain(self, index: int) -> float:
        return float(self.model.actuator_gainprm[self.element.number, index])

    def bias(self, index: int) -> float:
        return float(self.model.actuator_biasprm[self.element.number, index])


def law(model: mujoco.MjModel, element: Element, size: Magnitudes, units: Units) -> Iterator[Item]:
    """Parameters of one actuator; `size` (1,)."""
    actuator = _Law(model, element, size, units)
    gain, bias, dynamics = actuator.types
    if model.actuator_plugin[element.number] >= 0:
        yield element.omitted("*", "a plugin computes its force")
    elif any(own == user for own, user in zip(actuator.types, _USER, strict=True)):
        yield element.omitted("gain, bias", "a callback of the user computes its force")
    elif gain == int(_GAIN.mjGAIN_DCMOTOR):
        yield from dc_motor(model, element, size)
    elif gain == int(_GAIN.mjGAIN_MUSCLE) or bias == int(_BIAS.mjBIAS_MUSCLE):
        yield from muscle(model, element)
    else:
        yield from _servo(actuator) or _affine(actuator)
        if dynamics in _FILTERS:
            span = ratio(float(model.actuator_dynprm[element.number, 0]), 3.0, 0.0)
            yield element.item(TIME, "timeconst", "s", span, element.target("actuator_dynprm"))


def _servo(actuator: _Law) -> Iterator[Item] | None:
    """Parameters of a servo, or None where gain and bias are not those of one."""
    gain, bias, _ = actuator.types
    if gain == int(_GAIN.mjGAIN_PID):
        return _pid(actuator)
    fixed = gain == int(_GAIN.mjGAIN_FIXED) and bias == int(_BIAS.mjBIAS_AFFINE)
    if gain == int(_GAIN.mjGAIN_SO3) or (fixed and actuator.gain(0) and actuator.bias(1) == -actuator.gain(0)):
        return _position(actuator, constant=fixed)
    if fixed and actuator.gain(0) and not actuator.bias(1) and actuator.bias(2) == -actuator.gain(0):
        return _velocity(actuator)
    return None


def _position(actuator: _Law, *, constant: bool) -> Iterator[Item]:
    element, kp = actuator.element, actuator.gain(0)
    targets = element.target("actuator_gainprm"), element.target("actuator_biasprm", 1, -1.0)
    yield element.item(KP, "kp", actuator.units.stiffness(), ratio(kp, 4.0, 0.0), *targets)
    yield _kv(actuator, kp)
    if constant:
        yield _constant(actuator)


def _kv(actuator: _Law, kp: float) -> Item:
    """Damping of a servo, up to the critical one if it is 0."""
    critical = 2 * np.sqrt(abs(kp) * float(actuator.size.inertia[0]))
    span, target = ratio(-actuator.bias(2), 4.0, critical), actuator.element.target("actuator_biasprm", 2, -1.0)
    return actuator.element.item(KV, "kv", actuator.units.damping(), span, target)


def _velocity(actuator: _Law) -> Iterator[Item]:
    element = actuator.element
    targets = element.target("actuator_gainprm"), element.target("actuator_biasprm", 2, -1.0)
    yield element.item(KV, "kv", actuator.units.damping(), ratio(actuator.gain(0), 4.0, 0.0), *targets)
    yield _constant(actuator)


def _pid(actuator: _Law) -> Iterator[Item]:
    element, units, kp = actuator.element, actuator.units, -actuator.bias(1)
    stiffest = float(actuator.size.force[0] / actuator.size.travel[0])
    target = element.target("actuator_biasprm", 1, -1.0)
    yield element.item(KP, "kp", units.stiffness(), ratio(kp, 4.0, stiffest), target)
    yield _kv(actuator, kp or stiffest)
    yield _constant(actuator)
    # A state of the integral and of the slewed command exists only where the MJCF has the number.
    for attribute, unit, field, index in (
        ("ki", f"{units.stiffness()}/s", "actuator_gainprm", 0),
        ("imax", f"{units.position}·s", "actuator_dynprm", 0),
        ("slewmax", f"{units.position}/s", "actuator_dynprm", 1),
    ):
        value = float(getattr(actuator.model, field)[element.number, index])
        if value:
            yield element.item(KI, attribute, unit, ratio(value, 4.0, 0.0), element.target(field, index))


def _affine(actuator: _Law) -> Iterator[Item]:
    """Each number of gain and bias for itself."""
    gain, bias, _ = actuator.types
    terms = {int(_GAIN.mjGAIN_FIXED): 1, int(_GAIN.mjGAIN_AFFINE): 3}.get(gain, 0)
    for index, most in enumerate(_slopes(actuator)[:terms]):
        span = either_sign(actuator.gain(index), 2.0, most if index else 10 * most)
        target = actuator.element.target("actuator_gainprm", index)
        yield actuator.element.item(GAIN, f"gain{SUFFIXES[index]}", "SI", span, target)
    for index in range(3 if bias == int(_BIAS.mjBIAS_AFFINE) else 0):
        yield _bias(actuator, index)


def _constant(actuator: _Law) -> Item:
    return _bias(actuator, 0)


def _bias(actuator: _Law, index: int) -> Item:
    units = actuator.units
    span = either_sign(actuator.bias(index), 2.0, _slopes(actuator)[index])
    unit = (units.force, units.stiffness(), units.damping())[index]
    target = actuator.element.target("actuator_biasprm", index)
    return actuator.element.item(BIAS, f"bias{SUFFIXES[index]}", unit, span, target)


def _slopes(actuator: _Law) -> tuple[float, float, float]:
    """A tenth of the force, and that over travel and speed."""
    size = actuator.size
    force = float(size.force[0]) / 10
    return force, force / float(size.travel[0]), force / float(size.speed[0])
