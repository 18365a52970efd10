"""What is found in a model, with which bounds, what is left out and why, and what the file says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import enumeration_models as models
import msgspec
import mujoco
import numpy as np
import pytest
from mjcf_places import filled

from gapd.config import load_config
from gapd.errors import ConfigError
from gapd.model.binding import Binding
from gapd.model.parameters import ParameterSet
from gapd.model.robot import assemble
from gaptrain.enumeration.bodies import COM
from gaptrain.enumeration.entries import Item, elements
from gaptrain.enumeration.enumerate import enumerate_parameters, find
from gaptrain.enumeration.ranges import Range

MODELS = Path(__file__).parents[3] / "models"


def written(folder: Path, xml: str) -> tuple[ParameterSet, str]:
    """The set that the file of an MJCF gives, and its text."""
    path, out = folder / "model.xml", folder / "parameters.toml"
    path.write_text(xml)
    enumerate_parameters(path, out, force=True)
    return ParameterSet.from_toml(out), out.read_text()


def pendulum(joint: str = "", *, inside: str = "", outside: str = "", option: str = "", length: float = 1.0) -> str:
    """A ball of 1 kg on a rod of one metre, or another of the same shape and material."""
    mass = length**3
    return f"""<mujoco><compiler angle="radian" autolimits="true"/><option>{option}</option><worldbody>
      <body name="bob"> <joint name="j" axis="0 1 0" {joint}/> {inside}
        <inertial mass="{mass}" pos="0 0 {-length}" diaginertia="{" ".join([str(0.01 * mass * length**2)] * 3)}"/>
      </body></worldbody>{outside}</mujoco>"""


def omitted(text: str) -> str:
    """What a file says was left out, on one line."""
    lines = text.partition("# Left out:")[2].partition("\n\n")[0].splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines)


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_the_file_is_what_was_found_and_its_nominal_values_change_nothing(name: str, tmp_path: Path) -> None:
    xml = filled(models.MODELS[name], {})
    space, text = written(tmp_path, xml)
    found = {f.parameter.name: f.parameter for f in find(tmp_path / "model.xml")[0]}
    assert len(found) == len(space)
    for parameter in space.free:
        exact = found[parameter.name]
        assert parameter == msgspec.structs.replace(exact, min=parameter.min, max=parameter.max)
        np.testing.assert_allclose((parameter.min, parameter.max), (exact.min, exact.max), rtol=1e-3)
    before, model = (mujoco.MjModel.from_xml_string(xml) for _ in range(2))
    Binding(model, space, ()).write(model, space.nominal, np.empty(0))
    for field in ("body_mass", "body_inertia", "dof_damping", "jnt_stiffness", "actuator_gainprm", "eq_data", "qpos0"):
        np.testing.assert_allclose(getattr(model, field), getattr(before, field), rtol=1e-9, atol=1e-14, err_msg=field)
    for family in text.split("\n\n# ")[1:]:
        assert ": " in family.split("[[parameter]]")[0]  # where its bounds come from


def test_a_robot_takes_the_file(tmp_path: Path) -> None:
    config = load_config(MODELS / "arm7" / "robot.toml")
    enumerate_parameters(MODELS / "arm7" / "model.xml", tmp_path / "p.toml")
    space = ParameterSet.from_toml(tmp_path / "p.toml")
    model = mujoco.MjModel.from_xml_path(str(MODELS / "arm7" / "model.xml"))
    assert len(assemble(config, model, space).parameters) == len(space) > 250


def test_bounds_of_what_is_zero_grow_with_the_machine(tmp_path: Path) -> None:
    """Weight goes with the third power of the length, torque with the fourth, the speed of a fall with minus a half."""
    spaces = {length: written(tmp_path, pendulum(length=length))[0] for length in (1e-2, 1.0, 10.0)}
    largest = {length: dict(zip(s.names, s.max.tolist(), strict=True)) for length, s in spaces.items()}
    for attribute, power in (("frictionloss", 4), ("stiffness", 4), ("damping", 4.5), ("armature", 5)):
        one = largest[1.0][f"joint/j/{attribute}"]
        for length, values in largest.items():
            assert values[f"joint/j/{attribute}"] == pytest.approx(one * length**power, rel=2e-3), attribute
    assert largest[1.0]["joint/j/frictionloss"] == pytest.approx(0.3 * 9.81, rel=0.02)  # of the weight at one metre
    milligram = dict(zip(spaces[1e-2].names, spaces[1e-2].min.tolist(), strict=True))
    assert milligram["body/bob/mass"] == pytest.approx(5e-7)


def test_a_limited_actuator_says_more_about_a_joint_than_its_weight(tmp_path: Path) -> None:
    geared = pendulum(outside='<actuator><motor joint="j" gear="10" forcerange="-20 20"/></actuator>')
    space, _ = written(tmp_path, geared)
    assert dict(zip(space.names, space.max, strict=True))["joint/j/frictionloss"] == pytest.approx(60)
    unlimited, _ = written(tmp_path, geared.replace("20", "1e8"))
    assert dict(zip(unlimited.names, unlimited.max, strict=True))["joint/j/frictionloss"] < 300


def test_scales(tmp_path: Path) -> None:
    motor = '<actuator><motor joint="j" gear="-3"/></actuator>'
    space, _ = written(tmp_path, pendulum('damping="0.2" springref="-0.1"', outside=motor))
    found = {p.name: p for p in space.free}
    cells = {n: (p.nominal, p.min, p.max, p.scale) for n, p in found.items()}
    assert cells["joint/j/damping"] == (0.2, 0.02, 2, "log")
    assert cells["joint/j/springref"] == (-0.1, -0.6, 0.4, "linear")
    assert cells["joint/j/frictionloss"][::3] == (0, "asinh")
    assert cells["actuator/#0/gear"] == (-3, -4.5, -2, "asinh")
    assert cells["option/gravity_z"] == (-9.81, -10.79, -8.829, "linear")
    assert found["joint/j/damping"].unit == "N·m·s/rad"


BALL = '<geom name="ball" size="0.1"/>'
FREE = '<mujoco><worldbody><body name="box"><freejoint name="f"/><geom size="0.1"/></body></worldbody></mujoco>'
LEFT_OUT = {
    "static": (
        pendulum(outside='<worldbody><body name="table"><body name="cup"><geom size="1"/></body></body></worldbody>'),
        "does not move: it is fixed to the world: body/table/*, body/cup/*",
    ),
    "visual": (
        pendulum(inside='<geom name="shell" size="0.1" contype="0" conaffinity="0"/>'),
        "touches nothing whose contact would use its numbers: geom/shell/*",
    ),
    "lonely": (
        pendulum(inside='<geom name="ball" size="0.1"/><geom name="cap" size="0.1"/>'),
        "touches nothing whose contact would use its numbers: geom/ball/*, geom/cap/*",
    ),
    "condim": (
        pendulum(inside=BALL, outside='<worldbody><geom name="floor" size="1"/></worldbody>'),
        "acts in no contact of so few dimensions (condim): geom/floor/friction_spin, geom/floor/friction_roll",
    ),
    "override": (
        pendulum(inside=BALL, option='<flag override="enable"/>'),
        "<option> overrides contact parameters in the MJCF: geom/ball/*",
    ),
    "flag": (
        pendulum('stiffness="1"', option='<flag spring="disable"/>'),
        "is disabled by a flag of the MJCF: joint/j/stiffness, joint/j/stiffness_quadratic, joint/j/stiffness_cubic",
    ),
    "simple": (
        FREE,
        'MuJoCo keeps it at the frame of the body; <body simple="false"> in the MJCF frees it: body/box/com',
    ),
    "quaternion": (
        FREE,
        "is a quaternion in free and ball joints, not a number: joint/f/springref",
    ),
    "inactive": (
        pendulum(outside='<equality><joint name="lock" joint1="j" active="false"/></equality>'),
        "is not active in the MJCF: equality/lock/*",
    ),
    "group": (
        pendulum(outside='<actuator><motor name="m" joint="j" group="2"/></actuator>').replace(
            "<option>", '<option actuatorgroupdisable="2">'
        ),
        "its group is disabled in the MJCF: actuator/m/*",
    ),
    "muscle": (
        pendulum(outside='<actuator><muscle name="m" joint="j" lengthrange="0 1"/></actuator>'),
        "MuJoCo derives the length range of a muscle from it when it compiles: actuator/m/gear",
    ),
    "cogging": (
        pendulum(outside='<actuator><dcmotor name="m" joint="j" resistance="1" motorconst="1"/></actuator>'),
        "the MJCF gives no number of poles: actuator/m/cogging",
    ),
    "user": (
        pendulum(outside='<actuator><general name="m" joint="j" gaintype="user"/></actuator>'),
        "a callback of the user computes its force: actuator/m/gain, bias",
    ),
    "name": (
        pendulum(inside=f'<geom name="{"n" * 201}" size="0.1"/>'),
        "its name must have at most 200 characters, has 201: geom/#0/*",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(LEFT_OUT))
def test_what_cannot_matter_is_left_out_with_the_reason(case: str, tmp_path: Path) -> None:
    xml, reason = LEFT_OUT[case]
    space, text = written(tmp_path, xml)
    assert reason in omitted(text)
    names = reason.rsplit(": ", 1)[1].replace("*", "").split(", ")
    assert not any(found.startswith(name) for found in space.names for name in names if name.endswith("/"))


def test_a_body_that_is_not_simple_has_all_ten_numbers(tmp_path: Path) -> None:
    space, _ = written(tmp_path, FREE.replace('name="box"', 'name="box" simple="false"'))
    assert sum(name.startswith("body/box/") for name in space.names) == 10 + 1  # and gravity compensation


def test_frames_without_mass_and_plates_without_thickness_may_get_some(tmp_path: Path) -> None:
    space, _ = written(tmp_path, pendulum(inside='<body name="frame"/>'))
    assert dict(zip(space.names, space.max, strict=True))["body/frame/mass"] == pytest.approx(0.1)
    plate = pendulum().replace("0.01 0.01 0.01", "0.01 0.02 0.03")
    space, _ = written(tmp_path, plate)
    found = {p.name: p for p in space.free}
    assert (found["body/bob/spread_3"].nominal, found["body/bob/spread_3"].scale) == (0, "asinh")


def test_what_mujoco_refuses_is_left_out_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a centre of mass that it keeps in place: the rule for that is switched off."""

    def careless(model: mujoco.MjModel) -> Iterator[Item]:
        for element in list(elements(model, "body"))[1:]:
            for part in ("mass", "com"):
                yield element.item(COM, part, "", Range(0.1, 0.05, 0.2, "log"), element.target(f"inertia.{part}"))

    monkeypatch.setattr("gaptrain.enumeration.enumerate.bodies", careless)
    space, text = written(tmp_path, FREE)
    assert "body/box/mass" in space.names
    assert "body/box/com" not in space.names
    assert re.search(r"is refused by MuJoCo \(.* compiled as simple .*\): body/box/com", omitted(text))


