"""Each parameter that is found, written in place into the compiled model, is the MJCF compiled with that value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import enumeration_models as models
import mujoco
import numpy as np
import pytest
from mjcf_places import filled, places
from numpy.typing import NDArray

from gapd.model.binding import Binding
from gapd.model.parameters import Parameter, ParameterSet
from gaptrain.enumeration.enumerate import find

Array = NDArray[np.float64]

STEPS = 250
# In-place and compiled models differ by the rounding of what MuJoCo derives at compile time.
TOLERANCE = 1e-8


def rollout(model: mujoco.MjModel, start: Array) -> Array:
    """States and sensors (STEPS, .) of a motion from `start`, which does not follow the reference pose."""
    data, rng = mujoco.MjData(model), np.random.default_rng(5)
    data.qpos[:] = start
    data.qvel[:] = 0.5 * rng.normal(size=model.nv)
    phase, rows = rng.uniform(0, 6, model.nu), []
    for step in range(STEPS):
        data.ctrl[:] = np.sin(0.03 * step + phase)
        mujoco.mj_step(model, data)
        rows.append(np.concatenate([data.qpos, data.qvel, data.sensordata]))
    return np.array(rows)


def set_in_place(template: str, parameter: Parameter, value: float) -> mujoco.MjModel:
    model = compiled(template, {})
    binding = Binding(model, ParameterSet([parameter]), ())
    binding.write(model, np.array([value]), np.empty(0))
    return model


def compiled(template: str, values: Mapping[str, float]) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(filled(template, values))


def trial_values(parameter: Parameter) -> list[float]:
    """Values well inside the bounds, on both sides of nominal where there is room."""
    space = ParameterSet([parameter])
    low, here, high = (float(z[0]) for z in (space.z_min, space.z_nominal, space.z_max))
    sides = [here + 0.7 * (side - here) for side in (low, high) if abs(side - here) > 1e-9]
    return [float(space.to_physical(np.array([z]))[0]) for z in sides]


def found_in(template: str, folder: Path) -> dict[str, Parameter]:
    path = folder / "model.xml"
    path.write_text(filled(template, {}))
    found, _ = find(path)
    return {f.parameter.name: f.parameter for f in found}


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_every_parameter_has_its_place_in_the_mjcf(name: str, tmp_path: Path) -> None:
    template = models.MODELS[name]
    assert set(found_in(template, tmp_path)) == places(template)


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_writing_in_place_is_compiling_anew(name: str, tmp_path: Path) -> None:
    template = models.MODELS[name]
    start = compiled(template, {}).qpos0.copy()
    nominal, wrong, idle = rollout(compiled(template, {}), start), [], set()
    for parameter in found_in(template, tmp_path).values():
        changed = 0.0
        for value in trial_values(parameter):
            anew = rollout(compiled(template, {parameter.name: value}), start)
            difference = np.abs(rollout(set_in_place(template, parameter, value), start) - anew).max()
            changed = max(changed, float(np.abs(anew - nominal).max()))
            if not difference < TOLERANCE * max(1.0, np.abs(anew).max()):
                wrong.append((parameter.name, value, difference))
        if not changed > 1e-7:
            idle.add(parameter.name)
    assert wrong == []
    assert idle == models.IDLE.get(name, set())


HOIST = """<mujoco><option gravity="1 2 -9"/><worldbody> <site name="a" pos="0 0 1"/>
  <body name="box" pos="0.2 0.1 0.5"><freejoint/><geom size="0.1"/><site name="b" pos="0.05 0.02 0.03"/></body>
  </worldbody><tendon><spatial armature="ARMATURE"><site site="a"/><site site="b"/></spatial></tendon></mujoco>"""


def test_mujoco_simulates_armature_on_a_simple_body_wrongly() -> None:
    """Why it is left out. Where this fails, MuJoCo has learned it: drop `couples_simple_body`."""
    anew, in_place = (mujoco.MjModel.from_xml_string(HOIST.replace("ARMATURE", value)) for value in ("0.5", "0"))
    in_place.tendon_armature[0] = 0.5
    mujoco.mj_setConst(in_place, mujoco.MjData(in_place))
    ends = []
    for model in (anew, in_place):
        data = mujoco.MjData(model)
        mujoco.mj_step(model, data, 250)  # 0.5 s
        ends.append(data.qpos[:3].copy())
    assert np.linalg.norm(ends[0] - ends[1]) > 0.03  # m
