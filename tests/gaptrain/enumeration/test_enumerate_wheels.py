"""The models that come in public wheels: each is enumerated, and takes its parameters at both bounds.

`make mjcf` installs the wheels, without what they depend on, into build/mjcf.
"""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path

import mujoco
import numpy as np
import pytest

from gapd.errors import ConfigError
from gapd.model.binding import Binding
from gapd.model.mjcf import collecting, compile_file
from gapd.model.parameters import ParameterSet
from gaptrain.enumeration.enumerate import enumerate_parameters

# How many models of each wheel have joints and compile alone, less some: a wheel may drop one.
PACKAGES = {"dm_control": 30, "gymnasium": 10, "gymnasium_robotics": 20, "robosuite": 20}
INSTALLED = Path(__file__).parents[3] / "build" / "mjcf"


def folder_of(package: str) -> Path:
    """Folder of a package, which is not imported; skips the test where it is not installed."""
    if (INSTALLED / package).is_dir():
        return INSTALLED / package
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed: make mjcf")
    return Path(spec.submodule_search_locations[0])


def models_of(package: str) -> dict[Path, mujoco.MjModel]:
    """Every MJCF of a package that compiles by itself and has joints; the others are parts of models."""
    found = {}
    for path in sorted(folder_of(package).rglob("*.xml")):
        try:
            model = compile_file(path)
        except ConfigError:
            continue
        if model.nv:
            found[path] = model
    return found


def trouble(path: Path, model: mujoco.MjModel, out: Path) -> str:
    """What goes wrong with one model; empty if nothing does."""
    try:
        enumerate_parameters(path, out, force=True)
        space = ParameterSet.from_toml(out)
        binding = Binding(model, space, ())
        with collecting([]):
            for values in (space.min, space.max, space.nominal):
                changed = copy.copy(model)
                binding.write(changed, values, np.empty(0))
    except (ConfigError, mujoco.FatalError, mujoco.UnexpectedError, ValueError) as error:
        return f"{path}: {error}"
    wrong = [f for f in ("body_mass", "body_inertia", "dof_damping") if not close(model, changed, f)]
    return f"{path}: nominal values change {', '.join(wrong)}" if wrong else ""


def close(model: mujoco.MjModel, other: mujoco.MjModel, field: str) -> bool:
    return np.allclose(getattr(model, field), getattr(other, field), rtol=1e-9, atol=1e-15)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_every_model_of_a_wheel(package: str, tmp_path: Path) -> None:
    models = models_of(package)
    troubles = [trouble(path, model, tmp_path / "parameters.toml") for path, model in models.items()]
    assert [t for t in troubles if t] == []
    assert len(models) >= PACKAGES[package]
