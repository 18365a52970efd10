"""What a finished fit knows: intervals clustered by window, status, groups that the data cannot tell apart. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gapd.fit.students_t import quantile

Array = NDArray[np.float64]
Status = Literal["unestimated", "estimating", "estimated", "at_bound", "unidentifiable"]

# A direction whose data leave more than this share of the prior's standard deviation is not identified.
UNKNOWN_SHARE = 0.5
# A parameter known worse than this (scaled: 10 % of a value on a log scale) is still being estimated.
ESTIMATED_SD = 0.1
# Share of the range within which a parameter counts as on its bound.
BOUND_SHARE = 1e-3
# Loading, relative to the largest in a direction, from which a parameter has a part in that direction.
GROUP_LOADING = 0.3
# Share of a parameter inside the unidentified directions below which it has none in them: a tenth of the prior.
GROUP_SHARE = 0.01
# A change of fewer standard deviations is no news.
CHANGE_SD = 3.0
# Degrees of freedom with which the common variance inflation enters each parameter's own.
POOLED_DOF = 12.0


@dataclass(frozen=True)
class Uncertainty:
    """Covariance (P, P) of the scaled estimate; `dof` (P,) degrees of freedom of its standard deviations."""

    covariance: Array
    bound_sd: Array  # (P,) standard deviation if the residuals were pure channel noise
    dof: Array
    status: tuple[Status, ...]
    groups: tuple[tuple[int, ...], ...]

    @property
    def sd(self) -> Array:
        """Standard deviations (P,), scaled."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def unknown(self) -> NDArray[np.bool_]:
        """Parameters (P,) that the data do not identify."""
        return np.array([status == "unidentifiable" for status in self.status])

    @property
    def ambiguous(self) -> tuple[tuple[int, ...], ...]:
        """Groups of which the data know only a combination."""
        return tuple(group for group in self.groups if len(group) > 1)

    def half_width(self, level: float) -> Array:
        """Half widths (P,) of the intervals that hold the truth with probability `level`, scaled."""
        return np.asarray(quantile(level, self.dof) * self.sd)


def assess(information: Array, score: Array, prior_sd: Array, z: Array, lower: Array, upper: Array) -> Uncertainty:
    """Uncertainty of a fit at its final point.

    information (W, P, P) and score (W, P) per window from exact derivatives; prior_sd, z, lower, upper (P,) scaled.
    """
    push = score.sum(axis=0)  # where a bound is pushed
    total = information.sum(axis=0) + np.diag(1.0 / prior_sd**2)
    inverse = np.linalg.inv(total)
    factor, dof = inflation(information, score, inverse)
    root = np.sqrt(factor)
    covariance = inverse * root[:, None] * root[None, :]
    sd = np.sqrt(np.diag(covariance))
    groups = ambiguities(information.sum(axis=0), prior_sd)
    loose = {p for group in groups for p in group}
    status = tuple(_status(p in loose, sd[p], prior_sd[p], z[p], lower[p], upper[p], push[p]) for p in range(len(z)))
    return Uncertainty(covariance, np.sqrt(np.diag(inverse)), dof, status, groups)


def inflation(information: Array, score: Array, inverse: Array) -> tuple[Array, Array]:
    """Variance inflation (P,) of the sandwich over the pure-noise covariance, and its degrees of freedom (P,).

    Residuals within a window are autocorrelated, so a window is one observation. With few windows a
    parameter's own sandwich is noisy: it is pooled with the common inflation, weighted by the degrees of
    freedom (Satterthwaite) that each has. Cf. Bell and McCaffrey 2002. Never below 1: windows that happen to
    agree do not make the sensors better than they are.
    """
    influence = score @ inverse  # (W, P) what each window pulls the estimate by
    left = np.empty(influence.shape)  # (W, P) its variance under pure noise
    for w, own_information in enumerate(information):
        seen = inverse @ own_information
        # The fit has already used the windows' pulls against each other: residual pulls are smaller than that.
        left[w] = np.einsum("pi,ip->p", seen - seen @ seen, inverse)
    left = np.maximum(left, 0.0)
    total, squares = left.sum(axis=0), (left**2).sum(axis=0)
    # A parameter without any effect has no degrees of freedom, and must not spoil those of the others.
    own_dof = total**2 / np.where(squares > 0, squares, np.inf)
    own = (influence**2).sum(axis=0) / np.where(squares > 0, total, np.inf)
    common = float(np.sum(own * own_dof) / max(np.sum(own_dof), 1.0))
    pooled = (own_dof * own + POOLED_DOF * common) / (own_dof + POOLED_DOF)
    return np.maximum(pooled, 1.0), own_dof + POOLED_DOF


def unknown_directions(information: Array, prior_sd: Array) -> Array:
    """Orthonormal directions (P, D), in prior standard deviations (P,), that information (P, P) does not identify.

    In units of the prior the information has eigenvalue e along a direction of standard deviation 1 / sqrt(1 + e)
    after the data.
    """
    values, vectors = np.linalg.eigh(information * prior_sd[:, None] * prior_sd[None, :])
    return np.asarray(vectors[:, 1.0 / np.sqrt(1.0 + np.maximum(values, 0.0)) > UNKNOWN_SHARE])


def ambiguities(information: Array, prior_sd: Array) -> tuple[tuple[int, ...], ...]:
    """Sets of parameters that share a direction the data do not identify; single ones are groups of one.

    Eigenvectors of equal values are arbitrary, so the groups come from the projector on all unidentified directions:
    for a single direction v its entries are v v'.
    """
    unknown = unknown_directions(information, prior_sd)
    projector = np.abs(unknown @ unknown.T)
    own = np.diag(projector)
    member = (own > GROUP_SHARE) & (own >= GROUP_LOADING * projector.max(axis=1))
    linked = projector > GROUP_LOADING * np.sqrt(np.outer(own, own))
    groups: list[tuple[int, ...]] = []
    left = set(np.flatnonzero(member).tolist())
    while left:
        group, edge = set(), {min(left)}
        while edge:
            group |= edge
            edge = {q for q in left - group if linked[list(edge), q].any()}
        left -= group
        groups.append(tuple(sorted(group)))
    return tuple(groups)


def _status(loose: bool, sd: float, prior_sd: float, z: float, lower: float, upper: float, push: float) -> Status:
    margin = BOUND_SHARE * (upper - lower)
    if loose or sd > UNKNOWN_SHARE * prior_sd:
        return "unidentifiable"
    if (z <= lower + margin and push <= 0) or (z >= upper - margin and push >= 0):
        return "at_bound"
    return "estimated" if sd <= ESTIMATED_SD else "estimating"
