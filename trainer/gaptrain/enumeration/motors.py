"""Parameters of DC motors and muscles, whose numbers MuJoCo keeps in gainprm, biasprm and dynprm.

Places of the numbers of a DC motor (mujoco 4.0, checked by tests against the attributes of <dcmotor>):

    gainprm   resistance, motor constant, temperature coefficient, its reference, kp, ki, kd, largest voltage
    biasprm   cogging: amplitude, poles, phase; LuGre: Coulomb, static, Stribeck speed
    dynprm    electrical time constant, largest current rate, thermal: resistance, capacitance, ambient;
              LuGre: stiffness, damping; largest slew, largest integral
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import mujoco
import numpy as np

from gaptrain.enumeration.entries import Element, Family, Item
from gaptrain.enumeration.joints import NO_ACTUATION
from gaptrain.enumeration.magnitudes import Magnitudes
from gaptrain.enumeration.ranges import between, either_way, ratio

ELECTRICAL = Family(
    "DC motor: resistance, motor constant, inductance, limits", "half to twice the model's value", NO_ACTUATION
)
CONTROLLER = Family("DC motor: controller", "a quarter to four times the model's value", NO_ACTUATION)
COGGING = Family(
    "DC motor: cogging torque",
    "amplitude a fifth to five times the model's value, 0 up to a tenth of the torque; any phase",
    NO_ACTUATION,
)
LUGRE = Family(
    "DC motor: LuGre friction", "a fifth to five times the model's value; 0 up to a tenth of the torque", NO_ACTUATION
)
THERMAL = Family(
    "DC motor: thermal model", "half to twice the model's value; temperatures 10 K around it", NO_ACTUATION
)
MUSCLE = Family("muscle: force", "half to twice the model's value", NO_ACTUATION)
CURVES = Family("muscle: force over length and speed", "four fifths to five fourths of the model's value", NO_ACTUATION)
ACTIVATION = Family("muscle: activation", "a third to three times the model's value; 0 up to 0.5", NO_ACTUATION)

GAIN, BIAS, DYN = "actuator_gainprm", "actuator_biasprm", "actuator_dynprm"


@dataclass(frozen=True)
class _Number:
    """One number of a motor: what it is called, its unit, and where it stands."""

    family: Family
    attribute: str
    unit: str
    field: str
    index: int
    times: float = 2.0


# These act, or have a state, only where the MJCF gives them.
_POSITIVE = (
    _Number(ELECTRICAL, "resistance", "Ohm", GAIN, 0),
    _Number(ELECTRICAL, "motorconst", "N·m/A", GAIN, 1),
    _Number(ELECTRICAL, "inductance_timeconst", "s", DYN, 0),
    _Number(ELECTRICAL, "current_rate", "A/s", DYN, 1),
    _Number(CONTROLLER, "kp", "N·m/rad", GAIN, 4, 4.0),
    _Number(CONTROLLER, "ki", "N·m/(rad·s)", GAIN, 5, 4.0),
    _Number(CONTROLLER, "kd", "N·m·s/rad", GAIN, 6, 4.0),
    _Number(CONTROLLER, "voltage_limit", "V", GAIN, 7, 2.0),
    _Number(CONTROLLER, "slewmax", "rad/s", DYN, 7, 4.0),
    _Number(CONTROLLER, "imax", "rad·s", DYN, 8, 4.0),
    _Number(LUGRE, "lugre_stiffness", "N·m/rad", DYN, 5, 5.0),
)
_LUGRE = (
    _Number(LUGRE, "lugre_damping", "N·m·s/rad", DYN, 6, 5.0),
    _Number(LUGRE, "lugre_coulomb", "N·m", BIAS, 3, 5.0),
    _Number(LUGRE, "lugre_static", "N·m", BIAS, 4, 5.0),
    _Number(LUGRE, "lugre_stribeck", "rad/s", BIAS, 5, 5.0),
)
_THERMAL = (
    _Number(THERMAL, "temperature_coefficient", "1/K", GAIN, 2),
    _Number(THERMAL, "thermal_resistance", "K/W", DYN, 2),
    _Number(THERMAL, "thermal_capacitance", "J/K", DYN, 3),
)
_TEMPERATURES = (
    _Number(THERMAL, "reference_temperature", "°C", GAIN, 3),
    _Number(THERMAL, "ambient_temperature", "°C", DYN, 4),
)
_MUSCLE = (
    _Number(CURVES, "range_min", "1", GAIN, 0, 1.25),
    _Number(CURVES, "range_max", "1", GAIN, 1, 1.25),
    _Number(MUSCLE, "force", "N", GAIN, 2),
    _Number(MUSCLE, "scale", "m/s²", GAIN, 3),
    _Number(CURVES, "vmax", "1/s", GAIN, 6, 1.25),
    _Number(CURVES, "fpmax", "1", GAIN, 7, 1.25),
    _Number(CURVES, "fvmax", "1", GAIN, 8, 1.25),
)


def dc_motor(model: mujoco.MjModel, element: Element, size: Magnitudes) -> Iterator[Item]:
    """Parameters of a DC motor; `size` (1,)."""
    tenth = float(size.force[0]) / 10
    numbers = [n for n in _POSITIVE if _value(model, element, n)]
    if not model.actuator_gainprm[element.number, 1]:
        numbers = [
            n for n in numbers if n.attribute != "resistance"
        ]  # without a motor constant no current does anything
    for number in numbers:
        yield _item(model, element, number, 0.0)
    if model.actuator_dynprm[element.number, 5]:
        yield from (_item(model, element, number, tenth) for number in _LUGRE)
    if model.actuator_dynprm[element.number, 3]:
        yield from (_item(model, element, number, 0.01) for number in _THERMAL)
        for number in _TEMPERATURES:
            span = either_way(_value(model, element, number), 10.0)
            yield element.item(THERMAL, number.attribute, number.unit, span, element.target(number.field, number.index))
    yield from _cogging(model, element, tenth)


def _cogging(model: mujoco.MjModel, element: Element, most: float) -> Iterator[Item]:
    amplitude, poles, phase = (float(x) for x in model.actuator_biasprm[element.number, :3])
    if not poles:
        yield element.omitted("cogging", "the MJCF gives no number of poles")
        return
    yield element.item(COGGING, "cogging_amplitude", "N·m", ratio(amplitude, 5.0, most), element.target(BIAS, 0))
    yield element.item(COGGING, "cogging_phase", "rad", either_way(phase, np.pi), element.target(BIAS, 2))
    yield element.omitted("cogging_poles", "is a count")


def _value(model: mujoco.MjModel, element: Element, number: _Number) -> float:
    return float(getattr(model, number.field)[element.number, number.index])


def _item(model: mujoco.MjModel, element: Element, number: _Number, if_zero: float) -> Item:
    span = ratio(_value(model, element, number), number.times, if_zero)
    return element.item(number.family, number.attribute, number.unit, span, element.target(number.field, number.index))


def muscle(model: mujoco.MjModel, element: Element) -> Iterator[Item]:
    """Parameters of a muscle: the same numbers stand in gain and bias, those of activation in the dynamics."""
    kinds = {
        GAIN: int(model.actuator_gaintype[element.number]) == int(mujoco.mjtGain.mjGAIN_MUSCLE),
        BIAS: int(model.actuator_biastype[element.number]) == int(mujoco.mjtBias.mjBIAS_MUSCLE),
    }
    fields = [field for field, is_muscle in kinds.items() if is_muscle]
    for number in _MUSCLE:
        value = float(getattr(model, fields[0])[element.number, number.index])
        force = float(getattr(model, fields[0])[element.number, 2])
        if number.attribute == ("scale" if force >= 0 else "force"):
            continue  # a negative force asks for one from the scale
        targets = (element.target(field, number.index) for field in fields)
        yield element.item(number.family, number.attribute, number.unit, ratio(value, number.times, 0.0), *targets)
    for index, attribute, far in ((4, "lmin", 0.8), (5, "lmax", 1.2)):
        value = float(getattr(model, fields[0])[element.number, index])
        # MuJoCo wants lmin < 1 < lmax: at most half of the way to 1, and a fifth the other way.
        span = between(value, *sorted((far * value, (value + 1) / 2)))
        yield element.item(CURVES, attribute, "1", span, *(element.target(field, index) for field in fields))
    if int(model.actuator_dyntype[element.number]) == int(mujoco.mjtDyn.mjDYN_MUSCLE):
        yield from _activation(model, element)


def _activation(model: mujoco.MjModel, element: Element) -> Iterator[Item]:
    rise, fall, smooth = (float(x) for x in model.actuator_dynprm[element.number, :3])
    for index, (attribute, unit, value) in enumerate(
        (("timeconst_activation", "s", rise), ("timeconst_deactivation", "s", fall), ("tausmooth", "1", smooth))
    ):
        span = ratio(value, 3.0, 0.5) if index == 2 else ratio(value, 3.0, 0.0)
        yield element.item(ACTIVATION, attribute, unit, span, element.target(DYN, index))
