"""Structure: does something that no parameter can express explain what the fit leaves? Pure.

Each hypothesis competes with all parameters and initial states for the residuals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gapd.fit.finding import RESISTS
from gapd.fit.gauss_newton import Normal
from gapd.fit.hypotheses import Hypothesis
from gapd.fit.students_t import quantile
from gapd.fit.uncertainty import CHANGE_SD, inflation

Array = NDArray[np.float64]

# Probability of any false finding in one fit, shared by all hypotheses tested (Bonferroni).
FALSE_FINDING = 1e-3
# ... and this share of the remaining squared gap, below which nobody would act on it.
MIN_SHARE = 0.02
# A parameter's change survives if at least this share of it remains with the finding as a nuisance.
SURVIVING_SHARE = 0.5
# Hypotheses that explain at least this share of what the strongest does are fitted, too: the first order of a large
# effect does not tell neighbours apart.
CONTENDS = 0.7
MOST_CONTENDERS = 2
# Prior standard deviation of a coefficient in units of its size: wide, it only holds what has no effect at all.
LOOSE = 10.0


@dataclass(frozen=True)
class Prior:
    """Prior of P scaled parameters at a fit: standard deviation (P,), and its score (P,), which balances the data's."""

    sd: Array
    pull: Array


def contenders(tested: Sequence[Hypothesis], normal: Normal, prior: Prior, remaining: float) -> list[Hypothesis]:
    """The hypotheses that explain most, if significant, worth acting on, and if no change of the robot feigns them.

    At most MOST_CONTENDERS, no two of a name, the strongest first; the others explain nearly as much.

    normal holds P parameters, the columns of the findings so far, and those of each hypothesis; each hypothesis
    competes with all but the other hypotheses, along the direction in which it explains most. Its windows are in the
    order of time. remaining is the squared weighted gap.
    Parameters that change at some moment must explain less, or leave something significant to explain.
    """
    widths = [len(h.effects) for h in tested]
    beside = normal.score.shape[1] - sum(widths)
    normal = combine(normal, beside, _directions(normal, prior, beside, widths))
    # A direction chosen among m has m chances to look like something (Scheffé).
    wide = [float(np.sqrt(w)) for w in widths]
    least = 1.0 - FALSE_FINDING / max(sum(widths), 1)
    shares = [
        _share(normal, prior, [*range(beside), beside + i], least, wide[i]) / remaining for i in range(len(tested))
    ]
    signed = [s if h.regressor not in RESISTS or s > 0 else 0.0 for s, h in zip(shares, tested, strict=True)]
    worth = sorted((i for i, s in enumerate(signed) if abs(s) >= MIN_SHARE), key=lambda i: -abs(signed[i]))
    if not worth:
        return []
    late, gain = _change(normal, prior, beside)
    changing, wider = _changing(normal, prior, late)
    competing = range(beside + len(prior.sd))
    found: dict[tuple[str, str], int] = {}
    for i in worth:
        if len(found) == MOST_CONTENDERS or (
            found and abs(signed[i]) < CONTENDS * abs(signed[next(iter(found.values()))])
        ):
            break
        beside_change = _share(changing, wider, [*competing, len(competing) + i], least, wide[i])
        if abs(signed[i]) > gain / remaining or signed[i] * beside_change > 0:
            found.setdefault(tested[i].name, i)
    return [tested[i] for i in found.values()]


def combine(normal: Normal, beside: int, directions: Sequence[Array]) -> Normal:
    """The same with one column for each of H hypotheses, along its direction (m,) of m, after the others `beside`."""
    mix = np.zeros((normal.score.shape[1], beside + len(directions)))
    mix[range(beside), range(beside)] = 1.0
    first = beside
    for number, direction in enumerate(directions):
        mix[first : first + len(direction), beside + number] = direction
        first += len(direction)
    return replace(
        normal,
        information=mix.T @ normal.information @ mix,
        score=normal.score @ mix,
        x0_along=normal.x0_along @ mix,
    )


def _directions(normal: Normal, prior: Prior, beside: int, widths: Sequence[int]) -> list[Array]:
    """Unit vector (m,) for each hypothesis of m columns: where the least squares beside the others would move it."""
    found, first = [], beside
    for width in widths:
        columns = [*range(beside), *range(first, first + width)]
        first += width
        if width == 1:
            found.append(np.ones(1))
            continue
        pull = normal.score[:, columns].sum(axis=0)
        pull[: len(prior.sd)] += prior.pull
        step = (_inverse(normal.information[:, columns][:, :, columns], prior.sd) @ pull)[beside:]
        found.append(step / max(float(np.linalg.norm(step)), 1e-30))
    return found


