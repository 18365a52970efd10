"""Structure: hidden physics is named with its joint, and clean data stay without a finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mujoco import batch
from numpy.typing import NDArray

from gapd.fit.gauss_newton import Normal
from gapd.fit.hypotheses import Hypothesis, hypotheses
from gapd.fit.identify import Identification, identify
from gapd.fit.structure import MIN_SHARE, Prior, column_covariance, contenders, surviving
from gapd.gap.replay import Replay, Unmodelled
from gapd.gap_model.bundle import open_bundle
from gapd.gap_model.learned import Learned
from gapd.measured.windows import Windows
from gapd.model.robot import Robot
from gaptrain.simulate import Structure
from gaptrain.structures import backlash, bent_link, load_dependent_friction

Array = NDArray[np.float64]

# Standard deviations that nobody takes for luck.
CLEAR = 4.0


def spring(robot: Robot, joint: str, stiffness: float) -> Structure:
    """Hidden structure: a spring (N·m/rad) that pulls the joint to zero, which the MJCF does not have."""
    dof = int(robot.model.joint(joint).dofadr[0])

    def bind(sims: batch.Batch) -> Callable[[], None]:
        force, position = sims.bind("qfrc_applied"), sims.bind("qpos")

        def apply() -> None:
            force[:, dof] = -stiffness * position[:, dof]

        return apply

    return bind


def drift(robot: Robot, joint: str, rate: float) -> Structure:
    """Hidden structure: a force on the joint that grows by `rate` (N·m/s)."""
    dof, step_s = int(robot.model.joint(joint).dofadr[0]), robot.layout.step_s

    def bind(sims: batch.Batch) -> Callable[[], None]:
        force = sims.bind("qfrc_applied")

        def apply() -> None:
            force[:, dof] += rate * step_s

        return apply

    return bind


def truth_of(robot: Robot, seed: int, spread: float = 0.7) -> Array:
    """Scaled parameters (P,), inside the bounds by a tenth of the range."""
    space, rng = robot.parameters, np.random.default_rng(seed)
    margin = 0.1 * (space.z_max - space.z_min)
    z = space.z_nominal + rng.uniform(-spread, spread, len(space))
    return np.asarray(np.clip(z, space.z_min + margin, space.z_max - margin))


def identified(
    robot: Robot, windows_of: Any, z: Array, seed: int, structure: Structure | None = None, count: int = 40
) -> Identification:
    windows = windows_of(robot, robot.parameters.to_physical(z), count, seed, structure)
    return identify(Replay(robot), windows, robot.parameters.z_nominal)


def test_clean_recordings_have_no_finding(tiny: Robot, windows_of: Any) -> None:
    for seed in range(10):
        assert identified(tiny, windows_of, truth_of(tiny, seed), seed).findings == (), seed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "level", "servo"])
def test_clean_recordings_of_three_robots_have_no_finding(
    name: str, windows_of: Any, request: pytest.FixtureRequest
) -> None:
    robot: Robot = request.getfixturevalue(name)
    found = {seed: identified(robot, windows_of, truth_of(robot, seed), seed, count=24).findings for seed in range(16)}
    assert {seed: [f.sentence for f in findings] for seed, findings in found.items() if findings} == {}


@pytest.mark.parametrize(("name", "seed"), [("tiny", 0), ("tiny", 3), ("level", 0), ("level", 1), ("servo", 6)])
def test_friction_that_grows_with_load_is_named(
    name: str, seed: int, windows_of: Any, request: pytest.FixtureRequest
) -> None:
    robot: Robot = request.getfixturevalue(name)
    z, share = truth_of(robot, seed), 0.1
    found = identified(robot, windows_of, z, seed, load_dependent_friction(robot, "j", share), count=24)
    first = found.findings[0]
    assert (first.regressor, first.joint, first.unit) == ("load friction", "j", "")
    assert first.z > CLEAR
    assert first.share > MIN_SHARE
    # Friction that holds a joint at rest is no force along the motion: the regressor sees a little less of it.
    assert abs(first.coefficient - share) < max(4 * first.coefficient_sd, 0.25 * share)
    assert "j: friction grows with load: load friction 0." in first.sentence


def test_friction_that_grows_with_load_bends_plain_friction_less_when_it_is_a_nuisance(
    level: Robot, windows_of: Any
) -> None:
    z = truth_of(level, 4)
    found = identified(level, windows_of, z, 4, load_dependent_friction(level, "j", 0.3))
    plain, nuisance = np.abs(found.z - z), np.abs(found.with_nuisance - z)
    friction = level.parameters.names.index("joint/j/frictionloss")
    assert plain[friction] > 0.6, "the case must be one that bends the plain fit"
    assert nuisance[friction] < 0.5 * plain[friction]
    assert (nuisance < plain + 0.01).all()


@pytest.mark.parametrize("seed", range(3))
def test_a_hidden_spring_is_named_and_bends_nothing_when_it_is_a_nuisance(
    level: Robot, windows_of: Any, seed: int
) -> None:
    z, stiffness = truth_of(level, seed), 0.05
    found = identified(level, windows_of, z, seed, spring(level, "j", stiffness))
    first = found.findings[0]
    assert (first.regressor, first.joint, first.unit) == ("spring", "j", "N·m/rad")
    assert abs(first.coefficient - stiffness) < 4 * first.coefficient_sd
    assert np.abs(found.z - z).max() > 0.1, "the case must be one that bends the plain fit"
    assert np.abs(found.with_nuisance - z).max() < 0.04


def test_a_change_that_the_spring_only_feigned_does_not_survive(level: Robot, windows_of: Any) -> None:
    """The robot is at its present values, but for the spring."""
    z = level.parameters.z_nominal
    found = identified(level, windows_of, z, 1, spring(level, "j", 0.3))
    assert found.findings[0].regressor == "spring"
    moved = np.abs(found.z - z) / found.uncertainty.sd > 3
    assert moved.any(), "the case must be one that bends the plain fit"
    assert not (found.survives & moved).any()


def test_the_same_force_as_a_known_parameter_is_no_structure(
    make_robot: Any, tiny: Robot, tmp_path: Any, windows_of: Any
) -> None:
    """A spring that a parameter can express is that parameter's business."""
    (tmp_path / "plain").mkdir()
    make_robot(tmp_path / "plain")
    text = (tmp_path / "plain" / "parameters.toml").read_text(encoding="utf-8")
    stiffness = """
[[parameter]]
name = "joint/j/stiffness"
unit = "N·m/rad"
nominal = 0
min = -1
max = 1
scale = "linear"
targets = [{ field = "jnt_stiffness", element = "j" }]
"""
    robot = make_robot(tmp_path, parameters=text + stiffness)
    found = identified(robot, windows_of, robot.parameters.z_nominal, 1, spring(robot, "j", 0.1))
    assert found.findings == ()
    assert robot.parameters.to_physical(found.z)[-1] == pytest.approx(0.1, rel=0.1)