WINCH = """<mujoco><worldbody> <site name="a" pos="0 0 1"/>
  <body name="box" pos="0.2 0 0.5"><joint name="x" type="slide" axis="1 0 0"/><joint type="slide" axis="0 1 0"/>
    <geom name="box" size="0.1"/><site name="b"/></body>
  <body name="own" pos="3 0 0.5"><joint name="y" axis="1 0 0"/><geom size="0.1" pos="0 0 0.1"/></body> </worldbody>
  <tendon>
    <spatial name="cable"><site site="a"/><site site="b"/></spatial>
    <fixed name="own"><joint joint="y" coef="1"/></fixed>
  </tendon>
  <actuator><motor name="winch" tendon="cable" damping="1"/></actuator></mujoco>"""


def test_armature_that_mujoco_would_simulate_wrongly_is_left_out(tmp_path: Path) -> None:
    """The mass matrix of a simple body has no place for what couples its coordinates, and nothing says so."""
    space, text = written(tmp_path, WINCH)
    assert {"tendon/cable/stiffness", "tendon/own/armature", "actuator/winch/damping"} <= set(space.names)
    reason = 'would couple a simple body; <body simple="false"> in the MJCF frees it'
    assert f"{reason}: actuator/winch/armature, tendon/cable/armature" in omitted(text)
    freed, _ = written(tmp_path, WINCH.replace('<body name="box"', '<body name="box" simple="false"'))
    assert {"tendon/cable/armature", "actuator/winch/armature"} <= set(freed.names)


