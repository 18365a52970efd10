"""The report: the same numbers for people and for programs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from gapd.fit.cycle import Report, prepare, run
from gapd.fit.finding import Finding
from gapd.fit.report import intervals, plain, table, text
from gapd.model.robot import Robot

Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def truth(tiny: Robot) -> Array:
    return np.asarray(tiny.parameters.nominal * np.array([1.5, 2.0, 0.6, 1.8]))


@pytest.fixture(scope="module")
def report(tiny: Robot, truth: Array, recorded: Any) -> Report:
    frames = recorded(tiny, truth, 20.0, seed=2).frames
    frames.measured[:, 2] = np.nan  # the recording has no effort
    return run(tiny, prepare(tiny, [frames]))


def test_intervals_are_students_in_scaled_values(report: Report, tiny: Robot) -> None:
    told = report.identification.uncertainty
    for (low, high), z, sd, dof in zip(
        intervals(report, tiny), report.identification.z, told.sd, told.dof, strict=True
    ):
        half = stats.t.ppf(0.95, dof) * sd
        assert np.log(low) == pytest.approx(z - half, abs=0.01 * half)
        assert np.log(high) == pytest.approx(z + half, abs=0.01 * half)


def test_intervals_end_at_the_bounds(report: Report, tiny: Robot) -> None:
    found = report.identification
    unsure = replace(found.uncertainty, covariance=np.eye(4) * 9.0)
    wide = replace(report, identification=replace(found, uncertainty=unsure))
    for (low, high), parameter in zip(intervals(wide, tiny), tiny.parameters.free, strict=True):
        assert low == pytest.approx(parameter.min, rel=1e-9)
        assert high == pytest.approx(parameter.max, rel=1e-9)


def test_plain_values_survive_json_and_agree_with_the_report(report: Report, tiny: Robot) -> None:
    values = json.loads(json.dumps(plain(report, tiny), allow_nan=False))
    assert set(values) == {
        "robot", "level", "action", "reason", "remedy", "windows", "gap", "check", "parameters", "corrections",
        "ambiguous", "findings", "rollouts", "seed",
    }  # fmt: skip
    assert (values["robot"], values["action"], values["level"], values["seed"]) == ("tiny", "correct", "OK", 3)
    assert values["windows"]["fitted"] == report.fitted
    assert values["windows"]["held_out"] == len(report.held)
    assert sum(values["windows"]["verdicts"].values()) == len(report.gates)
    assert [p["name"] for p in values["parameters"]] == list(tiny.parameters.names)
    for p, estimate in zip(values["parameters"], report.estimates, strict=True):
        assert p["low"] < p["after"] < p["high"]
        assert (p["before"], p["after"], p["sd"]) == (estimate.before, estimate.after, estimate.sd)
        assert (p["unit"], p["status"], p["effective"], p["sent"]) == (estimate.unit, "estimated", False, True)
    assert values["corrections"] == {p["name"]: p["after"] for p in values["parameters"]}
    assert values["gap"]["before"] > 5
    assert values["gap"]["after"] < 1.2
    assert list(values["gap"]["channels"]) == ["j/position", "j/velocity", "j/effort"]
    assert values["gap"]["channels"]["j/effort"] == {"before": None, "after": None}
    assert values["check"]["verdict"] == "accepted"
    assert 0 <= values["check"]["p_value"] < 0.01


def test_plain_values_name_groups_and_findings(report: Report, tiny: Robot) -> None:
    found = report.identification
    finding = Finding("spring", "j", 9.0, 0.3, 0.05, 0.005, "N·m/rad")
    changed = replace(found, findings=(finding,), uncertainty=replace(found.uncertainty, groups=((1, 3), (2,))))
    other = replace(report, identification=changed)
    values = plain(other, tiny)
    assert values["ambiguous"] == [["joint/j/damping", "joint/j/armature"]]
    assert values["findings"][0]["sentence"] == finding.sentence
    assert values["findings"][0]["coefficient"] == 0.05
    written = text(other, tiny)
    assert "ambiguous  joint/j/damping, joint/j/armature: only a combination is known" in written
    assert f"structure  {finding.sentence}" in written


def test_text_shows_parameters_gaps_windows_and_the_decision(report: Report, tiny: Robot) -> None:
    lines = text(report, tiny).splitlines()
    start = lines.index(next(line for line in lines if line.startswith("parameter")))
    for line, estimate, (low, high) in zip(lines[start + 2 :], report.estimates, intervals(report, tiny), strict=False):
        assert line.split() == [
            estimate.name, f"{estimate.before:.4g}", f"{estimate.after:.4g}", f"{low:.4g}", "..", f"{high:.4g}",
            estimate.unit, estimate.status, "sent",
        ]  # fmt: skip
    assert not any(line.startswith("j/effort") for line in lines), "an absent channel has no row"
    assert any(line.split()[0] == "j/velocity" for line in lines if line)
    decision = next(line for line in lines if line.startswith("decision"))
    assert decision == f"decision   OK correct: {report.decision.reason}"
    assert lines[-1] == f"remedy     {report.decision.remedy}"
    assert f"{report.fitted} fitted, {len(report.held)} held out" in text(report, tiny)
    assert str(report.rollouts) in next(line for line in lines if line.startswith("rollouts"))


def test_text_shows_the_truth_where_it_is_known(report: Report, tiny: Robot, truth: Array) -> None:
    lines = text(report, tiny, dict(zip(tiny.parameters.names, truth.tolist(), strict=True))).splitlines()
    assert lines[0].split()[:4] == ["parameter", "true", "before", "fitted"]
    assert lines[2].split()[:3] == ["actuator/servo/kp", "6", "4"]


def test_a_value_that_holds_only_beside_a_model_error_says_so(report: Report, tiny: Robot) -> None:
    estimates = (replace(report.estimates[0], effective=True), *report.estimates[1:])
    finding = Finding("spring", "j", 9.0, 0.3, 0.05, 0.005, "N·m/rad")
    found = replace(report.identification, findings=(finding,))
    decision = replace(report.decision, corrections=estimates[:1])
    other = replace(report, estimates=estimates, identification=found, decision=decision)
    rows = [line.split() for line in text(other, tiny).splitlines()[2:6]]
    assert rows[0][-2:] == ["estimated", "effective"]
    assert all(row[-4:] == ["bent", "by", "structure,", "kept"] for row in rows[1:])
    assert plain(other, tiny)["parameters"][0]["effective"] is True
    assert [p["sent"] for p in plain(other, tiny)["parameters"]] == [True, False, False, False]


def test_a_gap_that_is_not_finite_is_null_for_programs(report: Report, tiny: Robot) -> None:
    diverged = replace(report, check=replace(report.check, gap_after=float("nan"), p_value=float("nan")))
    values = json.loads(json.dumps(plain(diverged, tiny), allow_nan=False))
    assert (values["gap"]["after"], values["check"]["p_value"]) == (None, None)


def test_table_is_as_wide_as_its_content() -> None:
    assert table(["name", "value"], [["a", "1"], ["longer", "12345.6"]]).splitlines() == [
        "name      value",
        "------  -------",
        "a             1",
        "longer  12345.6",
    ]
