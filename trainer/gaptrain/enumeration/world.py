"""Parameters of the world and of sensors.

MuJoCo has no field for a bias or a gain of a sensor, so that there is no parameter for them: gapd's channels compare
what is measured with `sensordata`, and an offset of an encoder is the joint's `offset`. `sensor_noise` has no effect on
a replay. A delay has a field, but acts only where the MJCF gives the sensor a history (`nsample`).
"""

from __future__ import annotations

from collections.abc import Iterator

import mujoco
import numpy as np

from gapd.model.parameters import Target
from gaptrain.enumeration.entries import Family, Item, elements, item
from gaptrain.enumeration.magnitudes import GRAVITY
from gaptrain.enumeration.ranges import between, either_way, ratio

GRAVITY_FAMILY = Family(
    "gravity",
    "a tenth of its size around the model's value in each direction: a base that is tilted by 6 degrees; without "
    "gravity a tenth of that of the Earth",
    int(mujoco.mjtDisableBit.mjDSBL_GRAVITY),
)
MEDIUM = Family(
    "density and viscosity of the medium",
    "half to twice the model's value; 0 up to 2 kg/m³ and 1e-4 Pa·s, which air does not exceed",
)
WIND = Family("wind", "5 m/s around the model's value; acts where the medium has a density or viscosity")
MAGNETIC = Family("magnetic flux", "a fifth of its size around the model's value in each direction")
DELAY = Family("sensor delay", "from 0 to the length of the history that the MJCF gives the sensor (nsample)")
XYZ = ("x", "y", "z")


def world(model: mujoco.MjModel) -> Iterator[Item]:
    """Gravity, medium, wind and, where something measures it, the magnetic flux."""
    size = float(np.linalg.norm(model.opt.gravity)) or GRAVITY
    for k, value in enumerate(model.opt.gravity):
        span = either_way(float(value), size / 10)
        yield item(GRAVITY_FAMILY, f"option/gravity_{XYZ[k]}", "m/s²", span, Target("opt.gravity", index=k))
    for name, unit, most in (("density", "kg/m³", 2.0), ("viscosity", "Pa·s", 1e-4)):
        span = ratio(float(getattr(model.opt, name)), 2.0, most)
        yield item(MEDIUM, f"option/{name}", unit, span, Target(f"opt.{name}"))
    for k, value in enumerate(model.opt.wind):
        yield item(WIND, f"option/wind_{XYZ[k]}", "m/s", either_way(float(value), 5.0), Target("opt.wind", index=k))
    if (model.sensor_type == int(mujoco.mjtSensor.mjSENS_MAGNETOMETER)).any():
        size = float(np.linalg.norm(model.opt.magnetic))
        for k, value in enumerate(model.opt.magnetic):
            span = either_way(float(value), size / 5)
            yield item(MAGNETIC, f"option/magnetic_{XYZ[k]}", "T", span, Target("opt.magnetic", index=k))


def sensors(model: mujoco.MjModel) -> Iterator[Item]:
    """Delays of sensors with a history."""
    for element in elements(model, "sensor"):
        samples = int(model.sensor_history[element.number, 0])
        if samples:
            period = max(float(model.sensor_interval[element.number, 0]), float(model.opt.timestep))
            span = between(float(model.sensor_delay[element.number]), 0.0, samples * period)
            yield element.item(DELAY, "delay", "s", span, element.target("sensor_delay"))