NO_JOINTS = "<mujoco><worldbody><geom size='1'/></worldbody></mujoco>"
SWINGS = """<mujoco>{option}<worldbody>
  <body><joint {first} axis="0 1 0" {damping}/><geom size="0.1" pos="0.1 0 0"/></body>
  <body><joint {second} axis="0 1 0"/><geom size="0.1" pos="0.1 0 0"/></body></worldbody></mujoco>"""


def swings(first: str = 'name="a"', second: str = 'name="b"', damping: str = "", option: str = "") -> str:
    """Two joints."""
    return SWINGS.format(first=first, second=second, damping=damping, option=option)


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        (None, "model.xml: no such file; correct the path"),
        ("<mujoco><worldbody>", "model.xml: does not compile: XML parse error"),
        (NO_JOINTS, "model.xml: has no joints, so that nothing moves and no number matters; add joints"),
        ("", "model.xml: does not compile: ParseXML: empty file"),
        (swings(damping='damping="nan"'), "model.xml: dof_damping holds nan; mend the MJCF"),
        (swings(damping='ref="inf"'), "model.xml: qpos0 holds inf; mend the MJCF"),
        (swings(option='<option gravity="0 0 nan"/>'), "model.xml: opt.gravity holds nan; mend the MJCF"),
        (
            swings(option='<option timestep="0"/>'),
            "model.xml: option timestep = 0.0 must be a time in seconds from 1e-06",
        ),
        (
            swings(option='<size memory="1"/>'),
            "model.xml: does not compile: Error: engine error: mj_stackAlloc: out of",
        ),
        (swings(second='name="\udcff"'), "model.xml: name '\\xff' is not in UTF-8; save the MJCF as UTF-8"),
        (
            swings("", 'name="#0"'),
            "model.xml: a joint is named '#0', which is what the joint without a name there is cal",
        ),
    ],
)
def test_models_that_cannot_be_enumerated(xml: str | None, message: str, tmp_path: Path) -> None:
    if xml is not None:
        (tmp_path / "model.xml").write_text(xml, errors="surrogateescape")
    with pytest.raises(ConfigError) as caught:
        enumerate_parameters(tmp_path / "model.xml", tmp_path / "parameters.toml")
    assert message in str(caught.value)
    assert not (tmp_path / "parameters.toml").exists()


