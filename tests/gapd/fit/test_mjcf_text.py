"""An MJCF text with values in it compiles to the corrected model, or names the parameter that it cannot hold."""

from __future__ import annotations

import os
from pathlib import Path

import mujoco
import numpy as np
import pytest

from gapd.fit.mjcf_text import corrected_mjcf, difference
from gapd.model.parameters import Parameter, ParameterSet, Target

TETRA = "v 0 0 0\nv 0.1 0 0\nv 0 0.1 0\nv 0 0 0.1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
MODEL = """<mujoco><compiler meshdir="assets" autolimits="true"/><include file="assets/mesh.xml"/>
  <worldbody><body name="arm" gravcomp="0.5"><joint name="a" axis="0 1 0" springref="10" damping="0.1"/>
    <joint name="b" axis="1 0 0"/><geom name="hull" type="mesh" mesh="tetra"/></body>
    <body name="ball" pos="1 0 0"><joint name="c" axis="0 1 0"/><geom name="round" size="0.1" pos="0.1 0 0"/></body>
  </worldbody>
  <actuator><position name="a" joint="a" kp="3" ctrlrange="-1 1" nsample="5" interp="linear" delay="0.002"/>
    <motor name="b" joint="b"/></actuator>
  <sensor><jointpos name="a" joint="a" nsample="5" interp="linear"/></sensor></mujoco>"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An MJCF with a mesh and an include in a folder beside it."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "tetra.obj").write_text(TETRA)
    (tmp_path / "assets" / "mesh.xml").write_text('<mujoco><asset><mesh file="tetra.obj"/></asset></mujoco>')
    path = tmp_path / "model.xml"
    path.write_text(MODEL)
    return path


def parameter(field: str, element: str, index: int = 0, value: float = 0.5, **other: bool) -> Parameter:
    name = f"{field}/{element}/{index}"
    return Parameter(name, value, value - 1, value + 1, (Target(field, element, index),), "", "linear", **other)


@pytest.mark.parametrize(
    ("field", "element", "index", "value"),
    [
        ("body_gravcomp", "arm", 0, 0.0),
        ("body_gravcomp", "ball", 0, 0.9),
        ("actuator_delay", "a", 0, 0.005),
        ("sensor_delay", "a", 0, 0.003),
        ("jnt_actfrcrange", "a", 1, 0.7),
        ("qpos_spring", "a", 0, 0.3),
        ("qpos0", "a", 0, 0.3),
        ("jnt_range", "b", 1, 0.4),
        ("actuator_biasprm", "a", 0, 0.2),
        ("geom_pos", "round", 0, 0.2),
        ("geom_size", "round", 0, 0.12),
    ],
)
def test_one_value_is_the_only_change(model: Path, field: str, element: str, index: int, value: float) -> None:
    text, fault = corrected_mjcf(model, ParameterSet([parameter(field, element, index)]), np.array([value]), {})
    assert fault == ""
    before, after = mujoco.MjModel.from_xml_path(str(model)), mujoco.MjModel.from_xml_string(text)
    changed = np.flatnonzero(~np.isclose(getattr(before, field).ravel(), getattr(after, field).ravel(), rtol=2e-5))
    assert changed.size == 1
    assert getattr(after, field).ravel()[changed[0]] == pytest.approx(value, rel=2e-5)
    for other in ("body_mass", "body_inertia", "body_ipos", "jnt_actfrclimited", "actuator_ctrlrange", "dof_damping"):
        np.testing.assert_allclose(getattr(after, other), getattr(before, other), rtol=2e-5, atol=1e-12)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(
    ("field", "element", "told"),
    [
        ("actuator_delay", "b", "MuJoCo refuses it (Error: setting delay > 0 without a history buffer"),
        ("jnt_axis", "b", "jnt_axis[1][0] comes back from the MJCF as 1, not 0.5"),
        ("jnt_springyield", "a", "jnt_plasticadr[0] comes back from the MJCF as 0, not -1"),
    ],
)
def test_what_no_mjcf_holds_is_told_with_its_parameter(
    model: Path, field: str, element: str, told: str, frozen: bool
) -> None:
    harmless = [parameter("dof_damping", name, value=0.2) for name in "abc"]
    space = ParameterSet([*harmless[:2], parameter(field, element, frozen=frozen), harmless[2]])
    _, fault = corrected_mjcf(model, space, space.nominal, {})
    assert fault.startswith(f"parameter {field}/{element}/0 = 0.5: {told}")


def test_meshes_are_found_from_where_the_text_stands(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = ParameterSet([parameter("dof_damping", "a")])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for folder in (model.parent, elsewhere, None):
        text, fault = corrected_mjcf(model, space, space.nominal, {}, folder)
        assert fault == ""
        assert ('meshdir="assets"' in text) == (folder == model.parent)
        written = (folder or elsewhere) / "written.xml"
        written.write_text(text)
        assert mujoco.MjModel.from_xml_path(os.fspath(written)).dof_damping[0] == 0.5


def test_an_mjcf_that_does_not_survive_alone_is_no_parameter_s_fault(model: Path) -> None:
    model.write_text(MODEL.replace("</worldbody>", "<body><joint name='x'/></body></worldbody>"))
    space = ParameterSet([parameter("dof_damping", "a"), parameter("dof_damping", "b")])
    _, fault = corrected_mjcf(model, space, space.nominal, {})
    assert fault.startswith("without any correction, MuJoCo refuses it (Error: mass and inertia of moving bodies")


def test_infinite_ranges_are_the_same_and_differ_from_finite_ones() -> None:
    """MuJoCo takes them; a difference of two is no number, and near to nothing is near to infinity."""
    joint = '<joint name="a" limited="true" range="-1 {}"/>'
    xml = f'<mujoco><worldbody><body>{joint}<geom size="1"/></body></worldbody></mujoco>'
    finite, endless, again = (mujoco.MjModel.from_xml_string(xml.format(end)) for end in ("1", "inf", "inf"))
    assert difference(endless, again) == ""
    assert "jnt_range[0][1]" in difference(endless, finite)
    assert "jnt_range[0][1]" in difference(finite, endless)
