"""Student's t against scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from gapd.fit.students_t import quantile, tail


@pytest.mark.parametrize(
    ("probability", "within"), [(0.5, 5e-3), (0.9, 3e-3), (0.95, 3e-3), (0.99, 3e-3), (0.9999, 1e-2)]
)
def test_quantile_is_students(probability: float, within: float) -> None:
    dof = np.array([10, 12, 15.5, 20, 40, 100, 1e3, 1e6])
    np.testing.assert_allclose(quantile(probability, dof), stats.t.ppf(0.5 + probability / 2, dof), rtol=within)


@pytest.mark.parametrize("dof", [1, 2, 3, 4, 5, 8, 15, 30, 101, 299])
def test_tail_is_students(dof: int) -> None:
    for t in (-5.0, -0.7, 0.0, 0.3, 1.0, 2.5, 6.0):
        assert tail(t, dof) == pytest.approx(float(stats.t.sf(t, dof)), rel=1e-9, abs=1e-14)


def test_tail_of_many_degrees_of_freedom_is_normal() -> None:
    assert tail(2.0, 5000) == pytest.approx(float(stats.norm.sf(2.0)))
