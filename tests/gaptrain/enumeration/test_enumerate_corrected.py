"""Whatever `gaptrain enumerate` finds can be written into an MJCF that compiles to the corrected model."""

from __future__ import annotations

from pathlib import Path

import enumeration_models as models
import mujoco
import numpy as np
import pytest
from mjcf_places import filled

from gapd.fit.mjcf_text import corrected_mjcf
from gapd.model.binding import Binding
from gapd.model.model_fields import values
from gapd.model.parameters import ParameterSet
from gaptrain.enumeration.enumerate import find

MODELS = Path(__file__).parents[3] / "models"
TEXTS = {
    **{name: filled(template, {}) for name, template in models.MODELS.items()},
    **{name: (MODELS / name / "model.xml").read_text() for name in ("arm7", "servo_pendulum", "ballscrew")},
    "inherited": """<mujoco><worldbody>
        <body><joint name="a" axis="0 1 0" range="-50 60"/><geom size="0.1" pos="0.1 0 0"/>
        <body><joint name="b" axis="0 1 0" range="-20 60"/><geom size="0.1" pos="0.1 0 0"/></body></body></worldbody>
        <actuator><position joint="a" kp="3" inheritrange="1"/><intvelocity joint="b" kp="3" inheritrange="0.9"/>
        </actuator></mujoco>""",
}


@pytest.mark.parametrize("share", [0.0, 0.4, -0.4])
@pytest.mark.parametrize("name", sorted(TEXTS))
def test_every_value_comes_back_from_the_mjcf(name: str, share: float, tmp_path: Path) -> None:
    path = tmp_path / "model.xml"
    path.write_text(TEXTS[name])
    space = ParameterSet([f.parameter for f in find(path)[0]])
    physical = space.to_physical(
        (1 - abs(share)) * space.z_nominal + abs(share) * (space.z_max if share > 0 else space.z_min)
    )
    text, fault = corrected_mjcf(path, space, physical, {})
    assert fault == ""
    wanted, written = mujoco.MjModel.from_xml_path(str(path)), mujoco.MjModel.from_xml_string(text)
    binding = Binding(wanted, space, ())
    binding.write(wanted, physical, np.empty(0))
    for cells in binding.cells:
        a, b = (values(m, cells.field).reshape(-1)[cells.flat] for m in (wanted, written))
        size = np.abs(a).max() if cells.field.endswith(("quat", "pos", "eq_data")) else 1e-9
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=1e-6 * size, err_msg=cells.field)
    for field in ("actuator_ctrlrange", "actuator_actrange", "jnt_actfrclimited"):  # nobody wrote these
        np.testing.assert_allclose(values(written, field), values(wanted, field), rtol=2e-5)
