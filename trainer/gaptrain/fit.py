"""Data, training, export: from a model folder to the bundle that gapd loads."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from gapd.errors import InputError
from gapd.robot import Robot
from gaptrain.dataset import Samples, read_shards, shard_paths
from gaptrain.model import GapModel, Shape, sample_edges
from gaptrain.simulate import Training

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Learning:
    """How the network is trained. Chosen on subsets of the seven-joint arm's data; see docs/decisions.md."""

    learning_rate: float = 2e-3
    weight_decay: float = 1e-3
    warm_up_share: float = 0.05  # of all steps, from 0 to the learning rate
    clip_norm: float = 1.0
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

    def __init__(self, shards: Iterator[Samples]) -> None:
        parts: list[tuple[Tensor, ...]] = []
        self.dropped = 0
        self.column: Tensor | None = None
        for shard in shards:
            every = torch.from_numpy(np.concatenate([shard.jacobian, shard.x0_jacobian], axis=-1))
            if self.column is None:
                self.column = every.pow(2).mean((0, 1)).sqrt().clamp_min(1e-6)
            context = shard.context if shard.context.shape[-1] else np.zeros((*shard.context.shape[:2], 1))
            inputs = (torch.from_numpy(np.asarray(v, np.float32)) for v in (shard.features, context, shard.z))
            parts.append((*inputs, (every / self.column).clamp(-6e4, 6e4).half()))
            self.dropped += shard.dropped
        if not parts:
            raise InputError("no training data; run `gaptrain fit` to make it")
        self.window, self.context, self.z, self.target = (torch.cat(p) for p in zip(*parts, strict=True))

    def __len__(self) -> int:
        return len(self.z)

    def effects(self, rows: Tensor | slice) -> Tensor:
        """Derivatives (n, K, C, D) in units of channel noise."""
        assert self.column is not None
        return self.target[rows].float() * self.column


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
        _, settings = model.inputs(data.window, data.context, data.z)
        size = torch.cat([data.effects(slice(i, i + 256)).pow(2).mean(1).flatten(1) for i in range(0, len(data), 256)])
        design = torch.cat([settings, torch.ones(len(data), 1)], 1).double()
        normal = design.T @ design + 1e-2 * torch.eye(design.shape[1])
        fitted = torch.linalg.solve(normal, design.T @ (0.5 * torch.log(size + floor**2)).double()).float()
        model.gain_floor.copy_(floor)
        model.gain_weight.copy_(fitted[:-1])
        model.gain_bias.copy_(fitted[-1])
        # A mean of logarithms lies below the rms: lift so that shapes have unit mean square.
        model.gain_bias.add_(0.5 * torch.log((size / model.gain(settings).flatten(1) ** 2).mean(0).clamp_min(1e-3)))


