"""Training of the gap model: what is fitted in closed form, and the descent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapd.errors import InputError
from gapd.model.robot import Robot
from gaptrain.model import GapModel, Shape, sample_edges
from gaptrain.settings import Training
from gaptrain.shards import Samples

Array = NDArray[np.float64]

CHUNK = 128
# Share of its running mean that an edge's worth keeps per step. The mean is over a hundred batches: what a parameter
# does in a few windows, such as those with a saturated servo, is in few of them.
WORTH_MEMORY = 0.99
# An edge worth more than this many times its price is no more certain, but Adam would remember the size of its
# gradient for a thousand steps, and the edge could no longer be dropped.
WORTH_LIMIT = 3.0


@dataclass(frozen=True)
class Learning:
    """How the network is trained. Chosen on subsets of the seven-joint arm's data; see docs/decisions.md."""

    learning_rate: float = 4e-3
    weight_decay: float = 1e-3
    warm_up_share: float = 0.05  # of all steps, from 0 to the learning rate
    clip_norm: float = 0.05  # of the effects' gradient; usual is 0.01 to 0.03
    # Errors count relative to the size of an effect on its channel to this power; 0 lets channels that a
    # parameter hardly touches count as much as those that show it, 1 hides them.
    cross_power: float = 0.5
    huber: float = 1.0  # normalised error from which it counts linearly: stick-slip makes outliers
    x0_weight: float = 0.5
    # An edge is worth keeping if one prior standard deviation moves its channel by this many sigma rms.
    edge_sigma: float = 0.14
    edge_start_share: float = 0.3  # of all steps, before which every edge is on
    edge_rate: float = 0.05
    temperature: float = 0.5
    # Effects below this many sigma per prior standard deviation need no relative accuracy.
    floor_sigma: float = 0.05
    delta_share: float = 0.3  # prior standard deviations of the steps that log_spread is trained for


class Data:
    """Samples as tensors. Derivatives (n, K, C, D), D = P + 2 nv, are kept at half precision per column."""

    def __init__(self, shards: Iterator[Samples], limit: int | None = None) -> None:
        parts: list[tuple[Tensor, ...]] = []
        self.dropped = 0
        self.column = torch.zeros(0)
        for shard in shards:
            every = torch.from_numpy(np.concatenate([shard.jacobian, shard.x0_jacobian], axis=-1))
            if not parts:
                self.column = every.pow(2).mean((0, 1)).sqrt().clamp_min(1e-6)
            context = shard.context if shard.context.shape[-1] else np.zeros((*shard.context.shape[:2], 1))
            inputs = (torch.from_numpy(np.asarray(v, np.float32)) for v in (shard.features, context, shard.z))
            parts.append((*inputs, (every / self.column).clamp(-6e4, 6e4).half()))
            self.dropped += shard.dropped
        if not parts:
            raise InputError("no training data; run `gaptrain fit` to make it")
        joined = (torch.cat(p)[:limit] for p in zip(*parts, strict=True))
        self.window, self.context, self.z, self.target = joined

    def __len__(self) -> int:
        return len(self.z)

    def effects(self, rows: slice) -> Tensor:
        """Derivatives (n, K, C, D) in units of channel noise, before `normalise`."""
        return self.target[rows].float() * self.column

    def normalise(self, model: GapModel) -> None:
        """Turn the derivatives into what the network has to predict: shapes, in units of the model's gain."""
        for rows in self.chunks():
            gain = model.gain(model.settings(self.window[rows], self.context[rows], self.z[rows]))
            self.target[rows] = (self.effects(rows) / gain[:, None]).clamp(-6e4, 6e4).half()

    def chunks(self) -> list[slice]:
        """Row ranges that fit into memory at full precision."""
        return [slice(i, i + CHUNK) for i in range(0, len(self), CHUNK)]


def prior_spread(robot: Robot, x0_sd: Array) -> Tensor:
    """Standard deviations (D,) that the columns may vary by: parameters within bounds, measured initial state."""
    space = robot.parameters
    return torch.from_numpy(np.concatenate([(space.z_max - space.z_min) / np.sqrt(12), x0_sd])).float()


