"""Structure: does something that no parameter can express explain what the fit leaves? Pure.

Each hypothesis is a force at one joint that grows with one regressor of the replayed motion. Its effect on
the prediction is exact to first order: one more replay with a little of that force. It then competes with
all parameters and initial states for the residuals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gapd.fit.gauss_newton import Normal
from gapd.fit.students_t import quantile
from gapd.fit.uncertainty import CHANGE_SD, inflation
from gapd.measured.windows import Windows
from gapd.model.robot import ABSENT, Layout

Array = NDArray[np.float64]

# Speed at which a smoothed sign reaches 0.76, as a share of the joint's RMS speed: slower is "at rest".
SIGN_SHARE = 0.1
# Speed, as a share of the joint's RMS speed, below which extra friction counts as sticking.
STICK_SHARE = 0.3
# Share of the motion at either end in which a stop is looked for.
STOP_SHARE = 0.2
# Size of the trial force, as a share of the joint's RMS load: far above solver tolerance, still linear.
TRIAL_SHARE = 0.01
# Joints slower or under less load than this (SI) are at rest: there is nothing to test.
MOVES = 1e-6
LOADED = 1e-9
# Probability of any false finding in one fit, shared by all hypotheses tested (Bonferroni).
FALSE_FINDING = 1e-3
# ... and this share of the remaining squared gap, below which nobody would act on it.
MIN_SHARE = 0.02
# A parameter's change survives if at least this share of it remains with the finding as a nuisance.
SURVIVING_SHARE = 0.5

# Forces that can only resist: a negative one would drive, which is another story (wrong sign, unit or time).
_RESISTS = ("load friction", "stiction", "upper stop", "lower stop")
# Where a stop begins, and what it absorbs, is not fitted: its stiffness holds beside that only, and no interval for it.
_ROUGH = ("upper stop", "lower stop")


class _Meaning(NamedTuple):
    """What a regressor says: unit of its coefficient on a hinge and on a slide, sentence, and what to do."""

    hinge: str
    slide: str
    sentence: str
    remedy: str


_MEANING = {
    "load friction": _Meaning(
        "", "", "friction grows with load",
        "no MuJoCo parameter does that: use the effective values, and randomise the friction of {} in training",
    ),
    "stiction": _Meaning(
        "N·m", "N", "sticks at low speed",
        "let a parameter write dof_frictionloss of {0}; if one does, give {0} a dcmotor actuator with LuGre friction",
    ),
    "direction": _Meaning(
        "N·m", "N", "friction depends on direction of motion", "look for a constant force or an uneven gear at {}"
    ),
    "spring": _Meaning("N·m/rad", "N/m", "a force grows with position", "let a parameter write jnt_stiffness of {}"),
    "upper stop": _Meaning("N·m/rad", "N/m", "is pushed back from above", "look for contact or a cable at {}"),
    "lower stop": _Meaning("N·m/rad", "N/m", "is pushed back from below", "look for contact or a cable at {}"),
    "drift": _Meaning("N·m/s", "N/s", "a force drifts with time", "record {} warm, and at constant supply voltage"),
}  # fmt: skip


@dataclass(frozen=True)
class Hypothesis:
    """A force (W, N+1, nv), in N·m or N per unit of the regressor's own coefficient.

    `size` is the coefficient whose force is as large as the joint's RMS load.
    """

    regressor: str
    joint: str
    force: Array
    size: float
    unit: str  # of the coefficient


@dataclass(frozen=True)
class Finding:
    """A hypothesis that holds: `share` of the squared gap it takes away, `z` coefficient over deviation."""

    regressor: str
    joint: str
    z: float
    share: float
    coefficient: float
    coefficient_sd: float
    unit: str

    @property
    def sentence(self) -> str:
        """One line for the journal."""
        unit = f" {self.unit}" if self.unit else ""
        size = f"{self.coefficient:.3g} ± {self.coefficient_sd:.2g}{unit}"
        if self.regressor in _ROUGH:
            size = f"about {self.coefficient:.2g}{unit}"
        explains = f"explains {100 * self.share:.0f} % of the squared gap (z {self.z:.0f})"
        return f"{self.joint}: {_MEANING[self.regressor].sentence}: {self.regressor} {size} {explains}"

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return _MEANING[self.regressor].remedy.format(self.joint)


def hypotheses(layout: Layout, windows: Windows, features: Array) -> list[Hypothesis]:
    """All hypotheses for all joints that move, from the replayed features (W, K+1, F) at the knots."""
    nv, nu = windows.qpos0.shape[1], windows.control.shape[2]
    steps = _to_steps(features, layout)
    position, velocity = steps[..., :nv], steps[..., nv : 2 * nv]
    load = np.zeros_like(position)
    for actuator in np.flatnonzero(layout.actuator_joint != ABSENT):
        force_at_joint = layout.actuator_gear[actuator] * steps[..., 2 * nv + nu + actuator]
        load[..., layout.actuator_joint[actuator]] += force_at_joint
    elapsed = _elapsed(windows)[:, None] + np.arange(layout.steps + 1) * layout.step_s
    found: list[Hypothesis] = []
    for joint in range(nv):
        speed, torque = _rms(velocity[..., joint]), _rms(load[..., joint])
        if speed < MOVES or torque < LOADED:
            continue
        q, v, tau = position[..., joint], velocity[..., joint], load[..., joint]
        sign = np.tanh(v / (SIGN_SHARE * speed))
        shapes = {
            "load friction": -np.abs(tau) * sign,
            "stiction": -sign * np.exp(-((v / (STICK_SHARE * speed)) ** 2)),
            "direction": -np.abs(sign),
            "spring": -(q - q.mean()),
            "upper stop": -np.maximum(q - np.quantile(q, 1 - STOP_SHARE), 0.0),
            "lower stop": np.maximum(np.quantile(q, STOP_SHARE) - q, 0.0),
            "drift": elapsed - elapsed.mean(),
        }
        for regressor, shape in shapes.items():
            size = _rms(shape)
            if size < LOADED:
                continue
            force = np.zeros_like(position)
            force[..., joint] = shape
            unit = _MEANING[regressor].slide if layout.slides[joint] else _MEANING[regressor].hinge
            found.append(Hypothesis(regressor, layout.joints[joint], force, torque / size, unit))
    return found


def _to_steps(features: Array, layout: Layout) -> Array:
    """Features at knots (W, K+1, F) to simulation steps (W, N+1, F), linear in between."""
    at = np.arange(layout.steps + 1) / layout.substeps
    left = np.minimum(at.astype(int), layout.knots - 1)
    share = (at - left)[:, None]
    return np.asarray((1 - share) * features[:, left] + share * features[:, left + 1])


def _elapsed(windows: Windows) -> Array:
    """Start times (W,) around the middle of each recording: clocks of different recordings have nothing in common."""
    recordings, number = np.unique(windows.source, return_inverse=True)
    mean = np.bincount(number, windows.start_s) / np.bincount(number, minlength=len(recordings))
    return np.asarray(windows.start_s - mean[number])


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(values**2)))


@dataclass(frozen=True)
class Prior:
    """Prior of P scaled parameters at a fit: standard deviation (P,), and its score (P,), which balances the data's."""

    sd: Array
    pull: Array