MASS = """
[[parameter]]
name = "body/arm/mass"
unit = "kg"
nominal = 0.5
min = 0.1
max = 2.5
targets = [{ field = "body_mass", element = "arm" }]
"""


@pytest.fixture(scope="module")
def carrier(make_robot: Any, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Robot:
    """The tiny robot with its weight held out to the side and of unknown mass: a torque that hardly changes."""
    model, parameters = ((tiny_folder / name).read_text(encoding="utf-8") for name in ("model.xml", "parameters.toml"))
    sideways = model.replace('pos="0 0 -0.1"', 'pos="0.1 0 0"')
    return make_robot(tmp_path_factory.mktemp("carrier"), model=sideways, parameters=parameters + MASS)


def two_truths(robot: Robot, windows_of: Any, early: int, late: int, seed: int) -> Windows:
    """So many windows of the nominal robot, then of one that has picked up its own weight."""
    heavy = robot.parameters.nominal * np.where(np.array(robot.parameters.names) == "body/arm/mass", 2.0, 1.0)
    first = windows_of(robot, robot.parameters.nominal, early, seed)
    second = windows_of(robot, heavy, late, seed + 1)
    after = replace(second, start_s=second.start_s + early * robot.config.timing.window_s)
    return Windows.concatenate([first, after])


@pytest.mark.parametrize(("early", "late", "seed"), [(16, 14, 1), (20, 20, 2), (20, 20, 4), (16, 14, 8)])
def test_windows_that_mix_two_truths_have_no_finding(
    carrier: Robot, windows_of: Any, early: int, late: int, seed: int
) -> None:
    """Forces that drift, or grow with position, explain up to 85 % of what a change of mass leaves."""
    windows = two_truths(carrier, windows_of, early, late, seed)
    found = identify(Replay(carrier), windows, carrier.parameters.z_nominal)
    assert np.sqrt(np.mean(found.fit.state.gap**2)) > 2.0, "the case must be one that no parameters explain"
    assert found.findings == ()


@pytest.mark.parametrize("seed", range(3))
def test_a_force_that_really_drifts_is_found(carrier: Robot, windows_of: Any, seed: int) -> None:
    """A mass that changes in between explains some of it, and less."""
    found = identified(carrier, windows_of, carrier.parameters.z_nominal, seed, drift(carrier, "j", 0.05))
    first = found.findings[0]
    assert (first.regressor, first.joint, first.unit) == ("drift", "j", "N·m/s")
    assert abs(first.coefficient - 0.05) < 4 * first.coefficient_sd


@pytest.fixture(scope="module")
def damped(make_robot: Any, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Robot:
    """The tiny robot with velocity feedback in its servo."""
    model = (tiny_folder / "model.xml").read_text(encoding="utf-8").replace('kp="4"', 'kp="4" kv="0.2"')
    return make_robot(tmp_path_factory.mktemp("damped"), model=model)


@pytest.mark.parametrize(("half_gap", "seed"), [(0.01, 1), (0.05, 2), (0.05, 3)])
def test_backlash_is_named_and_bends_less_when_it_is_a_nuisance(
    damped: Robot, windows_of: Any, half_gap: float, seed: int
) -> None:
    z = truth_of(damped, seed, 0.3)
    found = identified(damped, windows_of, z, seed, backlash(damped, "j", half_gap), count=24)
    first = found.findings[0]
    assert (first.regressor, first.joint, first.unit) == ("backlash", "j", "rad")
    assert abs(first.coefficient - half_gap) < max(4 * first.coefficient_sd, 0.25 * half_gap)
    assert np.abs(found.with_nuisance - z).max() < np.abs(found.z - z).max()
    assert "check gears, belt and coupling of j for play" in first.remedy


@pytest.mark.parametrize("angle", [0.03, -0.1])
def test_a_frame_that_is_turned_is_named_with_angle_and_axis(tiny: Robot, windows_of: Any, angle: float) -> None:
    """About the joint's own axis, where one joint shows it: an encoder that is mounted a little off."""
    z = truth_of(tiny, 5, 0.3)
    found = identified(tiny, windows_of, z, 5, bent_link(tiny, "arm", angle, (0, 1, 0)), count=24)
    (finding,) = found.findings
    assert (finding.regressor, finding.joint, finding.unit) == ("bent link", "j", "rad")
    turned = finding.coefficient * finding.direction[1]
    assert abs(turned - angle) < max(4 * finding.coefficient_sd, 0.1 * abs(angle))
    assert np.abs(found.with_nuisance - z).max() < 0.05
    assert "of its body" in finding.sentence


def hypothesis(regressor: str, size: float = 1.0) -> Hypothesis:
    return Hypothesis(regressor, "j", (Unmodelled(),), size, "")


def linear_case(
    effect: Callable[[np.random.Generator, Array], Array], size: float, seed: int = 2, beside: int = 0
) -> tuple[Normal, Prior, float]:
    """Random linear data of 3 parameters and two columns; squared residual.

    The residual holds `size` times the first column's effect; the second looks like it. With `beside` the second
    stands before the first, as what was found already.
    """
    rng = np.random.default_rng(seed)
    windows, rows, p = 30, 40, 3
    jacobian = rng.normal(size=(windows, rows, p))
    first = effect(rng, jacobian)
    second = first + rng.normal(size=(windows, rows))
    pair = [second, first] if beside else [first, second]
    columns = np.concatenate([jacobian, np.stack(pair, axis=-1)], axis=2)
    residual = rng.normal(size=(windows, rows)) + size * first + jacobian @ np.array([0.3, -0.2, 0.1])
    return normal_of(columns, residual), Prior(np.full(p, 1e3), np.zeros(p)), float((residual**2).sum())


def normal_of(columns: Array, residual: Array) -> Normal:
    transposed = columns.transpose(0, 2, 1)
    score = (transposed @ residual[..., None])[..., 0]
    nothing = np.zeros((len(columns), 0))  # initial states that are known
    return Normal(transposed @ columns, score, nothing, np.zeros((*nothing.shape, columns.shape[2])))


def free(rng: np.random.Generator, jacobian: Array) -> Array:
    return np.asarray(rng.normal(size=jacobian.shape[:2]))


def strongest(*case: Any) -> Hypothesis | None:
    return next(iter(contenders(*case)), None)


TWO = [hypothesis("spring"), hypothesis("drift")]


@pytest.mark.parametrize("size", [0.5, -0.5, 1.0])
def test_the_strongest_is_the_true_one_and_not_what_looks_like_it(size: float) -> None:
    assert strongest(TWO, *linear_case(free, size)) is TWO[0]


def test_a_hypothesis_counts_by_what_it_adds_to_those_found() -> None:
    """Beside the true column the other one adds nothing, alone it would explain a fifth."""
    normal, prior, remaining = linear_case(free, 1.0)
    assert strongest(TWO[1:], normal, prior, remaining) is None
    normal, prior, remaining = linear_case(free, 1.0, beside=1)
    assert strongest(TWO[:1], normal, prior, remaining) is TWO[0]


def test_what_the_parameters_express_is_no_finding() -> None:
    def theirs(_: np.random.Generator, jacobian: Array) -> Array:
        return np.asarray(jacobian @ np.array([1.0, 2.0, -1.0]))

    assert strongest(TWO, *linear_case(theirs, 3.0)) is None


def test_a_finding_is_significant_and_has_a_share() -> None:
    assert strongest(TWO, *linear_case(free, 0.0)) is None
    # Half a percent of the gap, at 2.4 standard deviations.
    assert [strongest(TWO, *linear_case(free, 0.07, seed)) for seed in range(5)] == [None] * 5


def test_friction_does_not_drive() -> None:
    tested = [hypothesis("load friction"), hypothesis("drift")]
    assert strongest(tested, *linear_case(free, 0.5)) is tested[0]
    assert strongest(tested, *linear_case(free, -0.5)) is not tested[0]


def test_the_deviation_of_a_column_is_that_of_least_squares() -> None:
    """Up to the inflation that 30 windows seem to need."""
    normal, prior, _ = linear_case(free, 0.0, seed=5)
    inverse = np.linalg.inv(normal.information.sum(axis=0))
    np.testing.assert_allclose(
        np.sqrt(np.diag(column_covariance(normal, prior))), np.sqrt(np.diag(inverse)[3:]), rtol=0.35
    )


def changing_case(change: float, size: float, scatter: float = 0.0, seed: int = 4) -> tuple[Normal, Prior, float]:
    """As linear_case with one column only, where the first of the three parameters changes after half of the windows.

    The column drifts: it is the effect of that parameter, growing from window to window. The residual holds `size` of
    it, more or less by a share of `scatter` in each window, and `change` of the parameter.
    """
    rng = np.random.default_rng(seed)
    windows, rows, p = 30, 40, 3
    jacobian = rng.normal(size=(windows, rows, p))
    time = np.linspace(-1.0, 1.0, windows)[:, None]
    column, uneven = jacobian[..., 0] * time, 1.0 + scatter * rng.normal(size=(windows, 1))
    residual = rng.normal(size=(windows, rows)) + size * uneven * column + change * jacobian[..., 0] * (time > 0)
    normal = normal_of(np.concatenate([jacobian, column[..., None]], axis=2), residual)
    return normal, Prior(np.full(p, 1e3), np.zeros(p)), float((residual**2).sum())


@pytest.mark.parametrize("change", [1.0, -2.0, 4.0])
def test_what_a_change_of_the_parameters_explains_is_no_finding(change: float) -> None:
    assert strongest(TWO[:1], *changing_case(change, 0.0)) is None


def test_what_a_change_explains_less_well_is_a_finding() -> None:
    assert strongest(TWO[:1], *changing_case(0.0, 1.0)) is TWO[0]
    # Too uneven to be told from a change for sure.
    assert strongest(TWO[:1], *changing_case(0.0, 2.0, scatter=1.0, seed=3)) is TWO[0]


def test_a_finding_counts_beside_a_change_that_explains_more() -> None:
    assert strongest(TWO[:1], *changing_case(2.0, 1.5)) is TWO[0]


def test_residuals_common_to_a_window_do_not_fool_it() -> None:
    """One window in which all is wrong is one observation, however many samples it has."""
    rng = np.random.default_rng(2)
    columns = np.ones((20, 40, 1)) * rng.normal(size=(20, 1, 1))
    residual = rng.normal(size=(20, 1)) * 5 + rng.normal(size=(20, 40))
    normal = normal_of(columns, residual)
    naive = normal.score.sum() / np.sqrt((columns**2).sum())
    assert abs(naive) > CLEAR, "the case must be one that independent samples would find"
    assert strongest(TWO[1:], normal, Prior(np.zeros(0), np.zeros(0)), float((residual**2).sum())) is None


@pytest.mark.parametrize(
    ("plain", "with_nuisance", "sd", "kept"),
    [
        (1.0, 1.0, 0.1, True),  # nothing bent it
        (1.0, 0.6, 0.1, True),  # more than half remains
        (1.0, 0.4, 0.1, False),  # less than half remains
        (1.0, 1.6, 0.1, True),  # the finding had hidden some of it
        (1.0, -1.0, 0.1, False),  # it was all bending
        (-1.0, -0.8, 0.1, True),  # the same downwards
        (-1.0, 0.8, 0.1, False),
        (1.0, 0.6, 0.25, False),  # what remains is within three standard deviations
        (0.0, 0.0, 0.1, False),  # no change at all
        (0.0, 1.0, 0.1, True),  # a change that the finding had hidden altogether
    ],
)
def test_surviving(plain: float, with_nuisance: float, sd: float, kept: bool) -> None:
    before = 5.0
    got = surviving(np.array([before]), np.array([before + plain]), np.array([before + with_nuisance]), np.array([sd]))
    assert got.tolist() == [kept]


def replayed(robot: Robot, windows: Windows) -> list[Hypothesis]:
    features = Replay(robot).run(windows, robot.parameters.nominal).features
    return hypotheses(robot, windows, features)


def force_of(hypothesis: Hypothesis) -> Array:
    (effect,) = hypothesis.effects
    assert effect.force is not None
    return effect.force


def test_hypotheses_are_forces_at_their_joint_that_oppose_the_motion(tiny: Robot, windows_of: Any) -> None:
    windows = windows_of(tiny, tiny.parameters.nominal, 6, seed=1)
    tested = {h.regressor: h for h in replayed(tiny, windows)}
    forces = {"load friction", "stiction", "direction", "spring", "upper stop", "lower stop", "drift"}
    assert set(tested) == forces | {"backlash", "bent link"}
    features = Replay(tiny).run(windows, tiny.parameters.nominal).features
    knots = slice(None, None, tiny.layout.substeps)
    position, velocity, force = features[..., 0], features[..., 1], features[..., 3]
    fast = np.abs(velocity) > 0.5 * np.sqrt(np.mean(velocity**2))
    friction = force_of(tested["load friction"])[:, knots, 0]
    np.testing.assert_allclose(friction[fast], -(np.abs(force) * np.sign(velocity))[fast], rtol=1e-3, atol=1e-6)
    pull = force_of(tested["spring"])[:, knots, 0]
    np.testing.assert_allclose(pull - pull.mean(), -(position - position.mean()), atol=1e-12)
    assert (force_of(tested["stiction"])[:, knots, 0][fast] * np.sign(velocity)[fast] <= 0).all()
    elapsed = force_of(tested["drift"])[..., 0]
    np.testing.assert_allclose(np.diff(elapsed, axis=1), tiny.layout.step_s, rtol=1e-9)
    np.testing.assert_allclose(np.diff(elapsed[:, 0]), np.diff(windows.start_s), rtol=1e-9)
    load = np.sqrt(np.mean(force**2))
    for regressor in forces:
        # The size gives each the strength of the joint's load, so that trials are alike.
        strength = tested[regressor].size * force_of(tested[regressor])
        assert np.sqrt(np.mean(strength**2)) == pytest.approx(load, rel=0.2)


def test_a_joint_that_rests_has_no_hypothesis(arm: Robot, windows_of: Any) -> None:
    windows: Windows = windows_of(arm, arm.parameters.nominal, 4, seed=1)
    features = Replay(arm).run(windows, arm.parameters.nominal).features
    features[..., 7 + 2] = 0.0  # velocity of joint3
    tested = hypotheses(arm, windows, features)
    joints = {h.joint for h in tested}
    assert joints == {f"joint{n}" for n in (1, 2, 4, 5, 6, 7)}
    for h in tested:
        if h.regressor not in ("backlash", "bent link"):
            others = np.delete(force_of(h), arm.layout.joints.index(h.joint), axis=2)
            assert (others == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(("joint", "stiffness", "seed"), [("joint1", 5.0, 1), ("joint3", 10.0, 2)])
def test_a_hidden_spring_in_the_arm_is_named(
    arm: Robot, windows_of: Any, joint: str, stiffness: float, seed: int
) -> None:
    z = truth_of(arm, seed)
    windows = windows_of(arm, arm.parameters.to_physical(z), 40, seed, spring(arm, joint, stiffness))
    found = identify(Replay(arm, 2), windows, arm.parameters.z_nominal, Learned(open_bundle(arm), arm))
    first = found.findings[0]
    assert (first.regressor, first.joint) == ("spring", joint)
    assert abs(first.coefficient - stiffness) < 4 * first.coefficient_sd
    friction = arm.parameters.names.index(f"joint/{joint}/frictionloss")
    assert abs(found.with_nuisance[friction] - z[friction]) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("joint", "half_gap", "seed"), [("joint2", 0.002, 1), ("joint6", 0.01, 2)])
def test_backlash_in_the_arm_is_named(arm: Robot, windows_of: Any, joint: str, half_gap: float, seed: int) -> None:
    z = truth_of(arm, seed)
    windows = windows_of(arm, arm.parameters.to_physical(z), 40, seed, backlash(arm, joint, half_gap))
    found = identify(Replay(arm, 2), windows, arm.parameters.z_nominal, Learned(open_bundle(arm), arm))
    first = found.findings[0]
    assert (first.regressor, first.joint) == ("backlash", joint)
    assert abs(first.coefficient - half_gap) < 0.25 * half_gap


@pytest.mark.slow
@pytest.mark.parametrize(("link", "degrees", "seed"), [("link2", 2.0, 1), ("link5", 4.0, 2)])
def test_a_bent_link_of_the_arm_is_named_and_nothing_is_bent_beside_it(
    arm: Robot, windows_of: Any, link: str, degrees: float, seed: int
) -> None:
    z, angle = truth_of(arm, seed), float(np.radians(degrees))
    windows = windows_of(arm, arm.parameters.to_physical(z), 40, seed, bent_link(arm, link, angle, (0.6, 0.8, 0)))
    found = identify(Replay(arm, 2), windows, arm.parameters.z_nominal, Learned(open_bundle(arm), arm))
    (finding,) = found.findings
    assert (finding.regressor, finding.joint) == ("bent link", link.replace("link", "joint"))
    assert np.abs(found.with_nuisance - z).max() < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("joint", "share", "seed"), [("joint2", 0.1, 1), ("joint4", 0.2, 2)])
def test_friction_that_grows_with_load_in_the_arm_is_named(
    arm: Robot, windows_of: Any, joint: str, share: float, seed: int
) -> None:
    z = truth_of(arm, seed)
    windows = windows_of(arm, arm.parameters.to_physical(z), 40, seed, load_dependent_friction(arm, joint, share))
    found = identify(Replay(arm, 2), windows, arm.parameters.z_nominal, Learned(open_bundle(arm), arm))
    assert (found.findings[0].regressor, found.findings[0].joint) == ("load friction", joint)
    friction = arm.parameters.names.index(f"joint/{joint}/frictionloss")
    assert abs(found.with_nuisance[friction] - z[friction]) < abs(found.z[friction] - z[friction])


@pytest.mark.slow
def test_the_clean_arm_has_no_finding(arm: Robot, windows_of: Any) -> None:
    learned = Learned(open_bundle(arm), arm)
    for seed in (1, 2):
        windows = windows_of(arm, arm.parameters.to_physical(truth_of(arm, seed)), 40, seed)
        found = identify(Replay(arm, 2), windows, arm.parameters.z_nominal, learned)
        assert found.findings == ()