def calibrate(model: GapModel, data: Data, robot: Robot, spread: Tensor, floor_sigma: float) -> None:
    """Set normalisation and gains from the training data: what is not learned by descent."""
    space = robot.parameters
    model.inputs.calibrate(data.window, data.context, space.z_min, space.z_max)
    floor = (floor_sigma / spread).expand(model.shape.channels, -1).reshape(-1)
    with torch.no_grad():
        settings = model.settings(data.window, data.context, data.z)
        size = torch.cat([data.effects(rows).pow(2).mean(1).flatten(1) for rows in data.chunks()])
        design = torch.cat([settings, torch.ones(len(data), 1)], 1).double()
        normal = design.T @ design + 1e-2 * torch.eye(design.shape[1])
        fitted = torch.linalg.solve(normal, design.T @ (0.5 * torch.log(size + floor**2)).double()).float()
        model.gain_floor.copy_(floor)
        model.gain_weight.copy_(fitted[:-1])
        model.gain_bias.copy_(fitted[-1])
        # The median window gets shapes of order one. Not the mean: saturated servos have effects a hundred
        # times larger, and scaled by those the ordinary windows would hardly count.
        ratio = (size / model.gain(settings).flatten(1) ** 2).median(0).values
        model.gain_bias.add_(0.5 * torch.log(ratio.clamp(1e-3, 1e3)))