def strongest(tested: Sequence[Hypothesis], normal: Normal, prior: Prior, remaining: float) -> Hypothesis | None:
    """The hypothesis that explains most, if it is significant, worth acting on, and no change of the robot feigns it.

    normal holds P parameters, a column for each finding so far, and one for each hypothesis; each hypothesis competes
    with all but the other hypotheses. Its windows are in the order of time. remaining is the squared weighted gap.
    Parameters that change at some moment must explain less, or leave something significant to explain.
    """
    beside = normal.score.shape[1] - len(tested)
    least = 1.0 - FALSE_FINDING / max(len(tested), 1)
    shares = [_share(normal, prior, [*range(beside), beside + i], least) / remaining for i in range(len(tested))]
    signed = [s if h.regressor not in _RESISTS or s > 0 else 0.0 for s, h in zip(shares, tested, strict=True)]
    worth = sorted((i for i, s in enumerate(signed) if abs(s) >= MIN_SHARE), key=lambda i: -abs(signed[i]))
    if not worth:
        return None
    late, gain = _change(normal, prior, beside)
    changing, wider = _changing(normal, prior, late)
    competing = range(beside + len(prior.sd))
    for i in worth:
        beside_change = _share(changing, wider, [*competing, len(competing) + i], least)
        if abs(signed[i]) > gain / remaining or signed[i] * beside_change > 0:
            return tested[i]
    return None


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


def _share(normal: Normal, prior: Prior, columns: list[int], probability: float) -> float:
    """Squared gap that the last of the columns explains, with the sign of its coefficient; 0 if insignificant."""
    information, score = normal.information[:, columns][:, :, columns], normal.score[:, columns]
    inverse = _inverse(information, prior.sd)
    pull = score.sum(axis=0)
    pull[: len(prior.sd)] += prior.pull
    step = inverse @ pull
    # What each window still pulls at after the step: the misfit of the hypothesis itself.
    factor, dof = inflation(information, score - information @ step, inverse)
    needed = float(quantile(probability, dof[-1:])[0]) * np.sqrt(factor[-1] * inverse[-1, -1])
    return float(np.sign(step[-1]) * step[-1] ** 2 / inverse[-1, -1]) if abs(step[-1]) >= needed else 0.0


def _inverse(information: Array, prior_sd: Array) -> Array:
    """Covariance of P parameters with a prior and further columns without; nearly empty columns do no harm."""
    total = information.sum(axis=0)
    total[range(len(prior_sd)), range(len(prior_sd))] += 1.0 / prior_sd**2
    return np.asarray(np.linalg.inv(total + 1e-9 * np.diag(np.diag(total))))


def column_sd(normal: Normal, prior: Prior) -> Array:
    """Standard deviations of the columns after the P parameters, at a fit that includes them."""
    inverse = _inverse(normal.information, prior.sd)
    factor, _ = inflation(normal.information, normal.score, inverse)
    return np.asarray(np.sqrt(factor * np.diag(inverse))[len(prior.sd) :])


def surviving(before: Array, plain: Array, with_nuisance: Array, sd: Array) -> NDArray[np.bool_]:
    """Which parameters (P,) keep their change when the findings are nuisances; all arguments scaled (P,).

    The change from `before` must stay significant and keep its sign and at least half of its size.
    """
    change, kept = plain - before, with_nuisance - before
    half = kept * np.sign(change) >= SURVIVING_SHARE * np.abs(change)
    return np.asarray(half & (np.abs(kept) > CHANGE_SD * sd))
