"""Inertia targets: whatever the values, the body can exist, and every simulation of a batch gets the same one."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
from mujoco import batch
from numpy.typing import NDArray

from gapd.errors import ConfigError
from gapd.model.binding import Binding
from gapd.model.inertia import PARTS, cells_of, numbers_of, quaternion, rotation_vector
from gapd.model.parameters import Parameter, ParameterSet, Target

Array = NDArray[np.float64]

MODEL = """
<mujoco>
  <worldbody>
    <body name="arm">
      <inertial mass="2" pos="0.02 0.01 -0.1" quat="0.9 0.3 -0.2 0.1" diaginertia="0.02 0.03 0.015"/>
      <joint name="a" axis="0 1 0"/>
      <body name="hand" pos="0 0 -0.2">
        <inertial mass="0.5" pos="0 0 -0.1" diaginertia="2e-3 1e-3 1e-3"/>
        <joint name="b" axis="1 0 0"/>
        <body name="frame"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
UNIT = {
    "inertia.mass": (0.5, 5.0),
    "inertia.com": (-0.3, 0.3),
    "inertia.spread": (0.0, 0.4),
    "inertia.axes": (-1.0, 1.0),
}


def arm() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(MODEL)


def parameter(field: str, index: int = 0, element: str = "arm", **changes: object) -> Parameter:
    low, high = UNIT.get(field, (0.1, 10.0))
    values = {
        "name": f"{element}/{field}/{index}",
        "nominal": high,
        "min": low,
        "max": high,
        "scale": "linear",
    } | changes
    factor = values.pop("factor", ())
    return Parameter(targets=(Target(field, element, index, factor),), **values)  # type: ignore[arg-type]


def all_ten(element: str = "arm") -> list[Parameter]:
    return [parameter(field, k, element) for field, (_, size) in PARTS.items() for k in range(size)]


def pseudo_inertia(model: mujoco.MjModel, body: int) -> Array:
    """The 4 x 4 matrix of second and first moments and mass about the frame of the body, from MuJoCo's fields."""
    turn = np.empty(9)
    mujoco.mju_quat2Mat(turn, model.body_iquat[body])
    turn = turn.reshape(3, 3)
    about_com = turn @ np.diag(model.body_inertia[body]) @ turn.T
    mass, com = model.body_mass[body], model.body_ipos[body]
    second = np.trace(about_com) / 2 * np.eye(3) - about_com + mass * np.outer(com, com)
    return np.block([[second, mass * com[:, None]], [mass * com[None], np.array([[mass]])]])


def test_any_values_within_bounds_are_a_body_that_can_exist() -> None:
    model, space = arm(), ParameterSet(all_ten())
    binding = Binding(model, space, ())
    corners = np.where(np.random.default_rng(2).random((100, 10)) < 0.5, space.min, space.max)
    for values in np.concatenate([space.draw(np.random.default_rng(1), 200), corners]):
        binding.write(model, values, np.empty(0))
        a, b, c = model.body_inertia[1]
        assert min(a + b - c, b + c - a, c + a - b) >= -1e-15
        matrix = pseudo_inertia(model, 1)
        assert np.linalg.eigvalsh(matrix).min() >= -1e-12
        assert matrix[3, 3] == values[0]
        np.testing.assert_allclose(matrix[:3, 3], values[0] * values[1:4])


def test_numbers_are_those_of_the_model() -> None:
    model = arm()
    numbers = numbers_of(model, 1)
    mass, ipos, inertia, iquat = np.split(cells_of(numbers), [1, 4, 7])
    np.testing.assert_allclose(np.r_[mass, ipos], np.r_[model.body_mass[1], model.body_ipos[1]])
    np.testing.assert_allclose(inertia, model.body_inertia[1])
    np.testing.assert_allclose(iquat, model.body_iquat[1])
    # a box of half extents h has a spread of h / sqrt(3)
    box = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><body><freejoint/><geom type="box" size="0.3 0.1 0.2"/></body></worldbody></mujoco>'
    )
    np.testing.assert_allclose(sorted(numbers_of(box, 1)[4:7]), np.array([0.1, 0.2, 0.3]) / np.sqrt(3))


def test_rotation_vectors_and_quaternions_are_inverse() -> None:
    rng = np.random.default_rng(3)
    for length in (0.0, 1e-12, 0.3, 2.0, np.pi - 1e-6):
        vector = rng.normal(size=3)
        vector *= length / np.linalg.norm(vector)
        np.testing.assert_allclose(rotation_vector(quaternion(vector)), vector, rtol=1e-7, atol=1e-15)
        np.testing.assert_allclose(rotation_vector(-quaternion(vector)), vector, rtol=1e-7, atol=1e-15)
        expected = np.empty(4)
        mujoco.mju_axisAngle2Quat(expected, vector / length if length else np.eye(3)[0], length)
        np.testing.assert_allclose(quaternion(vector), expected, atol=1e-15)


def test_mass_takes_the_inertia_with_it_and_leaves_the_rest() -> None:
    model, before = arm(), arm()
    Binding(model, ParameterSet([parameter("inertia.mass")]), ()).write(model, np.array([3.0]), np.empty(0))
    np.testing.assert_allclose(model.body_inertia[1], 1.5 * before.body_inertia[1])
    np.testing.assert_array_equal(model.body_ipos, before.body_ipos)
    np.testing.assert_array_equal(model.body_iquat, before.body_iquat)
    assert model.body_subtreemass[0] == 3.5  # constants are derived anew