def _change(normal: Normal, prior: Prior, beside: int) -> tuple[NDArray[np.bool_], float]:
    """Windows (W,) after the moment from which on other parameters explain most, and the squared gap they explain.

    A score test at each moment (Andrews 1993), to first order. Windows that mix two truths leave what no parameters
    explain, but a force may by chance, most easily one that drifts.
    """
    p = len(prior.sd)
    information, score = normal.information[:, :beside, :beside], normal.score[:, :beside]
    inverse = _inverse(information, prior.sd)
    pull = score.sum(axis=0)
    pull[:p] += prior.pull
    late_score = np.cumsum((score - information @ (inverse @ pull))[::-1], axis=0)[::-1, :p]
    late = np.cumsum(information[::-1], axis=0)[::-1]
    known = late[:, :p, :p] - late[:, :p] @ inverse @ late[:, :, :p] + np.diag(1.0 / prior.sd**2)
    gain = np.einsum("wp,wp->w", late_score, np.linalg.solve(known, late_score[..., None])[..., 0])
    moment = int(np.argmax(gain))
    return np.arange(len(gain)) >= moment, float(gain[moment])


def _changing(normal: Normal, prior: Prior, late: NDArray[np.bool_]) -> tuple[Normal, Prior]:
    """The same with parameters that may change: after the P a column each, of late windows (W,), and an equal prior."""
    p = len(prior.sd)
    columns = [*range(p), *range(p), *range(p, normal.score.shape[1])]
    mask = np.ones((len(late), len(columns)))
    mask[~late, p : 2 * p] = 0.0
    changing = replace(
        normal,
        information=normal.information[:, columns][:, :, columns] * mask[:, :, None] * mask[:, None, :],
        score=normal.score[:, columns] * mask,
        x0_along=normal.x0_along[:, :, columns] * mask[:, None, :],
    )
    return changing, Prior(np.tile(prior.sd, 2), np.append(prior.pull, np.zeros(p)))


def _share(normal: Normal, prior: Prior, columns: list[int], probability: float, wide: float) -> float:
    """Squared gap that the last of the columns explains, with the sign of its coefficient; 0 if insignificant.

    The deviation needed is that of the probability, times `wide`.
    """
    information, score = normal.information[:, columns][:, :, columns], normal.score[:, columns]
    inverse = _inverse(information, prior.sd)
    pull = score.sum(axis=0)
    pull[: len(prior.sd)] += prior.pull
    step = inverse @ pull
    # What each window still pulls at after the step: the misfit of the hypothesis itself.
    factor, dof = inflation(information, score - information @ step, inverse)
    needed = wide * float(quantile(probability, dof[-1:])[0]) * np.sqrt(factor[-1] * inverse[-1, -1])
    return float(np.sign(step[-1]) * step[-1] ** 2 / inverse[-1, -1]) if abs(step[-1]) >= needed else 0.0


def _inverse(information: Array, prior_sd: Array) -> Array:
    """Covariance of P parameters with a prior and further columns with a loose one; empty columns do no harm."""
    total = information.sum(axis=0)
    loose = np.full(len(total) - len(prior_sd), LOOSE)
    total += np.diag(1.0 / np.concatenate([prior_sd, loose]) ** 2)
    return np.asarray(np.linalg.inv(total + 1e-9 * np.diag(np.diag(total))))


def column_covariance(normal: Normal, prior: Prior) -> Array:
    """Covariance (n, n) of the n columns after the P parameters, at a fit that includes them."""
    inverse = _inverse(normal.information, prior.sd)
    factor, _ = inflation(normal.information, normal.score, inverse)
    root = np.sqrt(factor)
    return np.asarray((inverse * root[:, None] * root)[len(prior.sd) :, len(prior.sd) :])


def surviving(before: Array, plain: Array, with_nuisance: Array, sd: Array) -> NDArray[np.bool_]:
    """Which parameters (P,) keep their change when the findings are nuisances; all arguments scaled (P,).

    The change from `before` must stay significant and keep its sign and at least half of its size.
    """
    change, kept = plain - before, with_nuisance - before
    half = kept * np.sign(change) >= SURVIVING_SHARE * np.abs(change)
    return np.asarray(half & (np.abs(kept) > CHANGE_SD * sd))
