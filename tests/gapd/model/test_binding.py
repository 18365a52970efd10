"""Binding: writing into MjModel in place is just what a recompiled MJCF would have, and nothing else is a target."""

from __future__ import annotations

from collections.abc import Iterator

import mujoco
import numpy as np
import pytest
from numpy.typing import NDArray

from gapd.errors import ConfigError
from gapd.model.binding import Binding
from gapd.model.model_fields import tunable, values
from gapd.model.parameters import Parameter, ParameterSet, Target

Array = NDArray[np.float64]

MODEL = """
<mujoco>
  <compiler angle="radian" autolimits="true"/>
  <option timestep="0.002" integrator="implicitfast" gravity="0 0 {gravity}"/>
  <worldbody>
    <body name="arm">
      <inertial mass="{mass}" pos="0 0 -0.1" diaginertia="{inertia}"/>
      <joint name="a" axis="0 1 0" damping="{damping}" armature="{armature}" frictionloss="0.1" ref="{ref}"/>
      <body name="hand" pos="0 0 -0.2">
        <inertial mass="0.5" pos="0 0 -0.1" diaginertia="1e-3 1e-3 1e-3"/>
        <joint name="b" axis="1 0 0" damping="0.2"/>
        <geom name="tip" size="0.02" pos="0 0 -0.2" friction="{slide} 0.005 0.0001"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="a" joint="a" kp="{kp}" kv="2"/>
    <motor name="b" joint="b" gear="{gear}"/>
  </actuator>
</mujoco>
"""
DEFAULTS = {
    "mass": 2.0, "inertia": "0.02 0.03 0.01", "damping": 0.5, "armature": 0.01, "ref": 0.0, "kp": 50.0,
    "gear": 3.0, "slide": 1.0, "gravity": -9.81,
}  # fmt: skip


def model_with(**changes: object) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(MODEL.format(**(DEFAULTS | changes)))


def parameter(*targets: Target, name: str = "p", **changes: object) -> Parameter:
    values = {"nominal": 1.0, "min": 0.1, "max": 10.0} | changes
    return Parameter(name=name, targets=targets, **values)  # type: ignore[arg-type]


def bound(model: mujoco.MjModel, *parameters: Parameter, context: tuple[str, ...] = ()) -> Binding:
    return Binding(model, ParameterSet(parameters), context)


def arrays(model: mujoco.MjModel) -> Iterator[tuple[str, Array]]:
    """Every array of the model and of its options. Its statistics (`stat`) only the compiler updates."""
    for prefix, holder in (("", model), ("opt.", model.opt)):
        for name in dir(holder):
            if name.startswith("_"):
                continue
            value = getattr(holder, name)
            if isinstance(value, float) or (isinstance(value, np.ndarray) and value.dtype.kind in "fiub"):
                yield prefix + name, np.asarray(value)


def differences(a: mujoco.MjModel, b: mujoco.MjModel) -> set[str]:
    pairs = zip(arrays(a), arrays(b), strict=True)
    return {name for (name, x), (_, y) in pairs if not np.allclose(x, y, rtol=1e-10, atol=1e-14)}


@pytest.mark.parametrize(
    ("changes", "value", "targets"),
    [
        ({"damping": 1.7}, 1.7, [Target("dof_damping", "a")]),
        ({"armature": 0.05}, 0.05, [Target("dof_armature", "a")]),
        (
            {"mass": 3.0, "inertia": "0.03 0.045 0.015"},  # at constant shape: inertia per kg is kept
            3.0,
            [
                Target("body_mass", "arm"),
                Target("body_inertia", "arm", 0, (0.01,)),
                Target("body_inertia", "arm", 1, (0.015,)),
                Target("body_inertia", "arm", 2, (0.005,)),
            ],
        ),
        (
            {"kp": 80.0},
            80.0,
            [Target("actuator_gainprm", "a"), Target("actuator_biasprm", "a", 1, (-1.0,))],
        ),
        ({"ref": 0.3}, 0.3, [Target("qpos0", "a")]),
        ({"gear": 4.0}, 4.0, [Target("actuator_gear", "b")]),
        ({"slide": 0.4}, 0.4, [Target("geom_friction", "tip")]),
        ({"gravity": -9.5}, -9.5, [Target("opt.gravity", index=2)]),
    ],
)
def test_writing_in_place_is_recompiling(changes: dict[str, object], value: float, targets: list[Target]) -> None:
    wanted, model = model_with(**changes), model_with()
    assert differences(wanted, model) != set()  # the change shows at all
    binding = bound(model, parameter(*targets, nominal=value, min=-20, max=100, scale="asinh"))
    binding.write(model, np.array([value]), np.empty(0))
    assert differences(wanted, model) == set()