def test_values_are_absolute_whatever_the_model_had() -> None:
    space = ParameterSet(all_ten())
    once, twice = arm(), arm()
    one, other = space.draw(np.random.default_rng(4), 2)
    Binding(once, space, ()).write(once, other, np.empty(0))
    Binding(twice, space, ()).write(twice, one, np.empty(0))
    Binding(twice, space, ()).write(twice, other, np.empty(0))
    for field in ("body_mass", "body_ipos", "body_inertia", "body_iquat"):
        np.testing.assert_array_equal(getattr(twice, field), getattr(once, field))


def test_a_batch_gets_in_each_simulation_what_a_model_gets() -> None:
    model = arm()
    damping = Parameter("b/damping", 1.0, 0.1, 2.0, (Target("dof_damping", "b"),))
    ordinary = Parameter("hand/gravcomp", 0.5, 0.1, 2.0, (Target("body_gravcomp", "hand"),))
    fixed = parameter("inertia.spread", 1, "hand", nominal=0.2, frozen=True)
    space = ParameterSet(
        [damping, *all_ten(), ordinary, parameter("inertia.mass", 0, "hand", factor=(0.5, 2.0)), fixed]
    )
    binding = Binding(model, space, ())
    physical = space.draw(np.random.default_rng(5), 7)
    sims = batch.Batch(model, 7, 2)
    for cells in binding.cells:
        field = sims.expand(cells.field).reshape(7, -1)
        field[:, cells.flat] = binding.values(cells, physical, np.empty((7, 0)))
    sims.set_const()
    for row, values in enumerate(physical):
        single = arm()
        binding.write(single, values, np.empty(0))
        for cells in binding.cells:
            np.testing.assert_array_equal(sims.expand(cells.field)[row], getattr(single, cells.field))
        np.testing.assert_array_equal(sims.expand("dof_invweight0")[row], single.dof_invweight0)
        assert single.body_inertia[2, 0] == pytest.approx(
            single.body_mass[2] * (0.2**2 + numbers_of(arm(), 2)[6] ** 2)
        )  # the frozen spread is written too


def test_one_group_of_cells_for_each_field() -> None:
    model = arm()
    ordinary = Parameter("hand/mass", 1.0, 0.1, 2.0, (Target("body_mass", "hand"),))
    binding = Binding(model, ParameterSet([ordinary, parameter("inertia.mass"), parameter("inertia.axes", 1)]), ())
    assert [c.field for c in binding.cells] == ["body_mass", "body_inertia", "body_iquat"]
    mass = binding.cells[0]
    assert (mass.flat.tolist(), mass.owner.tolist(), mass.context) == ([2, 1], [0, 1], ((), ()))
    assert binding.cells[2].owner.tolist() == [-1, -1, 2, -1]
    assert binding.needs_set_const


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            [parameter("inertia.com", 2), parameter("body_inertia", 1)],
            "body_inertia and inertia.com of arm both write its inertia; use body_* or inertia.* for one body, not",
        ),
        (
            [parameter("body_mass", frozen=True), parameter("inertia.axes", 0)],
            "parameters arm/body_mass/0 and arm/inertia.axes/0: body_mass and inertia.axes of arm both write",
        ),
        (
            [parameter("inertia.com", 1, name="p"), parameter("inertia.com", 1, name="q")],
            "parameters p and q both write inertia.com of arm; make them one parameter with two targets",
        ),
        (
            [parameter("inertia.foo")],
            "field 'inertia.foo' is no part of an inertia; did you mean",
        ),
        (
            [parameter("inertia.spred")],
            "field 'inertia.spred' is no part of an inertia; ",
        ),
        ([parameter("inertia.com", 3)], "index 3 of inertia.com is outside 0 .. 2"),
        ([parameter("inertia.mass", 1)], "index 1 of inertia.mass is outside 0 .. 0"),
        (
            [parameter("inertia.mass", 0, "amr")],
            "body 'amr' is not in the model; did you",
        ),
        (
            [parameter("inertia.mass", factor=("payload",))],
            "inertia.mass of arm takes numbers as factors, not 'payload'; write body_mass",
        ),
        (
            [parameter("inertia.mass", 0, "frame")],
            "inertia.mass of frame scales a mass of 0; give the body a mass in the MJCF",
        ),
        (
            [parameter("inertia.mass", min=-1.0)],
            "inertia.mass of arm must stay above 0, not go down to -1; correct its bounds",
        ),
        (
            [parameter("inertia.spread", 2, factor=(-1.0,))],
            "inertia.spread of arm must not be negative, as -0.4 is; correct its bounds",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(parameters: list[Parameter], message: str) -> None:
    free = Parameter("free", 1.0, 0.1, 2.0, (Target("dof_damping", "a"),))
    with pytest.raises(ConfigError) as caught:
        Binding(arm(), ParameterSet([free, *parameters]), ("payload",))
    assert message in str(caught.value)


def test_body_targets_of_other_bodies_keep_working() -> None:
    model = arm()
    space = ParameterSet([parameter("inertia.mass"), Parameter("h", 1.0, 0.1, 2.0, (Target("body_mass", "hand"),))])
    Binding(model, space, ()).write(model, np.array([3.0, 0.7]), np.empty(0))
    assert model.body_mass.tolist() == [0.0, 3.0, 0.7, 0.0]
