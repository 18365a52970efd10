"""The robot's MJCF with corrected values in it, for simulators that know nothing of gapd."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gapd.errors import ConfigError, InputError
from gapd.fit.mjcf_text import corrected_mjcf
from gapd.model.robot import Robot

Array = NDArray[np.float64]

REMEDY = "take it out of parameters.toml, or write it into the compiled model"


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

    Raises InputError where a value does not come back: not every field of MjModel has an attribute in an MJCF.
    """
    source = robot.config.path(robot.config.model)
    context = dict(zip(robot.config.context_names, robot.context_nominal.tolist(), strict=True))
    text, fault = corrected_mjcf(source, robot.parameters, physical, context, path.parent)
    if fault:
        raise InputError(f"model {path}: cannot be written: {fault}; {REMEDY}")
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise InputError(f"model {path}: cannot be written ({error.strerror}); mend it and run again") from None
    finally:
        part.unlink(missing_ok=True)