class Trainer:
    """Training state: everything a checkpoint holds."""

    def __init__(self, robot: Robot, data: Data, training: Training, spread: Tensor, learning: Learning) -> None:
        torch.manual_seed(training.seed)
        self.model = GapModel(Shape.of(robot, training.hidden))
        self.data, self.training, self.learning, self.spread = data, training, learning, spread
        calibrate(self.model, data, robot, spread, learning.floor_sigma)
        weights = [p for n, p in self.model.named_parameters() if n != "edge_logit"]
        self.optimiser = torch.optim.AdamW(weights, lr=learning.learning_rate, weight_decay=learning.weight_decay)
        self.edges = torch.optim.Adam([self.model.edge_logit], lr=learning.edge_rate)
        self.generator = torch.Generator().manual_seed(training.seed)
        self.benefit = torch.zeros_like(self.model.edge_logit)
        self.epoch, self.step = 0, 0
        self.steps = training.epochs * (len(data) // training.batch)
        self.half = "amx_bf16" in str(torch.cpu.get_capabilities())

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
        batches = order[: len(order) // self.training.batch * self.training.batch].split(self.training.batch)
        total = sum(self._step(rows) for rows in batches)
        self.epoch += 1
        return total / len(batches)

    def _step(self, rows: Tensor) -> float:
        data, model, learning = self.data, self.model, self.learning
        for group in self.optimiser.param_groups:
            group["lr"] = learning.learning_rate * self.rate()
        true = data.effects(rows)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            shapes, gain, log_spread = model.effects(data.window[rows], data.context[rows], data.z[rows])
        shapes, log_spread = shapes.float(), log_spread.float()
        searching = self.step >= learning.edge_start_share * self.steps
        edge = sample_edges(model.edge_logit, learning.temperature, self.generator) if searching else None
        masked = shapes
        if edge is not None:
            masked = torch.cat([shapes[..., : edge.shape[1]] * edge.detach(), shapes[..., edge.shape[1] :]], -1)
        loss = self._effect_loss(masked, true, gain) + self._spread_loss(masked.detach(), true, gain, log_spread)
        if edge is not None:
            loss = loss + self._edge_loss(shapes.detach(), true, gain, edge)
        self.optimiser.zero_grad()
        self.edges.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(
            [p for g in self.optimiser.param_groups for p in g["params"]], learning.clip_norm
        )
        self.optimiser.step()
        if edge is not None:
            self.edges.step()
        self.step += 1
        return float(loss.detach())

    def _effect_loss(self, shapes: Tensor, true: Tensor, gain: Tensor) -> Tensor:
        weight = (gain / gain.amax(1, keepdim=True)) ** self.learning.cross_power
        error = (shapes - true / gain[:, None]) * weight[:, None]
        size = functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=self.learning.huber)
        p = self.model.shape.parameters
        return size[..., :p].mean() + self.learning.x0_weight * size[..., p:].mean()

    def _spread_loss(self, shapes: Tensor, true: Tensor, gain: Tensor, log_spread: Tensor) -> Tensor:
        """Gaussian likelihood of the error of J·delta, for steps of a share of the prior."""
        p = self.model.shape.parameters
        delta = torch.randn(len(true), p, generator=self.generator) * self.spread[:p] * self.learning.delta_share
        error = shapes[..., :p] * gain[:, None, :, :p] - true[..., :p]
        missed = torch.einsum("bkcp,bp->bkc", error, delta)
        return 1e-2 * (log_spread + 0.5 * missed**2 * torch.exp(-2 * log_spread)).clamp(max=1e3).mean()

    def _edge_loss(self, shapes: Tensor, true: Tensor, gain: Tensor, edge: Tensor) -> Tensor:
        """What dropping an edge costs, in units of the smallest effect worth an edge, against its price of one.

        Edges act on separate entries of J, so the gain in squared error of each is known without trying.
        """
        p = edge.shape[1]
        spread = self.spread[:p] / self.learning.edge_sigma
        wanted = true[..., :p] * spread
        got = shapes[..., :p] * gain[:, None, :, :p] * spread
        benefit = (wanted**2 - (wanted - got) ** 2).mean((0, 1))
        first = not self.benefit.any()
        self.benefit = benefit if first else 0.98 * self.benefit + 0.02 * benefit
        return (torch.sigmoid(self.model.edge_logit) - edge * self.benefit.clamp(-3, 3)).sum()


def predict(model: GapModel, data: Data, rows: slice) -> Tensor:
    """Effects (n, K, C, D) of the rows with hard edges, in units of channel noise."""
    with torch.no_grad():
        z = data.z[rows]
        _, jacobian, x0_jacobian, _, _ = model(data.window[rows], data.context[rows], z, torch.zeros_like(z))
    return torch.cat([jacobian, x0_jacobian], -1)


def relative_errors(model: GapModel, data: Data) -> tuple[Array, Array]:
    """||J_hat - J|| / ||J|| per column (D,) over all windows, and the median over windows of the same per window."""
    model.eval()
    missed, size = [], []
    for start in range(0, len(data), 64):
        rows = slice(start, start + 64)
        true = data.effects(rows)
        missed.append((predict(model, data, rows) - true).pow(2).sum((1, 2)))
        size.append(true.pow(2).sum((1, 2)))
    wrong, norm = torch.cat(missed), torch.cat(size)
    ratio = (wrong / norm.clamp_min(1e-12)).sqrt()
    return (wrong.sum(0) / norm.sum(0)).sqrt().double().numpy(), ratio.median(0).values.double().numpy()


def family(name: str) -> str:
    """The kind of a parameter: the last part of its name."""
    return name.rsplit("/", 1)[-1]