def test_an_output_is_not_replaced_unasked(tmp_path: Path) -> None:
    written(tmp_path, pendulum())
    model, out = tmp_path / "model.xml", tmp_path / "parameters.toml"
    out.write_text("# edited by hand")
    with pytest.raises(ConfigError, match=r"parameters.toml: exists; name another file with --out, or replace it with"):
        enumerate_parameters(model, out)
    assert out.read_text() == "# edited by hand"
    with pytest.raises(ConfigError, match=r"no folder .*missing; make it, or name another"):
        enumerate_parameters(model, tmp_path / "missing" / "p.toml")


def test_neither_the_model_nor_a_folder_is_replaced_by_force(tmp_path: Path) -> None:
    model, text = tmp_path / "model.xml", pendulum()
    model.write_text(text)
    (tmp_path / "link.toml").symlink_to(model)
    for out in (model, tmp_path / "link.toml"):
        with pytest.raises(ConfigError, match="is the model itself; name another file with --out"):
            enumerate_parameters(model, out, force=True)
    for out in (tmp_path, Path("/dev/null")):
        with pytest.raises(ConfigError, match="is no file; name one with --out"):
            enumerate_parameters(model, out, force=True)
    assert model.read_text() == text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.toml", "model.xml"]


def test_a_file_too_large_to_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gaptrain.enumeration.enumerate.MAX_BYTES", 1000)
    with pytest.raises(ConfigError, match="parameters fill more than 1000 bytes; tie some with --tie"):
        written(tmp_path, pendulum())


def test_names_of_elements_may_hold_anything_that_prints(tmp_path: Path) -> None:
    space, _ = written(tmp_path, pendulum().replace('name="bob"', 'name="b&quot;o\\b/ü #"'))
    assert 'body/b"o\\b/ü #/mass' in space.names
    model = mujoco.MjModel.from_xml_path(str(tmp_path / "model.xml"))
    Binding(model, space, ()).write(model, space.max, np.empty(0))
    assert model.body_mass[1] == 2.0
