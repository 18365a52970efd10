"""Linear regression with a prior per input that may switch it off, and the probability that it is on.

Sparse Bayesian learning (Tipping 2001) with groups: all features of an input share one prior variance. The probability
of an edge is that of a Bayes factor averaged over sizes the effect may have, not of the best size: averaging is what
keeps it calibrated (Kass and Raftery 1995, section 2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ROUNDS = 20  # of expectation maximisation; variances of inputs without effect fall by then far below those with
# Prior variances of an effect, in units of the noise's variance, over which the Bayes factor is averaged.
SIZES = np.logspace(-2.5, 1.5, 9)
SMALLEST = 1e-9
PRIOR_ROUNDS = 5  # for the share of inputs that are on
PRIOR_START, PRIOR_LOW, PRIOR_HIGH = 0.2, 0.02, 0.6


@dataclass(frozen=True)
class Posterior:
    """What is known of the weights of P inputs, F features each, for K outputs: cov(w_k) = noise_k x spread."""

    mean: Array  # (P, F, K)
    spread: Array  # (P F, P F)
    noise: Array  # (K,) variance
    edge: Array  # (P,) probability that the input has any effect


def regress(features: Array, outputs: Array, weight: Array, ratio: Array, floor: float = 1e-12) -> Posterior:
    """Regress outputs (n, K) on features (n, P, F) with weights (n,) of the samples.

    `ratio` (F,) is the prior variance of each feature's weight relative to the first one's. Variances below `floor` are
    not taken for signal.
    """
    n, p, f = features.shape
    root = np.sqrt(weight)[:, None]
    x, y = features.reshape(n, -1) * root, outputs * root
    square, cross, power = x.T @ x, x.T @ y, (y**2).sum(0)
    size = np.full(p, 0.1)
    for _ in range(ROUNDS):
        prior = (size[:, None] * ratio).ravel()
        spread, mean, noise = _solve(square, cross, power, prior, len(y), floor)
        second = (mean**2 / noise).mean(1) + np.diag(spread)
        size = np.maximum((second.reshape(p, f) / ratio).mean(1), SMALLEST)
    prior = (size[:, None] * ratio).ravel()
    spread, mean, noise = _solve(square, cross, power, prior, len(y), floor)
    shaped = mean.reshape(p, f, -1)
    return Posterior(shaped, spread, noise, _edges(shaped, spread, noise, size, ratio))


def _solve(square: Array, cross: Array, power: Array, prior: Array, n: int, floor: float) -> tuple[Array, Array, Array]:
    """Spread (D, D), mean (D, K) and noise variance (K,) for prior variances (D,) in units of the noise."""
    root = np.sqrt(prior)
    # In coordinates in which the prior is the identity, however small some of its variances are.
    inner = np.linalg.inv(np.eye(len(prior)) + root[:, None] * square * root)
    spread = root[:, None] * inner * root
    mean = spread @ cross
    noise = np.maximum((power - (cross * mean).sum(0)) / n, floor + 1e-6 * power / n)
    return spread, mean, noise


def _edges(mean: Array, spread: Array, noise: Array, size: Array, ratio: Array) -> Array:
    """Probability (P,) that an input is on, the others as they are."""
    evidence = np.array([_log_factor(i, mean, spread, noise, size[i], ratio) for i in range(len(mean))])
    share = PRIOR_START
    probability = np.zeros(len(mean))
    for _ in range(PRIOR_ROUNDS):
        odds = np.clip(evidence + np.log(share / (1 - share)), -500, 500)
        probability = 1 / (1 + np.exp(-odds))
        share = float(np.clip(probability.mean(), PRIOR_LOW, PRIOR_HIGH))
    return np.asarray(probability)


def _log_factor(i: int, mean: Array, spread: Array, noise: Array, size: float, ratio: Array) -> float:
    """Logarithm of the Bayes factor of input i on against off."""
    f = len(ratio)
    own = spread[i * f : (i + 1) * f, i * f : (i + 1) * f]
    precision = np.linalg.inv(own)
    # The likelihood's part in the posterior of this input alone: posterior minus prior precision.
    data = precision - np.diag(1 / (size * ratio))
    pull = precision @ mean[i]  # (F, K)
    logs = []
    for trial in SIZES:
        prior = np.diag(trial * ratio)
        gained = np.sum(pull * np.linalg.solve(data + np.linalg.inv(prior), pull) / noise)
        paid = len(noise) * np.linalg.slogdet(np.eye(f) + prior @ data)[1]
        logs.append(0.5 * (gained - paid))
    top = max(logs)
    return float(top + np.log(np.mean(np.exp(np.array(logs) - top))))