def test_writing_again_replaces() -> None:
    model = model_with()
    binding = bound(model, parameter(Target("dof_damping", "a", factor=(2.0, 3.0)), Target("dof_damping", "b")))
    for value in (0.7, 0.4, 0.7):
        binding.write(model, np.array([value]), np.empty(0))
    np.testing.assert_allclose(model.dof_damping, [4.2, 0.7])


def test_one_parameter_may_tie_several_fields_and_context() -> None:
    model = model_with()
    factor = (0.5, "volts", "enabled")
    binding = bound(
        model,
        parameter(
            Target("actuator_gainprm", "a", 0, factor),
            Target("actuator_biasprm", "a", 1, (-1.0, *factor)),
            Target("actuator_gear", "b", 0, ("volts",)),
        ),
        context=("enabled", "other", "volts"),
    )
    assert binding.context_used == (0, 2)
    binding.write(model, np.array([4.0]), np.array([1.0, 99.0, 7.0]))
    assert (model.actuator_gainprm[0, 0], model.actuator_biasprm[0, 1]) == (14.0, -14.0)
    assert model.actuator_gear[1, 0] == 28.0
    assert model.actuator_biasprm[0, 2] == -2.0  # kv untouched
    binding.write(model, np.array([4.0]), np.array([0.0, 99.0, 7.0]))
    assert model.actuator_gainprm[0, 0] == 0.0


def test_values_for_many_rows_at_once() -> None:
    binding = bound(
        model_with(),
        parameter(Target("dof_damping", "a", factor=("x",)), name="p"),
        parameter(Target("dof_damping", "b"), name="q"),
        context=("x",),
    )
    (cells,) = binding.cells
    got = binding.values(cells, np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[10.0], [100.0]]))
    np.testing.assert_array_equal(got, [[10, 2], [300, 4]])


def test_frozen_parameter_lets_a_context_write_a_field() -> None:
    model = model_with()
    binding = bound(
        model,
        parameter(Target("dof_damping", "a"), name="free"),
        parameter(Target("body_mass", "hand", factor=("payload",)), name="known", frozen=True),
        context=("payload",),
    )
    assert binding.parameters.names == ("free",)
    binding.write(model, np.array([0.9]), np.array([1.25]))
    assert model.body_mass[2] == 1.25
    assert model.dof_damping[0] == 0.9


def test_set_const_is_needed_exactly_where_derived_values_depend() -> None:
    model = model_with()
    assert bound(model, parameter(Target("body_mass", "hand"))).needs_set_const
    assert not bound(model, parameter(Target("actuator_gainprm", "a"))).needs_set_const


def test_two_parameters_on_one_cell_are_refused() -> None:
    with pytest.raises(ConfigError, match="parameters p and q both write dof_damping of b"):
        bound(
            model_with(),
            parameter(Target("dof_damping", "a"), Target("dof_damping", "b"), name="p"),
            parameter(Target("dof_damping", "b"), name="q"),
        )


def test_one_parameter_twice_on_one_cell_is_refused() -> None:
    with pytest.raises(ConfigError, match="parameters p and p both write dof_damping of a"):
        bound(model_with(), parameter(Target("dof_damping", "a"), Target("dof_damping", "a", factor=(2.0,))))


