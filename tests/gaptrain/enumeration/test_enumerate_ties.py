"""Parameters that share a value or a factor."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from gapd.errors import ConfigError
from gapd.model.binding import Binding
from gapd.model.parameters import ParameterSet
from gaptrain.enumeration.enumerate import enumerate_parameters

LEGS = """<mujoco><compiler angle="radian"/><worldbody>
  <body name="front"><joint name="fl" frictionloss="0.1" damping="1"/><geom size="0.1"/></body>
  <body name="back"><joint name="fr" frictionloss="0.1" damping="2"/><geom size="0.1"/></body>
  <body name="rail"><joint name="rail" type="slide" frictionloss="0.3"/><geom size="0.1"/></body>
</worldbody></mujoco>"""


def written(folder: Path, xml: str, *ties: str) -> ParameterSet:
    """The set that the file of an MJCF gives."""
    path, out = folder / "model.xml", folder / "parameters.toml"
    path.write_text(xml)
    enumerate_parameters(path, out, ties)
    return ParameterSet.from_toml(out)


def test_tied_parameters_share_a_value_or_a_factor(tmp_path: Path) -> None:
    space = written(tmp_path, LEGS, "joint/f?/frictionloss", "joint/f*/damping", "joint/f?/stiffness")
    found = {p.name: p for p in space.free}
    friction, damping = found["joint/f?/frictionloss"], found["joint/f*/damping"]
    assert (friction.nominal, friction.min, friction.max, friction.unit) == (0.1, 0.01, 1, "N·m")
    assert (damping.nominal, damping.min, damping.max, damping.unit, damping.scale) == (1, 0.1, 10, "1", "log")
    assert found["joint/f?/stiffness"].nominal == 0
    assert "joint/fl/damping" not in found
    model = mujoco.MjModel.from_xml_string(LEGS)
    Binding(model, space, ()).write(model, space.vector({friction.name: 0.5, damping.name: 3.0}), np.empty(0))
    assert model.dof_frictionloss.tolist() == [0.5, 0.5, 0.3]
    assert model.dof_damping.tolist() == [3.0, 6.0, 0.0]


@pytest.mark.parametrize(
    ("ties", "message"),
    [
        (["joint/*/frictionlos"], "--tie 'joint/*/frictionlos': no parameter has such a name; did you mean 'joint/"),
        (["joint/*/frictionloss"], "--tie 'joint/*/frictionloss': units N and N·m cannot share a value; narrow it"),
        (["joint/f*/damping", "joint/*l/damping"], "--tie 'joint/*l/damping': joint/fl/damping matches 'joint/f*/damp"),
        (
            ["*/gravcomp", "joint/*/damp*"],
            "--tie 'joint/*/damp*': units N·m·s/rad and N·m·s²/rad² and N·m·s³/rad³ and N·s/m and N·s²/m² and N·s³/m³ ",
        ),
    ],
)
def test_ties_that_make_no_sense(ties: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        written(tmp_path, LEGS, *ties)
    assert str(caught.value).startswith(message)


def test_nothing_and_something_cannot_be_tied(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"joint/fl/damping is 0 in the model and joint/fr/damping is 2, so that"):
        written(tmp_path, LEGS.replace('damping="1"', ""), "joint/f?/damping")


HARD, SOFT = "0.9999 0.9999 0.001 0.5 2", "0.0001 0.0001 0.001 0.5 2"
STOPS = f"""<mujoco><compiler angle="radian" autolimits="true"/><worldbody>
  <body><joint name="a1" range="-1 1" damping="1e-13" solimplimit="{HARD}"/><geom size="0.1" pos="0 0.1 0"/></body>
  <body><joint name="a[1]" range="-1 1" damping="2e-18" solimplimit="{SOFT}"/><geom size="0.1" pos="0 0.1 0"/></body>
</worldbody></mujoco>"""


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("", "no parameter has such a name; known: "),
        ("joint/[", "no parameter has such a name; "),
        (
            "joint/*/damping",
            "together they are no parameter (parameter 'joint/*/damping': factor = 2e-18 must be a fact",
        ),
        (
            "joint/*/limit_impedance_end",
            "together they are no parameter (parameter joint/*/limit_impedance_end: min 1.0 ",
        ),
        (f"joint/{'*' * 200}/armature", "together they are no parameter (parameter 'joint/"),
        ("joint/a[1]/armature", "is a name that it does not match: [ begins a set; write 'joint/a[[]1]/armature'"),
    ],
)
def test_a_tie_that_makes_no_parameter_is_refused(pattern: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        written(tmp_path, STOPS, pattern)
    assert str(caught.value).startswith(f"--tie {pattern!r}: {message}")
    assert not (tmp_path / "parameters.toml").exists()


def test_a_name_with_brackets_can_be_tied(tmp_path: Path) -> None:
    space = written(tmp_path, STOPS, "joint/a[[]1]/armature", "joint/a*/frictionloss")
    found = {p.name: p for p in space.free}
    assert len(found["joint/a[[]1]/armature"].targets) == 1
    assert len(found["joint/a*/frictionloss"].targets) == 2
    assert "joint/a1/armature" in found
