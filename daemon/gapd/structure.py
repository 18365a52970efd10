"""Structure: does something that no parameter can express explain what the fit leaves? Pure.

Each hypothesis is a force at one joint that grows with one regressor of the replayed motion. Its effect on
the prediction is exact to first order: one more replay with a little of that force. It then competes with
all parameters and initial states for the residuals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gapd.gauss_newton import Normal
from gapd.robot import Layout
from gapd.uncertainty import inflation, quantile
from gapd.windows import Windows

Array = NDArray[np.float64]

# Speed at which a smoothed sign reaches 0.76, as a share of the joint's RMS speed: slower is "at rest".
SIGN_SHARE = 0.1
# Speed, as a share of the joint's RMS speed, below which extra friction counts as sticking.
STICK_SHARE = 0.3
# Size of the trial force, as a share of the joint's RMS load: far above solver tolerance, still linear.
TRIAL_SHARE = 0.01
# Probability of any false finding in one fit, shared by all hypotheses tested (Bonferroni).
FALSE_FINDING = 1e-3
# ... and this share of the remaining squared gap, below which nobody would act on it.
MIN_SHARE = 0.02
# A parameter's change survives if at least this share of it remains with the finding as a nuisance.
SURVIVING_SHARE = 0.5

_MEANING = {
    "load friction": ("", "friction grows with load"),
    "stiction": ("N·m", "sticks at low speed"),
    "direction": ("N·m", "friction depends on direction of motion"),
    "spring": ("N·m/rad", "a force grows with position"),
    "drift": ("N·m/s", "a force drifts with time"),
}


@dataclass(frozen=True)
class Hypothesis:
    """A force (W, N+1, nv), in N·m or N per unit of the regressor's own coefficient.

    `size` is the coefficient whose force is as large as the joint's RMS load.
    """

    regressor: str
    joint: str
    force: Array
    size: float
    trial: float = TRIAL_SHARE

    @property
    def unit(self) -> str:
        """Unit of the coefficient."""
        return _MEANING[self.regressor][0]


@dataclass(frozen=True)
class Finding:
    """A hypothesis that holds: `share` of the remaining squared gap it explains, `z` coefficient over deviation."""

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
        explains = f"explains {100 * self.share:.0f} % of the remaining squared gap (z {self.z:.0f})"
        return f"{self.joint}: {_MEANING[self.regressor][1]}: {self.regressor} {size} {explains}"


def hypotheses(layout: Layout, windows: Windows, features: Array, actuator_joint: NDArray[np.intp]) -> list[Hypothesis]:
    """All hypotheses for all joints that move, from the replayed features (W, K+1, F) at the knots."""
    nv, nu = windows.qpos0.shape[1], windows.control.shape[2]
    steps = _to_steps(features, layout)
    position, velocity = steps[..., :nv], steps[..., nv : 2 * nv]
    load = np.zeros_like(position)
    for actuator in range(nu):
        load[..., actuator_joint[actuator]] += steps[..., 2 * nv + nu + actuator]
    elapsed = windows.start_s[:, None] + np.arange(layout.steps + 1) * layout.step_s
    found: list[Hypothesis] = []
    for joint in range(nv):
        speed, torque = _rms(velocity[..., joint]), _rms(load[..., joint])
        if speed < 1e-6 or torque < 1e-9:
            continue
        q, v, tau = position[..., joint], velocity[..., joint], load[..., joint]
        sign = np.tanh(v / (SIGN_SHARE * speed))
        shapes = {
            "load friction": -np.abs(tau) * sign,
            "stiction": -sign * np.exp(-((v / (STICK_SHARE * speed)) ** 2)),
            "direction": -np.abs(sign),
            "spring": -(q - q.mean()),
            "drift": elapsed - elapsed.mean(),
        }
        for regressor, shape in shapes.items():
            size = _rms(shape)
            if size < 1e-9:
                continue
            force = np.zeros_like(position)
            force[..., joint] = shape
            found.append(Hypothesis(regressor, layout.joints[joint], force, torque / size))
    return found


def _to_steps(features: Array, layout: Layout) -> Array:
    """Features at knots (W, K+1, F) to simulation steps (W, N+1, F), linear in between."""
    at = np.arange(layout.steps + 1) / layout.substeps
    left = np.minimum(at.astype(int), layout.knots - 1)
    share = (at - left)[:, None]
    return np.asarray((1 - share) * features[:, left] + share * features[:, left + 1])


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(values**2)))


def judge(tested: Sequence[Hypothesis], normal: Normal, prior_sd: Array, remaining: float) -> list[Finding]:
    """Findings among the hypotheses, strongest first, each tested with the stronger ones as nuisances.

    normal holds P parameters and then one column per hypothesis; remaining is the squared weighted gap.
    """
    chosen: list[int] = []
    found: list[Finding] = []
    while len(chosen) < len(tested):
        rest = [i for i in range(len(tested)) if i not in chosen]
        tries = {i: _try(tested[i], normal, prior_sd, [*chosen, i], remaining) for i in rest}
        probability = 1.0 - FALSE_FINDING / len(tested)
        holding = [i for i in rest if tries[i][0].share >= MIN_SHARE and _significant(*tries[i], probability)]
        if not holding:
            break
        best = max(holding, key=lambda i: tries[i][0].share)
        chosen.append(best)
        found.append(tries[best][0])
    return found


def _significant(candidate: Finding, dof: float, probability: float) -> bool:
    return abs(candidate.z) >= float(quantile(probability, np.array(dof)))


def _try(
    hypothesis: Hypothesis, normal: Normal, prior_sd: Array, columns: list[int], remaining: float
) -> tuple[Finding, float]:
    """The last of the columns as one more unknown, beside all parameters and the other columns; degrees of freedom."""
    parameters = len(prior_sd)
    keep = [*range(parameters), *(parameters + c for c in columns)]
    information, score = normal.information[:, keep][:, :, keep], normal.score[:, keep]
    total = information.sum(axis=0)
    total[range(parameters), range(parameters)] += 1.0 / prior_sd**2
    inverse = np.linalg.inv(total + 1e-9 * np.diag(np.diag(total)))
    step = inverse @ score.sum(axis=0)
    left = score - information @ step  # what each window still pulls at after the step
    factor, dof = inflation(information, left, inverse)
    sd = float(np.sqrt(factor[-1] * inverse[-1, -1]))
    share = float(step[-1] ** 2 / inverse[-1, -1]) / remaining
    value, scale = float(step[-1]), hypothesis.size
    finding = Finding(
        hypothesis.regressor, hypothesis.joint, value / sd, share, value * scale, sd * scale, hypothesis.unit
    )
    return finding, float(dof[-1])


def surviving(before: Array, plain: Array, with_nuisance: Array, sd: Array) -> NDArray[np.bool_]:
    """Which parameters (P,) keep their change when the findings are nuisances; all arguments scaled (P,).

    The change from `before` must stay significant, keep its sign and at least half of its size, and must
    not have moved by more than the finding could have bent it.
    """
    change, kept = plain - before, with_nuisance - before
    half = kept * np.sign(change) >= SURVIVING_SHARE * np.abs(change)
    return np.asarray(half & (np.abs(kept) > 2 * sd))
