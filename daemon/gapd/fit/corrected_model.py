"""The robot's MJCF with corrected values in it, for simulators that know nothing of gapd."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
from numpy.typing import NDArray

from gapd.errors import ConfigError, InputError
from gapd.model.binding import Binding
from gapd.model.mjcf import load_model
from gapd.model.model_fields import values
from gapd.model.robot import Robot

Array = NDArray[np.float64]

# MuJoCo writes six digits.
TOLERANCE = 2e-5


def require_writable(robot: Robot, path: Path) -> None:
    """ConfigError where `write_model` could not write."""
    if path.suffix.lower() != ".xml":
        raise ConfigError(f"model {path}: does not end in .xml; name such a file")
    if not path.parent.is_dir():
        raise ConfigError(f"model {path}: no folder {path.parent}; make it, or name another")
    if path.exists() and path.samefile(robot.config.path(robot.config.model)):
        raise ConfigError(f"model {path}: is the model of robot.toml itself; name another file")


def write_model(robot: Robot, physical: Array, path: Path) -> None:
    """Write the MJCF with the values (P,) of all targets, under nominal context.

    Raises InputError where a written value does not come back: not every field of MjModel has an attribute in an MJCF.
    """
    model = load_model(robot.config.path(robot.config.model))
    robot.binding.write(model, physical, robot.context_nominal)
    part = path.with_name(f"{path.name}.part")
    try:
        mujoco.mj_saveLastXML(str(part), model)
        lost = lost_field(robot.binding, model, load_model(part))
        if lost:
            raise InputError(f"{lost} does not come back from the MJCF; write the corrections by hand")
        part.replace(path)
    except (mujoco.FatalError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"model {path}: cannot be written ({reason}); write the corrections by hand") from None
    finally:
        part.unlink(missing_ok=True)


def lost_field(binding: Binding, wanted: mujoco.MjModel, written: mujoco.MjModel) -> str:
    """The first field of which a written value did not come back from the MJCF; empty if all did."""
    for cells in binding.cells:
        a, b = (values(m, cells.field).reshape(-1)[cells.flat] for m in (wanted, written))
        if not np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * float(np.abs(a).max(initial=0.0))):
            return cells.field
    return ""
