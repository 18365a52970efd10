"""Parameters: bounds, scales and draws."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from gapd.errors import ConfigError
from gapd.model.parameters import Parameter, ParameterSet, Target

Array = NDArray[np.float64]


def parameter(*targets: Target, name: str = "p", **changes: object) -> Parameter:
    values = {"nominal": 1.0, "min": 0.1, "max": 10.0} | changes
    return Parameter(name=name, targets=targets, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "parameter '': name = '' must not be empty"),
        ({"name": "a\nb"}, r"parameter 'a\nb': name = 'a\nb' must not contain control characters"),
        ({"unit": "\x1b[2J"}, r"parameter 'p': unit = '\x1b[2J' must not contain control characters"),
        ({"max": np.inf}, "parameter 'p': max = inf must be a number from -1e+12 to 1e+12"),
        ({"max": 1e308}, "parameter 'p': max = 1e+308 must be a number from"),
        ({"min": -np.inf, "scale": "linear"}, "parameter 'p': min = -inf must be a number from"),
        ({"min": np.nan}, "parameter 'p': min = nan must be a number from"),
        ({"nominal": np.nan}, "parameter 'p': nominal = nan must be a number from"),
        ({"min": 1e-300}, "parameter 'p': min = 1e-300 is too small for scale log"),
        ({"min": 1.0, "max": 1.0 + 1e-12}, "parameter p: min 1.0 .. max 1.000000000001 leaves no room"),
        *(
            (
                {"targets": (Target("dof_damping", "a", 0, (factor,)),)},
                f"parameter 'p': factor = {factor} must be a factor",
            )
            for factor in (0.0, np.nan, -np.inf, 1e300, 1e-300)
        ),
    ],
)
def test_numbers_and_names_that_would_break_a_fit_or_a_report(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ParameterSet([msgspec.structs.replace(parameter(Target("dof_damping", "a")), **changes)])
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min": 2.0, "max": 1.0}, "min 2.0 is not below max 1.0"),
        ({"nominal": 11.0}, "nominal 11.0 is outside 0.1 .. 10.0"),
        ({"min": 0.0}, "min 0.0 on scale log must be positive; use scale asinh"),
    ],
)
def test_contradicting_bounds(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=f"parameter p: {message}"):
        ParameterSet([msgspec.structs.replace(parameter(Target("dof_damping", "a")), **changes)])


def test_sets_that_make_no_sense() -> None:
    target = Target("dof_damping", "a")
    with pytest.raises(ConfigError, match="parameter p is defined twice"):
        ParameterSet([parameter(target), parameter(target)])
    with pytest.raises(ConfigError, match="no free parameter"):
        ParameterSet([parameter(target, frozen=True)])
    with pytest.raises(ConfigError, match="parameter p: targets is empty"):
        ParameterSet([parameter()])


@pytest.fixture
def space() -> ParameterSet:
    target = Target("dof_damping", "a")
    return ParameterSet(
        [
            parameter(target, name="log"),
            parameter(target, name="linear", scale="linear", min=-2.0, max=6.0, nominal=0.0),
            parameter(target, name="asinh", scale="asinh", min=-5.0, max=20.0, nominal=0.0),
        ]
    )


def test_scaled_coordinates_are_as_documented(space: ParameterSet) -> None:
    got = space.to_scaled(np.array([2.0, 3.0, 7.0]))
    np.testing.assert_allclose(got, [np.log(2.0), 3.0 / 2.0, np.arcsinh(7.0 / 2.0)])


def test_fingerprint_tells_sets_apart_by_what_scales_them(space: ParameterSet) -> None:
    def changed(**changes: object) -> str:
        first = msgspec.structs.replace(space.free[0], **changes)
        return ParameterSet([first, *space.free[1:]]).fingerprint

    assert len(space.fingerprint) == 64
    frozen = msgspec.structs.replace(space.free[0], name="frozen", frozen=True)
    same = {changed(), changed(nominal=1.5), ParameterSet([frozen, *space.free]).fingerprint}
    assert same == {space.fingerprint}
    others = [changed(name="x"), changed(unit="m"), changed(scale="linear"), changed(min=0.2), changed(max=9.0)]
    assert len({space.fingerprint, ParameterSet(space.free[::-1]).fingerprint, *others}) == 7


def test_scaled_round_trip(space: ParameterSet) -> None:
    values = space.draw(np.random.default_rng(1), 200)
    assert (values >= space.min).all()
    assert (values <= space.max).all()
    np.testing.assert_allclose(space.to_physical(space.to_scaled(values)), values, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(space.to_physical(space.z_min), space.min)
    np.testing.assert_allclose(space.to_physical(space.z_max), space.max)
    np.testing.assert_allclose(space.to_physical(space.z_nominal), space.nominal, atol=1e-15)


def test_physical_sd_is_the_slope(space: ParameterSet) -> None:
    z, step = np.array([0.3, -0.4, 1.7]), 1e-6
    slope = (space.to_physical(z + step) - space.to_physical(z - step)) / (2 * step)
    np.testing.assert_allclose(space.physical_sd(z, np.array([0.1, 0.2, 0.3])), slope * [0.1, 0.2, 0.3], rtol=1e-8)


def test_draws_are_uniform_in_scaled_coordinates_and_seeded(space: ParameterSet) -> None:
    values = space.draw(np.random.default_rng(1), 4000)
    share = (space.to_scaled(values) - space.z_min) / (space.z_max - space.z_min)
    np.testing.assert_allclose(share.mean(axis=0), 0.5, atol=0.02)
    np.testing.assert_allclose(share.std(axis=0), 1 / np.sqrt(12), atol=0.01)
    np.testing.assert_array_equal(values, space.draw(np.random.default_rng(1), 4000))


def test_vector_replaces_named_values(space: ParameterSet) -> None:
    np.testing.assert_array_equal(space.vector({"asinh": 3.0}), [1.0, 0.0, 3.0])
    np.testing.assert_array_equal(space.nominal, [1.0, 0.0, 0.0])
    with pytest.raises(ConfigError, match=r"parameter lin is not in the set; did you mean 'linear'\?"):
        space.vector({"lin": 1.0})
