"""Decisions: the ladder from hold to escalate, and sentences a field engineer can act on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gapd.fit.check import Cause, Check
from gapd.fit.decide import Decision, ParameterEstimate, decide, limit, movable
from gapd.fit.finding import Finding

FRICTION = ParameterEstimate("joint/joint4/frictionloss", "N·m", 1.0, 2.0512, 0.031, 0.0, 0.7184, 0.0151, "estimated")
DAMPING = ParameterEstimate("joint/joint4/damping", "N·m·s/rad", 3.0, 3.05, 0.1, 1.0986, 1.1151, 0.033, "estimated")
MASS = ParameterEstimate("body/payload/mass", "kg", 1.0, 1.9, 0.9, 0.0, 0.64, 0.5, "unidentifiable")
ACCEPTED = Check(
    "accepted", "", "89 % of the squared gap is gone", "", 3.1, 1.02, 3.1, 1.02, True,
    np.array([3.1]), np.array([1.02]), 12, 1e-5, ("joint4/position",),
)  # fmt: skip
REJECTED = replace(
    ACCEPTED, verdict="rejected", cause="not_significant", reason="better with p = 0.2, 0.01 is required",
    remedy="record about 9 s more of such motion", floors_before=1.2, floors_after=1.1,
)  # fmt: skip
LOAD = Finding("load friction", "joint2", 9.0, 0.4, 0.12, 0.01, "")


def test_correct_names_parameter_number_unit_and_outcome() -> None:
    decision = decide([FRICTION, DAMPING, MASS], ACCEPTED)
    assert (decision.action, decision.level) == ("correct", "OK")
    assert decision.reason == (
        "joint/joint4/frictionloss 1.00 -> 2.05 ± 0.03 N·m; gap 3.1 -> 1.02 floors on 12 held-out windows; accepted"
    )
    # What the check accepted is what is sent: also the damping, whose change alone is no news.
    assert decision.corrections == (FRICTION, DAMPING)


def test_gap_of_a_robot_without_commissioned_floor_is_in_noise() -> None:
    reason = decide([FRICTION], replace(ACCEPTED, commissioned=False)).reason
    assert "gap 3.1 -> 1.02 noise standard deviations" in reason


def test_parameters_that_stay_are_not_sent() -> None:
    still = replace(DAMPING, after=3.0, z_after=DAMPING.z_before)
    assert decide([FRICTION, still], ACCEPTED).corrections == (FRICTION,)


@pytest.mark.parametrize("check", [None, ACCEPTED, replace(REJECTED, cause="not_better")])
def test_hold_without_significant_change(check: Check | None) -> None:
    decision = decide([DAMPING, MASS], check)
    assert (decision.action, decision.level, decision.corrections) == ("hold", "OK", ())
    assert decision.sentence == "no parameter has changed by 3 standard deviations; nothing to do"


def test_unidentifiable_parameters_never_move() -> None:
    loud = replace(MASS, z_sd=0.001)
    assert decide([loud], ACCEPTED).action == "hold"
    assert decide([FRICTION, loud], ACCEPTED).corrections == (FRICTION,)


def test_reject_passes_on_reason_and_remedy_of_the_check() -> None:
    decision = decide([FRICTION], REJECTED)
    assert (decision.action, decision.level, decision.corrections) == ("reject", "WARN", ())
    assert decision.sentence == (
        "joint/joint4/frictionloss 1.00 -> 2.05 ± 0.03 N·m; gap 1.2 -> 1.1 floors on 12 held-out windows; "
        "rejected: better with p = 0.2, 0.01 is required; record about 9 s more of such motion"
    )


def test_reject_without_a_check() -> None:
    decision = decide([FRICTION], None)
    assert (decision.action, decision.corrections) == ("reject", ())
    assert "not checked; record more motion" in decision.sentence


@pytest.mark.parametrize(("z_after", "z_sd"), [(np.nan, 0.1), (np.inf, 0.1), (0.7, np.nan), (0.7, np.inf)])
def test_reject_a_fit_without_finite_values(z_after: float, z_sd: float) -> None:
    decision = decide([DAMPING, replace(FRICTION, z_after=z_after, z_sd=z_sd)], ACCEPTED)
    assert (decision.action, decision.corrections) == ("reject", ())
    assert decision.reason == "the fit gives no finite value for joint/joint4/frictionloss"


def test_structural_finding_escalates_and_sends_what_survives() -> None:
    survivor = replace(FRICTION, effective=True)
    bent = replace(DAMPING, after=9.0, z_after=2.2)
    decision = decide([survivor, bent, MASS], ACCEPTED, [LOAD])
    assert (decision.action, decision.level) == ("escalate", "ERROR")
    assert decision.corrections == (survivor,)
    assert decision.reason.startswith(LOAD.sentence + "; joint/joint4/frictionloss 1.00 -> 2.05 ± 0.03 N·m (effective)")
    assert "damping" not in decision.reason
    assert decision.remedy == LOAD.remedy
    assert "friction of joint2" in decision.remedy


@pytest.mark.parametrize("check", [None, REJECTED])
def test_structural_finding_without_accepted_check_sends_nothing(check: Check | None) -> None:
    decision = decide([replace(FRICTION, effective=True)], check, [LOAD])
    assert (decision.action, decision.corrections) == ("escalate", ())
    assert decision.reason == LOAD.sentence


def test_structural_finding_that_nothing_survives_sends_nothing() -> None:
    decision = decide([FRICTION], ACCEPTED, [LOAD])
    assert (decision.action, decision.corrections) == ("escalate", ())
    assert decision.reason == LOAD.sentence


def test_parameter_at_its_bound_escalates() -> None:
    bound = replace(FRICTION, status="at_bound")
    decision = decide([bound, DAMPING], ACCEPTED)
    assert (decision.action, decision.level, decision.corrections) == ("escalate", "ERROR", ())
    assert decision.reason == "joint/joint4/frictionloss 1.00 -> 2.05 ± 0.03 N·m is at its bound"
    assert "widen the bounds" in decision.remedy


def test_parameter_that_was_at_its_bound_before_is_no_news() -> None:
    resting = replace(FRICTION, status="at_bound", after=1.0, z_after=0.0)
    assert decide([resting], None).action == "hold"
    assert decide([resting], ACCEPTED).action == "hold"
    left = replace(ACCEPTED, channel_after=np.array([4.8]))
    assert decide([resting, DAMPING], left).action == "escalate", "unless much is unexplained"


def test_correction_that_leaves_a_large_gap_warns() -> None:
    left = replace(ACCEPTED, commissioned=False, channel_after=np.array([4.8]), channels=("joint2/effort",))
    decision = decide([FRICTION], left)
    assert (decision.action, decision.level) == ("correct", "WARN")
    assert "joint2/effort keeps 4.8 noise standard deviations that no parameter explains" in decision.reason
    assert "joint2/effort" in decision.remedy
    assert decide([FRICTION], replace(left, commissioned=True)).level == "OK"


def test_candidate_outside_the_training_range_counts_if_replay_accepts_it() -> None:
    assert decide([FRICTION], ACCEPTED, outside_range=["joint1 position"]) == decide([FRICTION], ACCEPTED)


@pytest.mark.parametrize("check", [None, REJECTED])
def test_data_outside_the_training_range_escalate(check: Check | None) -> None:
    decision = decide([FRICTION], check, outside_range=["supply_voltage 11.1 V, trained 6 .. 8.4 V"])
    assert (decision.action, decision.level, decision.corrections) == ("escalate", "ERROR", ())
    assert decision.reason == "outside the training range: supply_voltage 11.1 V, trained 6 .. 8.4 V"


def test_a_replay_that_does_not_follow_comes_first() -> None:
    fresh = replace(ACCEPTED, commissioned=False)
    broken = replace(FRICTION, z_after=np.nan)
    decision = decide([broken], fresh, [LOAD], outside_range=["x"], unfollowed=["j/position (misses it by 190 %)"])
    assert (decision.action, decision.level) == ("reject", "ERROR")
    assert decision.sentence == (
        "the best fit does not follow the robot: j/position (misses it by 190 %); check column, sign, unit and time "
        "stamps of these channels, and of the commands"
    )
    proven = decide([FRICTION], ACCEPTED, [LOAD], unfollowed=["j/position (misses it by 190 %)"])
    assert (proven.action, proven.remedy) == ("escalate", LOAD.remedy), "its columns and signs were right before"


@pytest.mark.parametrize("cause", ["not_better", "not_significant"])
def test_hold_where_the_simulator_matches_already(cause: Cause) -> None:
    matched = replace(REJECTED, cause=cause, commissioned=False, channel_before=np.array([1.04]))
    decision = decide([FRICTION], matched)
    assert (decision.action, decision.level, decision.corrections) == ("hold", "OK", ())
    assert "no channel is above 1.04" in decision.reason
    assert decide([FRICTION], replace(matched, channel_before=np.array([1.4]))).action == "reject"


def test_reject_names_the_groups_that_could_not_move() -> None:
    remedy = decide([FRICTION], REJECTED, ambiguous=[["joint/a/damping", "actuator/a/kv"]]).remedy
    assert "joint/a/damping and actuator/a/kv: freeze all but one" in remedy
    few = replace(REJECTED, cause="too_few")
    assert decide([FRICTION], few, ambiguous=[["joint/a/damping", "actuator/a/kv"]]).remedy == few.remedy


@pytest.mark.parametrize("cause", ["above_floor", "not_better", "not_significant"])
def test_gap_that_no_parameter_explains_escalates(cause: Cause) -> None:
    check = replace(REJECTED, cause=cause, floors_before=121.0, floors_after=16.0, reason="16 floors are left")
    decision = decide([FRICTION], check)
    assert (decision.action, decision.level, decision.corrections) == ("escalate", "ERROR", ())
    assert "gap 121 -> 16 floors" in decision.reason
    assert "load, contact or backlash" in decision.remedy


@pytest.mark.parametrize("cause", ["too_few", "diverged"])
def test_check_that_says_nothing_about_the_gap_does_not_escalate(cause: Cause) -> None:
    check = replace(REJECTED, cause=cause, floors_before=9.0, floors_after=9.0)
    assert decide([FRICTION], check).action == "reject"


def test_gap_far_above_the_floor_without_change_escalates() -> None:
    decision = decide([DAMPING], None, floors=4.2)
    assert (decision.action, decision.level) == ("escalate", "ERROR")
    assert decision.reason == "the gap is 4.2 commissioned floors and no parameter explains it"
    assert decide([DAMPING], None, floors=1.4).action == "hold"
    assert decide([DAMPING], None, floors=float("nan")).action == "hold"


def test_many_changes_are_counted_clearest_first() -> None:
    many = [replace(FRICTION, name=f"joint/j{i}/frictionloss", z_sd=0.01 * (9 - i)) for i in range(5)]
    named = decide(many, ACCEPTED).reason.split(";")[0]
    assert [n.split()[0] for n in named.split(", ")] == [f"joint/j{i}/frictionloss" for i in (4, 3, 2)]
    assert named.endswith("and 2 more")


@pytest.mark.parametrize(
    ("before", "after", "sd", "shown"),
    [
        (1.0, 2.0512, 0.031, "1.00 -> 2.05 ± 0.03"),
        (1.0, 2.0512, 0.0131, "1.000 -> 2.051 ± 0.013"),
        (95.1, 93.5, 4.2, "95 -> 94 ± 4"),
        (1500.0, 1712.4, 110.0, "1500 -> 1712 ± 110"),
        (0.0, -3.44, 0.2, "0.0 -> -3.4 ± 0.2"),
        (0.0018, 0.00151, 2e-5, "0.00180 -> 0.00151 ± 0.00002"),
        (1e-9, 2e-9, 3e-11, "1e-09 -> 2e-09 ± 3e-11"),
        (1.0, 2.0, 0.0, "1.000 -> 2.000 ± 0.000"),
    ],
)
def test_numbers_have_the_digits_that_their_uncertainty_allows(
    before: float, after: float, sd: float, shown: str
) -> None:
    estimate = replace(FRICTION, before=before, after=after, sd=sd)
    assert estimate.sentence == f"joint/joint4/frictionloss {shown} N·m"
    assert replace(estimate, unit="").sentence == f"joint/joint4/frictionloss {shown}"


def test_limit_shortens_the_whole_step_and_stays_within_bounds() -> None:
    low, high = np.full(3, -1.0), np.full(3, 1.0)
    before = np.array([0.0, 0.5, 0.0])
    got = limit(before, np.array([2.0, 0.0, 0.0]), low, high, 0.5)
    np.testing.assert_allclose(got, [0.5, 0.375, 0.0])
    np.testing.assert_array_equal(limit(before, np.array([0.2, 0.4, 0.1]), low, high, 0.5), [0.2, 0.4, 0.1])
    np.testing.assert_array_equal(limit(before, np.array([0.0, 9.0, 0.0]), low, high, 20.0), [0.0, 1.0, 0.0])
    np.testing.assert_array_equal(limit(before, before, low, high, 0.5), before)


def test_movable_are_identified_ones_and_beside_a_model_error_only_survivors() -> None:
    survivor = replace(DAMPING, effective=True, status="estimating")
    estimates = [FRICTION, survivor, MASS, replace(MASS, status="unestimated", effective=True)]
    np.testing.assert_array_equal(movable(estimates, structural=False), [True, True, False, False])
    np.testing.assert_array_equal(movable(estimates, structural=True), [False, True, False, False])


def test_every_decision_has_reason_and_remedy() -> None:
    cases: list[Decision] = [
        decide([FRICTION], check, findings, outside_range=outside, unfollowed=unfollowed)
        for check in (None, ACCEPTED, REJECTED)
        for findings in ([], [LOAD])
        for outside in ([], ["x"])
        for unfollowed in ([], ["y"])
    ]
    for decision in cases:
        assert decision.reason
        assert decision.remedy
        assert "\n" not in decision.sentence
