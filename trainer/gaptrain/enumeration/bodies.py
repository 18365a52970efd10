"""Parameters of bodies: mass, centre of mass, shape of the inertia, gravity compensation."""

from __future__ import annotations

from collections.abc import Iterator

import mujoco
import numpy as np
from numpy.typing import NDArray

from gapd.model.inertia import numbers_of, quaternion
from gaptrain.enumeration.entries import Element, Family, Item, elements
from gaptrain.enumeration.ranges import Range, between, either_way, ratio

Array = NDArray[np.float64]

NO_GRAVITY = int(mujoco.mjtDisableBit.mjDSBL_GRAVITY)
MASS = Family("body mass", "half to twice the model's value; inertia grows with it at the same shape")
FRAME_MASS = Family("mass of frames without mass", "up to a tenth of the mass of all bodies, as a point")
COM = Family(
    "centre of mass, in the frame of the body",
    "half of the body's half extent around the model's value: of the box with the same inertia, along each axis",
)
SPREAD = Family(
    "spread of the mass along the principal axes (standard deviation)",
    "two thirds to one and a half times the model's value; 0 up to a tenth of the largest of the body",
)
AXES = Family("principal axes, as a rotation vector from the frame of the body", "0.3 rad around the model's value")
GRAVCOMP = Family(
    "gravity compensation, as a share of the body's weight", "from 0 to 1.2, or twice the model's value", NO_GRAVITY
)

XYZ = ("x", "y", "z")
STATIC = "does not move: it is fixed to the world"
# Axes along which the mass is this much narrower than along the longest have no thickness in the model: a plate, a rod.
FLAT = 1e-6


def bodies(model: mujoco.MjModel) -> Iterator[Item]:
    """All parameters of bodies."""
    for element in elements(model, "body"):
        number = element.number
        if number == 0:
            continue
        if model.body_weldid[number] == 0 or model.body_mocapid[number] >= 0:
            yield element.omitted("*", STATIC)
        elif model.body_mass[number] > 0:
            yield from _inertia(model, element)
            yield from _compensation(model, element)
        else:
            most = float(model.body_subtreemass[0]) / 10
            yield element.item(FRAME_MASS, "mass", "kg", Range(0.0, 0.0, most, "asinh"), element.target("body_mass"))


def _inertia(model: mujoco.MjModel, element: Element) -> Iterator[Item]:
    numbers = numbers_of(model, element.number)
    spread, axes = numbers[4:7], numbers[7:]
    yield element.item(MASS, "mass", "kg", ratio(float(numbers[0]), 2.0, 0.0), element.target("inertia.mass"))
    if model.body_simple[element.number]:
        # mj_setConst refuses such a body as soon as its inertial frame is not its own.
        reason = 'MuJoCo keeps it at the frame of the body; <body simple="false"> in the MJCF frees it'
        yield element.omitted("com", reason)
        yield element.omitted("axes", reason)
    else:
        for k, (value, reach) in enumerate(zip(numbers[1:4], _half_extent(spread, axes), strict=True)):
            span = either_way(float(value), float(reach) / 2)
            yield element.item(COM, f"com_{XYZ[k]}", "m", span, element.target("inertia.com", k))
    yield from _shape(element, spread)
    if not model.body_simple[element.number]:
        for k, angle in enumerate(axes):
            target = element.target("inertia.axes", k)
            yield element.item(AXES, f"axes_{XYZ[k]}", "rad", either_way(float(angle), 0.3), target)


def _shape(element: Element, spread: Array) -> Iterator[Item]:
    largest = float(spread.max())
    for k, value in enumerate(spread):
        thick = float(value) if value > FLAT * largest else 0.0
        target = element.target("inertia.spread", k)
        yield element.item(SPREAD, f"spread_{k + 1}", "m", ratio(thick, 1.5, largest / 10), target)


def _half_extent(spread: Array, axes: Array) -> Array:
    """Half extents (3,) along the body's axes of a box with its spread of mass; none below a tenth of the largest."""
    turn = np.empty(9)
    mujoco.mju_quat2Mat(turn, quaternion(axes))
    second = (turn.reshape(3, 3) ** 2) @ spread**2
    extent = np.sqrt(3 * second)
    return np.asarray(np.maximum(extent, extent.max() / 10))


def _compensation(model: mujoco.MjModel, element: Element) -> Iterator[Item]:
    value = float(model.body_gravcomp[element.number])
    span = between(value, 0.0, max(1.2, 2 * value))
    yield element.item(GRAVCOMP, "gravcomp", "1", span, element.target("body_gravcomp"))
