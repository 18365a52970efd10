"""What training data depend on, as hashes: equal hashes mean that the same code makes the same data."""

from __future__ import annotations

import hashlib
from dataclasses import fields

import msgspec
import mujoco
import numpy as np

from gapd.model.binding import Cells
from gapd.model.inertia import InertiaCells
from gapd.model.robot import Robot

# Arrays of MjModel that no motion depends on: names, files and looks.
_LOOKS = ("_", "name", "light_", "mat_", "skin_", "tex_", "text_")
_LOOKS_OF = ("pathadr", "_rgba", "_matid", "_castshadow")


def model_hash(model: mujoco.MjModel) -> str:
    """SHA-256 of the numbers of a compiled model: of the MJCF with all it includes, meshes and defaults."""
    digest = hashlib.sha256()
    for holder in (model, model.opt, model.stat):
        for name in dir(holder):
            value = getattr(holder, name)
            numbers = isinstance(value, np.ndarray) or (holder is not model and isinstance(value, int | float))
            if not numbers or name.startswith(_LOOKS) or name.endswith(_LOOKS_OF):
                continue
            array = np.ascontiguousarray(value)
            digest.update(f"{name} {array.dtype} {array.shape} ".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


def robot_facts(robot: Robot) -> tuple[object, ...]:
    """What data depend on in a robot, as plain values. Names count by what they refer to, units and comments not."""
    layout, timing = robot.layout, robot.config.timing
    indices = (layout.sensor, layout.position, layout.velocity, layout.actuator_joint)
    return (
        mujoco.__version__,
        model_hash(robot.model),
        [(p.min, p.max, p.scale) for p in robot.parameters.free],
        [_written(cells) for cells in robot.binding.cells],
        [(c.nominal, c.low, c.high) for c in robot.config.context],
        (timing.knot_s, timing.knots),
        layout.noise.tolist(),
        [i.tolist() for i in indices],
    )


def _written(cells: Cells | InertiaCells) -> list[object]:
    """Every field of what is written and how, as plain values."""
    found: list[object] = []
    for field in fields(cells):
        value = getattr(cells, field.name)
        if isinstance(value, InertiaCells):
            value = _written(value)
        found.append(value.tolist() if isinstance(value, np.ndarray) else value)
    return found


def short_hash(*facts: object) -> str:
    """Twelve hexadecimal digits that name these facts."""
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:12]
