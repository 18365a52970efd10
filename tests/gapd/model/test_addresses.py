"""Targets reach elements without a name, and every row of those that have several."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from gapd.errors import ConfigError
from gapd.model.binding import Binding
from gapd.model.model_fields import values
from gapd.model.parameters import Parameter, ParameterSet, Target

UNNAMED = """
<mujoco>
  <compiler angle="radian"/>
  <worldbody>
    <body name="root"> <freejoint name="free"/> <geom size="0.1"/> </body>
    <body> <joint axis="1 0 0" damping="0.1"/> <geom size="0.1"/>
      <body> <joint name="ball" type="ball"/> <geom size="0.1"/> </body>
    </body>
    <body name="#5"> <joint/> <geom size="0.1"/> </body>
  </worldbody>
  <actuator> <orientation name="servo" joint="ball"/> <motor joint="ball" gear="1 2 3"/> </actuator>
</mujoco>
"""


def bound(model: mujoco.MjModel, target: Target) -> Binding:
    return Binding(model, ParameterSet([Parameter("p", 1.0, 0.1, 10.0, (target,))]), ())


@pytest.mark.parametrize(
    ("target", "field", "flat"),
    [
        (Target("dof_damping", "#1"), "dof_damping", 6),  # after the six of the free joint
        (Target("body_mass", "#2"), "body_mass", 2),
        (Target("body_mass", "#5"), "body_mass", 4),  # a name, even if it looks like a number
        (Target("dof_damping", "free", 5), "dof_damping", 5),
        (Target("dof_dampingpoly", "ball", 5), "dof_dampingpoly", 2 * (7 + 2) + 1),
        (Target("qpos_spring", "ball", 3), "qpos_spring", 8 + 3),
        (Target("actuator_gear", "servo", 17), "actuator_gear", 17),  # three outputs
        (Target("actuator_gear", "#1", 2), "actuator_gear", 18 + 2),
        (Target("actuator_ctrlrange", "#1", 1), "actuator_ctrlrange", 6 + 1),  # after three controls
    ],
)
def test_elements_without_a_name_and_with_several_rows(target: Target, field: str, flat: int) -> None:
    model = mujoco.MjModel.from_xml_string(UNNAMED)
    binding = bound(model, target)
    binding.write(model, np.array([7.5]), np.empty(0))
    assert [i for i, v in enumerate(values(model, field).reshape(-1)) if v == 7.5] == [flat]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (Target("dof_damping", "#2"), "parameter p: joint '#2' has a name; write element = 'ball'"),
        (Target("dof_damping", "#4"), "parameter p: joint '#4' is not in the model, which has 4"),
        (Target("body_mass", "#-1"), "parameter p: body '#-1' is not in the model; known: #5, root, world"),
        (Target("geom_friction", "x"), "parameter p: geom 'x' is not in the model; address one without a name by its"),
        (Target("dof_damping", "ball", 3), "parameter p: index 3 of dof_damping is outside 0 .. 2"),
        (Target("actuator_gear", "#1", 6), "parameter p: index 6 of actuator_gear is outside 0 .. 5"),
    ],
)
def test_numbers_of_elements_that_do_not_fit(target: Target, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bound(mujoco.MjModel.from_xml_string(UNNAMED), target)
    assert str(caught.value).startswith(message)
