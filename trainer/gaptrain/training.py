"""Training of the gap model: what is fitted in closed form, and the descent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from gapd.errors import InputError
from gapd.model.robot import Robot
from gaptrain.graph import Graph
from gaptrain.model import GapModel, Shape
from gaptrain.settings import Training
from gaptrain.shards import Samples

Array = NDArray[np.float64]
Index = NDArray[np.intp]

CHUNK = 128


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
    # Effects below this many sigma per prior standard deviation need no relative accuracy.
    floor_sigma: float = 0.05
    delta_share: float = 0.3  # prior standard deviations of the steps that log_spread is trained for


class Data:
    """Samples as tensors. Derivatives (n, K, N), of so many pairs of a channel and a column, are at half precision.

    channel, column (N,): the pairs; columns are parameters, then the initial state.
    """

    def __init__(self, shards: Iterator[Samples], channel: Index, column: Index, limit: int | None = None) -> None:
        parts: list[tuple[Tensor, ...]] = []
        self.dropped = 0
        self.size = torch.zeros(0)
        for shard in shards:
            both = np.concatenate([shard.jacobian, shard.x0_jacobian], axis=-1)
            every = torch.from_numpy(both[:, :, channel, column])
            if not parts:
                self.size = every.pow(2).mean((0, 1)).sqrt().clamp_min(1e-6)
            context = shard.context if shard.context.shape[-1] else np.zeros((*shard.context.shape[:2], 1))
            inputs = (torch.from_numpy(np.asarray(v, np.float32)) for v in (shard.features, context, shard.z))
            parts.append((*inputs, (every / self.size).clamp(-6e4, 6e4).half()))
            self.dropped += shard.dropped
        if not parts:
            raise InputError("no training data; run `gaptrain fit` to make it")
        joined = (torch.cat(p)[:limit] for p in zip(*parts, strict=True))
        self.window, self.context, self.z, self.target = joined

    def __len__(self) -> int:
        return len(self.z)

    def effects(self, rows: slice) -> Tensor:
        """Derivatives (n, K, N) in units of channel noise, before `normalise`."""
        return self.target[rows].float() * self.size

    def dense(self, rows: slice, columns: int) -> Tensor:
        """Derivatives (n, K, C, columns) of data that hold all pairs."""
        every = self.effects(rows)
        return every.reshape(*every.shape[:2], -1, columns)

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
    floor = floor_sigma / spread[model.column]
    with torch.no_grad():
        settings = model.settings(data.window, data.context, data.z)
        size = torch.cat([data.effects(rows).pow(2).mean(1) for rows in data.chunks()])
        design = torch.cat([settings, torch.ones(len(data), 1)], 1).double()
        normal = design.T @ design + 1e-2 * torch.eye(design.shape[1])
        fitted = torch.linalg.solve(normal, design.T @ (0.5 * torch.log(size + floor**2)).double()).float()
        model.gain_floor.copy_(floor)
        model.gain_weight.copy_(fitted[:-1])
        model.gain_bias.copy_(fitted[-1])
        # The median window gets shapes of order one. Not the mean: saturated servos have effects a hundred
        # times larger, and scaled by those the ordinary windows would hardly count.
        ratio = (size / model.gain(settings) ** 2).median(0).values
        model.gain_bias.add_(0.5 * torch.log(ratio.clamp(1e-3, 1e3)))


class Trainer:
    """Training state: everything a checkpoint holds."""

    def __init__(self, robot: Robot, graph: Graph, data: Data, training: Training, spread: Tensor) -> None:
        """Train for the edges of the graph, whose pairs the data hold; spread (D,) is the prior's."""
        torch.manual_seed(training.seed)
        self.model = GapModel(Shape.of(robot, training.hidden), graph.probability)
        self.data, self.training, self.learning, self.spread = data, training, Learning(), spread
        calibrate(self.model, data, robot, spread, self.learning.floor_sigma)
        data.normalise(self.model)
        weights = [p for n, p in self.model.named_parameters() if not n.startswith("spread.")]
        groups = [{"params": weights}, {"params": list(self.model.spread.parameters())}]
        self.optimiser = torch.optim.AdamW(
            groups, lr=self.learning.learning_rate, weight_decay=self.learning.weight_decay
        )
        self.generator = torch.Generator().manual_seed(training.seed)
        self.loss: list[float] = []  # mean of each epoch so far
        self.step = 0
        self.steps = training.epochs * (len(data) // training.batch)
        # The network is computed in bfloat16 where the CPU has matrix units for it (AMX). Results depend on that: the
        # same seed trains another network on a CPU without them.
        self.bfloat16 = bool(torch.cpu.get_capabilities().get("amx_bf16", False))

    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint has to hold, as tensors and plain values."""
        return {
            "model": self.model.state_dict(), "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(), "loss": list(self.loss), "step": self.step,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint of the same data and training."""
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"])
        self.loss, self.step = list(state["loss"]), state["step"]

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return len(self.loss)

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
        self.loss.append(sum(self._step(rows) for rows in batches) / len(batches))
        return self.loss[-1]

    def _step(self, rows: Tensor) -> float:
        data, model, learning = self.data, self.model, self.learning
        for group in self.optimiser.param_groups:
            group["lr"] = learning.learning_rate * self.rate()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            shapes, gain, log_spread = model.effects(data.window[rows], data.context[rows], data.z[rows])
        error = shapes.detach().float() - data.target[rows].float()
        spread_loss = self._spread_loss(error * gain[:, None], log_spread.float())
        loss, slope = self._effect_loss(error, gain)
        self.optimiser.zero_grad()
        torch.autograd.backward([shapes, spread_loss], [slope.to(shapes.dtype), None])
        # Apart: the spread's gradient is a thousand times larger and would scale the others with it.
        torch.nn.utils.clip_grad_norm_(self.optimiser.param_groups[0]["params"], learning.clip_norm)
        torch.nn.utils.clip_grad_norm_(self.optimiser.param_groups[1]["params"], 1.0)
        self.optimiser.step()
        self.step += 1
        return loss

    def _effect_loss(self, error: Tensor, gain: Tensor) -> tuple[float, Tensor]:
        """Huber loss of the shapes' error (B, K, N), and its derivative by hand.

        Autograd would write each of a dozen intermediates of this size to memory; that is most of a step.
        """
        shape, column, delta = self.model.shape, self.model.column, self.learning.huber
        largest = gain.new_zeros(len(gain), shape.columns).scatter_reduce_(1, column.expand_as(gain), gain, "amax")
        weight = (gain / largest[:, column]) ** self.learning.cross_power
        share = gain.new_full((shape.columns,), 1.0 / shape.parameters)
        share[shape.parameters :] = self.learning.x0_weight / (2 * shape.nv)
        share = share[column] / (error[..., 0].numel() * shape.channels)
        weighted = error * weight[:, None]
        clipped = weighted.clamp(-delta, delta)
        # Huber: e^2 / 2 inside delta, delta (|e| - delta / 2) outside; both are c (e - c / 2) with c = clip(e).
        loss = float(torch.einsum("bkn,bkn,n->", clipped, weighted.sub_(clipped, alpha=0.5), share))
        return loss, clipped.mul_((weight * share)[:, None])

    def _spread_loss(self, error: Tensor, log_spread: Tensor) -> Tensor:
        """Gaussian likelihood of the error of J·delta, for steps of a share of the prior."""
        shape, column = self.model.shape, self.model.column
        delta = torch.randn(len(error), shape.columns, generator=self.generator)
        delta = delta * self.spread * self.learning.delta_share
        delta[:, shape.parameters :] = 0.0  # parameters move, initial states do not
        onto = functional.one_hot(self.model.channel, shape.channels).float()  # (N, C)
        missed = (error * delta[:, None, column]) @ onto
        return (log_spread + 0.5 * missed**2 * torch.exp(-2 * log_spread)).clamp(max=1e3).mean()