class Trainer:
    """Training state: everything a checkpoint holds."""

    def __init__(self, robot: Robot, data: Data, training: Training, spread: Tensor, learning: Learning) -> None:
        torch.manual_seed(training.seed)
        self.model = GapModel(Shape.of(robot, training.hidden))
        self.data, self.training, self.learning, self.spread = data, training, learning, spread
        calibrate(self.model, data, robot, spread, learning.floor_sigma)
        data.normalise(self.model)
        named = [(n, p) for n, p in self.model.named_parameters() if n != "edge_logit"]
        weights = [p for n, p in named if not n.startswith("spread.")]
        groups = [{"params": weights}, {"params": list(self.model.spread.parameters())}]
        self.optimiser = torch.optim.AdamW(groups, lr=learning.learning_rate, weight_decay=learning.weight_decay)
        self.edges = torch.optim.Adam([self.model.edge_logit], lr=learning.edge_rate)
        self.generator = torch.Generator().manual_seed(training.seed)
        self.worth = torch.zeros_like(self.model.edge_logit)
        self.epoch, self.step = 0, 0
        self.steps = training.epochs * (len(data) // training.batch)
        # The network is computed in bfloat16 where the CPU has matrix units for it (AMX). Results depend on that: the
        # same seed trains another network on a CPU without them.
        self.bfloat16 = bool(torch.cpu.get_capabilities().get("amx_bf16", False))

    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint has to hold, as tensors and plain values."""
        return {
            "model": self.model.state_dict(), "optimiser": self.optimiser.state_dict(),
            "edges": self.edges.state_dict(), "generator": self.generator.get_state(),
            "worth": self.worth, "epoch": self.epoch, "step": self.step,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint of the same data and training."""
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.edges.load_state_dict(state["edges"])
        self.generator.set_state(state["generator"])
        self.worth, self.epoch, self.step = state["worth"], state["epoch"], state["step"]

    def rate(self) -> float:
        """Share of the learning rate at this step: linear warm-up, then cosine to zero."""
        warm_up = max(1, round(self.learning.warm_up_share * self.steps))
        if self.step < warm_up:
            return (self.step + 1) / warm_up
        return 0.5 * (1 + float(np.cos(np.pi * (self.step - warm_up) / max(1, self.steps - warm_up))))

    def run_epoch(self) -> float:
        """One pass over the data in random order; return the mean loss."""
        self.model.train()
        order = torch.randperm(len(self.data), generator=self.generator)
        size = self.training.batch
        batches = [order[i : i + size] for i in range(0, len(order) - size + 1, size)]
        total = sum(self._step(rows) for rows in batches)
        self.epoch += 1
        return total / len(batches)

    def _step(self, rows: Tensor) -> float:
        data, model, learning = self.data, self.model, self.learning
        for group in self.optimiser.param_groups:
            group["lr"] = learning.learning_rate * self.rate()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            shapes, gain, log_spread = model.effects(data.window[rows], data.context[rows], data.z[rows])
        found, true, p = shapes.detach().float(), data.target[rows].float(), model.shape.parameters
        edge = None
        if self.step >= learning.edge_start_share * self.steps:
            edge = sample_edges(model.edge_logit, learning.temperature, self.generator)
        error = found - true
        losses = [self._spread_loss(error[..., :p] * gain[:, None, :, :p], log_spread.float())]
        if edge is not None:
            losses.append(self._edge_loss(true[..., :p], gain[..., :p], edge))
        loss, slope = self._effect_loss(error, gain, None if edge is None else edge.detach())
        self.optimiser.zero_grad()
        self.edges.zero_grad()
        torch.autograd.backward([shapes, *losses], [slope.to(shapes.dtype), *(None for _ in losses)])
        # Apart: the spread's gradient is a thousand times larger and would scale the others with it.
        torch.nn.utils.clip_grad_norm_(self.optimiser.param_groups[0]["params"], learning.clip_norm)
        torch.nn.utils.clip_grad_norm_(self.optimiser.param_groups[1]["params"], 1.0)
        self.optimiser.step()
        if edge is not None:
            self.edges.step()
        self.step += 1
        return loss

    def _effect_loss(self, error: Tensor, gain: Tensor, edge: Tensor | None) -> tuple[float, Tensor]:
        """Huber loss of the shapes' error (B, K, C, D), and its derivative by hand.

        Autograd would write each of a dozen intermediates of this size to memory; that is most of a step.
        """
        p, delta = self.model.shape.parameters, self.learning.huber
        weight = (gain / gain.amax(1, keepdim=True)) ** self.learning.cross_power
        share = torch.full((error.shape[-1],), 1.0 / p)
        share[p:] = self.learning.x0_weight / (error.shape[-1] - p)
        share = share / error[..., 0].numel()
        if edge is not None:  # an edge that is off has no shape to learn
            weight = torch.cat([weight[..., :p] * edge, weight[..., p:]], -1)
        weighted = error * weight[:, None]
        clipped = weighted.clamp(-delta, delta)
        # Huber: e^2 / 2 inside delta, delta (|e| - delta / 2) outside; both are c (e - c / 2) with c = clip(e).
        loss = float(torch.einsum("bkcd,bkcd,d->", clipped, weighted.sub_(clipped, alpha=0.5), share))
        return loss, clipped.mul_((weight * share)[:, None])

    def _spread_loss(self, error: Tensor, log_spread: Tensor) -> Tensor:
        """Gaussian likelihood of the error of J·delta, for steps of a share of the prior."""
        p = error.shape[-1]
        delta = torch.randn(len(error), p, generator=self.generator) * self.spread[:p] * self.learning.delta_share
        missed = torch.einsum("bkcp,bp->bkc", error, delta)
        return (log_spread + 0.5 * missed**2 * torch.exp(-2 * log_spread)).clamp(max=1e3).mean()

    def _edge_loss(self, true: Tensor, gain: Tensor, edge: Tensor) -> Tensor:
        """What an edge is worth, in units of the smallest effect worth one, against its price of one.

        Edges act on separate entries of J, so dropping one costs exactly its own mean square effect. The
        exact effect counts, not the share predicted so far: an edge is about the robot, not the network.
        """
        unit = gain * self.spread[: edge.shape[1]] / self.learning.edge_sigma
        worth = (true.pow(2).mean(1) * unit**2).mean(0)
        if self.worth.any():
            worth = WORTH_MEMORY * self.worth + (1 - WORTH_MEMORY) * worth
        self.worth = worth
        return (torch.sigmoid(self.model.edge_logit) - edge * worth.clamp(max=WORTH_LIMIT)).sum()