def test_frozen_parameters_claim_their_cells_too() -> None:
    with pytest.raises(ConfigError, match="both write body_mass of hand"):
        bound(
            model_with(),
            parameter(Target("body_mass", "hand"), name="p"),
            parameter(Target("body_mass", "hand"), name="q", frozen=True),
        )


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            Target("dof_dampng", "a"),
            "parameter p: field 'dof_dampng' is no field of MjModel; did you mean 'dof_damping'?",
        ),
        (Target("body", "arm"), "parameter p: field 'body' is no field of MjModel; did you mean 'body_pos'?"),
        (Target("xyz", "arm"), "parameter p: field 'xyz' is no field of MjModel; name one such as dof_damping"),
        (
            Target("opt.gravty"),
            "parameter p: field 'opt.gravty' is no option that a robot may have otherwise; opt.gravity",
        ),
        (Target("opt.timestep"), "parameter p: field 'opt.timestep' is no option that a robot may have otherwise"),
        (Target("opt.solver"), "parameter p: field 'opt.solver' is no option"),
        (Target("dof_damping", "c"), "parameter p: joint 'c' is not in the model; known: a, b"),
        (Target("body_mass", "han"), "parameter p: body 'han' is not in the model; did you mean 'hand'?"),
        (Target("actuator_gear", "x"), "parameter p: actuator 'x' is not in the model; known: a, b"),
        (Target("geom_friction", "tp"), "parameter p: geom 'tp' is not in the model; did you mean 'tip'?"),
        (Target("qpos0", "c"), "parameter p: joint 'c' is not in the model"),
        (Target("body_inertia", "arm", 3), "parameter p: index 3 of body_inertia is outside 0 .. 2"),
        (Target("dof_damping", "a", 1), "parameter p: index 1 of dof_damping is outside 0 .. 0"),
        (Target("qpos0", "b", -1), "parameter p: index -1 of qpos0 is outside 0 .. 0"),
        (Target("opt.gravity", index=-1), "parameter p: index -1 of opt.gravity is outside 0 .. 2"),
        (Target("key_qpos", "a"), "parameter p: field 'key_qpos' holds no physical numbers; did you mean"),
        (Target("dof_damping", "a\x00b"), "parameter 'p': element = 'a\\x00b' must not contain control characters"),
        (
            Target("dof_damping", "a", factor=("volt",)),
            "parameter p: factor 'volt' is no [[context]] of robot.toml; did you mean 'volts'?",
        ),
    ],
)
def test_unknown_names_get_a_clear_message(target: Target, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bound(model_with(), parameter(target), context=("volts",))
    assert str(caught.value).startswith(message)


ADDRESSES = (
    "jnt_type", "jnt_limited", "jnt_dofadr", "jnt_qposadr", "jnt_bodyid", "dof_jntid", "dof_bodyid", "dof_Madr",
    "body_parentid", "body_rootid", "body_simple", "body_sameframe", "actuator_trnid", "actuator_trntype",
    "actuator_gaintype", "actuator_ctrllimited", "sensor_adr", "sensor_type", "geom_type", "geom_group", "jnt_user",
    "geom_rgba", "name_jntadr",
)  # fmt: skip
DERIVED = (
    "dof_invweight0", "dof_M0", "dof_length", "body_invweight0", "body_subtreemass", "body_margin",
    "tendon_invweight0", "tendon_length0", "actuator_acc0", "actuator_length0", "actuator_lengthrange", "geom_rbound",
    "geom_aabb",
)  # fmt: skip


@pytest.mark.parametrize(
    ("field", "why"),
    [
        *((field, "holds no physical numbers; ") for field in ADDRESSES),
        *((field, "is derived by MuJoCo from other fields; write those") for field in DERIVED),
    ],
)
def test_what_is_no_input_of_the_model_is_no_target(field: str, why: str) -> None:
    """Replays crash on another address, and mj_setConst overwrites what it derives."""
    with pytest.raises(ConfigError) as caught:
        bound(model_with(), parameter(Target(field, "a")))
    assert str(caught.value).startswith(f"parameter p: field '{field}' {why}")


def test_what_may_be_tuned_is_no_result_of_set_const() -> None:
    model, changed = model_with(), model_with()
    changed.body_mass *= 2
    changed.dof_armature += 0.1
    changed.actuator_gear[:] *= 2
    mujoco.mj_setConst(changed, mujoco.MjData(changed))
    moved = {f for f in tunable(model) if not np.array_equal(values(model, f), values(changed, f))}
    assert moved == {"body_mass", "dof_armature", "actuator_gear"}


@pytest.mark.parametrize("option", ["density", "viscosity"])
def test_an_option_that_is_one_number_is_written_too(option: str) -> None:
    model = model_with()
    binding = bound(model, parameter(Target(f"opt.{option}")))
    binding.write(model, np.array([1.2]), np.empty(0))
    assert getattr(model.opt, option) == 1.2
    with pytest.raises(ConfigError, match=rf"index 1 of opt\.{option} is outside 0 \.\. 0"):
        bound(model, parameter(Target(f"opt.{option}", index=1)))
