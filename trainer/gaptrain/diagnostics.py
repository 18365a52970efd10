"""How good a gap model is, measured on windows it was not trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gaptrain.training import Data

Array = NDArray[np.float64]
# What gap.onnx computes: of window, context, theta, delta the gap, jacobian, x0_jacobian, log_spread, edge_probability.
GapFunction = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, ...]]

# An effect of one prior standard deviation above this many sigma rms needs an edge; below the second, none.
NEEDS_EDGE, NEEDS_NONE = 0.2, 0.1
# 90 % of a normal distribution lie within this many standard deviations.
NORMAL_90 = 1.6449


@dataclass(frozen=True)
class Quality:
    """Held-out quality. D = P + 2 nv columns: parameters, then initial state."""

    names: tuple[str, ...]  # (D,)
    error: Array  # (D,) ||J_hat - J|| / ||J|| over all windows
    median: Array  # (D,) median over the windows of the same ratio per window
    edge_precision: float  # share of the edges that are on and not needless
    edge_recall: float  # share of the needed edges that are on
    edges: int
    spread_coverage: float  # share of errors of J·delta within the stated 90 % interval
    channel_effect: Array  # (C,) rms of J·delta
    channel_missed: Array  # (C,) rms of its error

    def by_family(self, values: Array) -> dict[str, float]:
        """Mean of values (D,) per kind of parameter (the last part of its name) and for the initial state."""
        groups: dict[str, list[float]] = {}
        for name, value in zip(self.names, values, strict=True):
            groups.setdefault(name.rsplit("/", 1)[-1], []).append(float(value))
        return {kind: float(np.mean(group)) for kind, group in groups.items()}


def measure(network: GapFunction, data: Data, names: tuple[str, ...], spread: Tensor, delta_share: float) -> Quality:
    """Compare predicted derivatives with exact ones.

    `data` hold all pairs and must not be normalised; spread (D,) is the prior's.
    """
    p, generator = len(names), torch.Generator().manual_seed(0)
    nv, one = (len(spread) - p) // 2, data.z[:1]
    on = network(data.window[:1], data.context[:1], one, one)[-1].T > 0.5  # the same for every window
    wrong, norm, effect, inside, sizes, misses = [], [], [], [], [], []
    for rows in data.chunks():
        true, z = data.dense(rows, len(spread)), data.z[rows]
        delta = torch.randn(z.shape, generator=generator) * spread[:p] * delta_share
        gap, jacobian, x0_jacobian, log_spread, _ = network(data.window[rows], data.context[rows], z, delta)
        wrong.append((torch.cat([jacobian, x0_jacobian], -1) - true).pow(2).sum((1, 2)))
        norm.append(true.pow(2).sum((1, 2)))
        effect.append(true[..., :p].pow(2).mean((0, 1)) * len(true))
        size = torch.einsum("bkcp,bp->bkc", true[..., :p], delta)
        missed = gap - size
        sizes.append(size.pow(2).mean(1))
        misses.append(missed.pow(2).mean(1))
        inside.append((missed.abs() < NORMAL_90 * torch.exp(log_spread)).float().mean() * len(true))
    rms = (torch.stack(effect).sum(0) / len(data)).sqrt() * spread[:p]
    per_window = (torch.cat(wrong) / torch.cat(norm).clamp_min(1e-12)).sqrt()
    return Quality(
        names=(*names, *["initial position"] * nv, *["initial velocity"] * nv),
        error=(torch.cat(wrong).sum(0) / torch.cat(norm).sum(0).clamp_min(1e-12)).sqrt().double().numpy(),
        median=per_window.median(0).values.double().numpy(),
        edge_precision=_share(on & (rms >= NEEDS_NONE), on),
        edge_recall=_share(on & (rms > NEEDS_EDGE), rms > NEEDS_EDGE),
        edges=int(on.sum()),
        spread_coverage=float(torch.stack(inside).sum() / len(data)),
        channel_effect=torch.cat(sizes).mean(0).sqrt().double().numpy(),
        channel_missed=torch.cat(misses).mean(0).sqrt().double().numpy(),
    )


def _share(part: Tensor, whole: Tensor) -> float:
    return float(part.sum() / whole.sum().clamp_min(1))


def lines(quality: Quality) -> list[str]:
    """The quality as a small table for the terminal."""
    error, median = quality.by_family(quality.error), quality.by_family(quality.median)
    rows = [f"{'derivatives by':<20} {'error':>8} {'median':>8}   held-out ||J_hat - J|| / ||J||"]
    rows += [f"{kind:<20} {error[kind]:>8.3f} {median[kind]:>8.3f}" for kind in error]
    rows.append(
        f"edges: {quality.edges} on, precision {quality.edge_precision:.3f}, recall {quality.edge_recall:.3f}; "
        f"stated 90 % spread of first-order steps covers {100 * quality.spread_coverage:.0f} %"
    )
    return rows
