"""What windows of the training's motions would tell about each parameter, by exact derivatives."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gapd.fit.estimator import PRIOR_SHARE
from gapd.fit.gauss_newton import normal_equations
from gapd.fit.uncertainty import ambiguities
from gapd.gap.jacobian import Linearisation
from gapd.gap_model.manifest import Expected
from gapd.model.parameters import ParameterSet

Array = NDArray[np.float64]

# As many as a fit uses by default.
WINDOWS = 32


def expected(space: ParameterSet, derivatives: Array, x0_sd: Array) -> Expected:
    """Expected knowledge from the first windows of derivatives (n, K, C, D), each of other parameters.

    x0_sd (2 nv,) is the standard deviation of the measured initial states.
    """
    derivatives, p = derivatives[:WINDOWS], len(space)
    n, knots, channels, _ = derivatives.shape
    linear = Linearisation(derivatives[..., :p], derivatives[..., p:])
    none = np.zeros((n, len(x0_sd)))
    normal = normal_equations(np.zeros((n, knots, channels)), linear, np.ones(channels), none, none + x0_sd)
    information = normal.information.sum(axis=0)
    prior_sd = PRIOR_SHARE * (space.z_max - space.z_min)
    sd = np.sqrt(np.diag(np.linalg.inv(information + np.diag(1.0 / prior_sd**2))))
    groups = (tuple(space.names[member] for member in group) for group in ambiguities(information, prior_sd))
    return Expected(n, tuple(prior_sd.tolist()), tuple(sd.tolist()), tuple(groups))
