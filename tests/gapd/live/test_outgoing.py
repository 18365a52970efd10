"""What decisions become on the wire is what the host takes: sizes, covariance, numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gapd.fit.cycle import Standing, prepare, run
from gapd.live import outgoing
from gapd.live.events import Decided, Job, Judged
from gapd.live.trial_period import Return
from gapd.messages.link import ENCODER, MAX_ACTIVE, MAX_BYTES
from gapd.model.robot import Robot
from gaptrain.host.message_faults import correction_values, escalation_fault, verdict_fault
from gaptrain.host.values import Values, unpack_covariance
from gaptrain.structures import load_dependent_friction


def decided(robot: Robot, recorded: Any, structure: bool = False) -> Decided:
    hidden = load_dependent_friction(robot, "j", 0.2) if structure else None
    truth = robot.parameters.nominal * np.array([1.5, 2.0, 0.6, 1.8])
    prepared = prepare(robot, [recorded(robot, truth, 20.0, 4, hidden).frames])
    standing = Standing(robot.parameters.z_nominal)
    report = run(robot, prepared, standing)
    return Decided(Job(prepared, standing, "commissioning", np.nan), report, report.identification.z, True)


@pytest.fixture(scope="module")
def corrected(tiny: Robot, recorded: Any) -> Decided:
    return decided(tiny, recorded)


def test_a_correction_that_the_host_takes(tiny: Robot, corrected: Decided) -> None:
    message = outgoing.correction(corrected, 17.5)
    values = correction_values(message, tiny.parameters)
    assert isinstance(values, Values)
    np.testing.assert_allclose(values.z, corrected.z, atol=1e-9)
    assert (message.timestamp, message.previous) == (17.5, False)
    told = corrected.report.identification.uncertainty
    active = list(message.active)
    covariance = unpack_covariance(message.covariance, len(active))
    np.testing.assert_allclose(covariance, told.covariance[np.ix_(active, active)], rtol=1e-6)
    assert set(message.changed) == {e.name for e in corrected.report.decision.corrections if e.significant}
    assert len(ENCODER.encode(message)) < MAX_BYTES


def test_an_escalation_that_the_host_takes(tiny: Robot, recorded: Any) -> None:
    event = decided(tiny, recorded, structure=True)
    message = outgoing.escalation(event, 17.5, "0" * 64, 100)
    assert escalation_fault(message) == ""
    assert (message.terms[0].joint, message.terms[0].regressor) == ("j", "load friction")
    assert ("j", "load friction") in outgoing.escalation_key(event)
    assert escalation_fault(outgoing.escalation(event, 17.5, "", 0)) == ""


def test_previous_values_and_verdicts_that_the_host_takes(tiny: Robot, corrected: Decided) -> None:
    z = tiny.parameters.z_nominal
    check = corrected.report.check
    sd = corrected.report.identification.uncertainty.sd
    message = outgoing.returned(Return(z, corrected.z, check), tiny.parameters.names, sd, 17.5)
    assert isinstance(correction_values(message, tiny.parameters), Values)
    assert message.previous
    assert set(message.changed) == {n for n, a, b in zip(tiny.parameters.names, z, corrected.z, strict=True) if a != b}
    answer = outgoing.verdict(Judged("c1", check, z), 4, 17.5)
    assert verdict_fault(answer) == ""
    assert (answer.candidate, answer.verdict, answer.base_version) == ("c1", check.verdict, 4)


def test_the_best_known_parameters_have_a_covariance() -> None:
    sd = np.linspace(1.0, 0.1, 100)
    known = np.ones(100, bool)
    known[99] = False
    active = outgoing._active(known, sd)
    np.testing.assert_array_equal(active, np.arange(99 - MAX_ACTIVE, 99))


def test_names_are_as_many_as_fit() -> None:
    names = [f"joint/{n:04d}/damping" for n in range(3000)]
    few = outgoing._named(names)
    assert list(few) == names[: len(few)]
    assert 20 < len(few) < 60
    assert outgoing._named(names[:3]) == tuple(names[:3])


def test_the_lower_triangle_row_by_row() -> None:
    full = np.array([[1.0, 2.0, 4.0], [2.0, 3.0, 5.0], [4.0, 5.0, 6.0]])
    packed = outgoing.pack_covariance(full)
    np.testing.assert_array_equal(np.frombuffer(packed, "<f4"), [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(unpack_covariance(packed, 3), full)
