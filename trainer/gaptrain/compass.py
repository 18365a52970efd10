"""COMPASS (Huang et al., CoRL 2023, arXiv 2306.15864): a causal graph finds the parameters behind a sim-to-real gap.

A network maps parameters and action to the distance between simulated and real trajectory; a graph learned with it
says which parameters reach which object. One descends on the parameters through the network, and drops those that
the graph does not connect. The steps are: (1) real rollouts, (2) perturbed
replays, (3) labels, (4) model, (5) descent and pruning. `compass_signed.py` is our variant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from gaptrain.tasks.search import Iteration, Trainer, perturb, published_half_width, without_policy
from gaptrain.tasks.simulator import Robot, Simulator, distance

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Arguments:
    """Settings. Defaults are those of the authors' code where it has them."""

    iterations: int = 10  # published
    retrain_every: int = 5  # iterations between trainings of the policy; published
    real_rollouts: int = 10  # per iteration; published
    vectors: int = 64  # parameter vectors per real rollout: 640 samples per iteration; published
    drop_worst: float = 0.05  # share of labels: simulations that went wild; published
    training_share: float = 0.8  # published; the rest is only looked at
    model: Literal["graph", "full", "mlp"] = "graph"  # `full`: all edges on; `mlp`: no structure. Published ablations
    hidden: int = 256  # published
    code: int = 32  # size of an embedding and of an encoded input; published
    edge_start: float = 3.0  # logit, p = 0.953: edges have to be switched off; published
    temperature: float = 1.0  # of the Gumbel softmax; published
    sparsity_first: float = 0.01  # price of an edge in the first iteration; published
    sparsity: float = 0.0035  # after it; published
    epochs: int = 4000  # published: 16,000 steps of 0.13 s per iteration on a CPU, so benchmarks take fewer
    batch: int = 128  # published
    learning_rate: float = 1e-3  # of Adam, network and parameters; published
    edge_on: float = 0.5  # probability from which an edge is on in the descent; published
    descent_steps: int = 2000  # published
    keep_above: float = 0.3  # a parameter stays if its largest edge probability is above; published
    seed: int = 1


class Graph(nn.Module):
    """Shared encoder of inputs, edges, shared decoder of outputs. Embeddings are drawn and never trained."""

    value_embedding: Tensor
    object_embedding: Tensor

    def __init__(self, inputs: int, free: int, objects: int, arguments: Arguments) -> None:
        """Of the inputs, the first `free` are parameters, the others the action."""
        super().__init__()
        a = arguments
        self.arguments, self.free = a, free
        self.register_buffer("value_embedding", torch.randn(inputs, a.code))
        self.register_buffer("object_embedding", torch.randn(objects, a.code))
        self.encoder = _mlp(1 + a.code, a.hidden, a.code)
        self.decoder = _mlp(2 * a.code, a.hidden, 1)
        self.edge_logit = nn.Parameter(torch.full((inputs, objects), a.edge_start))

    def forward(self, values: Tensor) -> Tensor:
        """Labels (B, M) of values (B, N)."""
        n = len(values)
        embedded = self.value_embedding.expand(n, -1, -1)
        encoded = self.encoder(torch.cat([values[..., None], embedded], -1))
        gathered = torch.einsum("nm,bnh->bmh", self._mask(), encoded)
        out: Tensor = self.decoder(torch.cat([gathered, self.object_embedding.expand(n, -1, -1)], -1))
        return out[..., 0]

    def _mask(self) -> Tensor:
        if self.arguments.model == "full":
            return torch.ones_like(self.edge_logit)
        if not self.training:
            return (torch.sigmoid(self.edge_logit) > self.arguments.edge_on).float()
        # One hard graph per forward pass, with the gradient of the relaxed one.
        two = torch.stack([self.edge_logit, torch.zeros_like(self.edge_logit)], -1)
        return functional.gumbel_softmax(two, tau=self.arguments.temperature, hard=True)[..., 0]

    def edge_probability(self) -> Tensor:
        """Probability (P', M) that a parameter reaches an object."""
        if self.arguments.model == "full":
            return torch.ones_like(self.edge_logit[: self.free])
        return torch.sigmoid(self.edge_logit[: self.free])


class Plain(nn.Module):
    """The ablation without structure: one network from all inputs to all objects."""

    def __init__(self, inputs: int, free: int, objects: int, arguments: Arguments) -> None:
        super().__init__()
        self.free, self.objects = free, objects
        self.net = _mlp(inputs, arguments.hidden, objects)

    def forward(self, values: Tensor) -> Tensor:
        """Labels (B, M) of values (B, N)."""
        out: Tensor = self.net(values)
        return out

    def edge_probability(self) -> Tensor:
        """All edges: it has no graph."""
        return torch.ones(self.free, self.objects)


Model = Graph | Plain


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
        nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs),
    )  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """Min-max scale to low .. high per column."""

    least: Array
    most: Array
    low: float
    high: float

    @classmethod
    def of(cls, values: Array, low: float, high: float) -> Scale:
        """Scale of values (n, N); a constant column goes to the middle."""
        least, most = values.min(0), values.max(0)
        flat = most - least < 1e-12 * np.maximum(np.abs(most), 1e-12)
        return cls(np.where(flat, least - 0.5, least), np.where(flat, most + 0.5, most), low, high)

    def __call__(self, values: Array) -> Array:
        return np.asarray(self.low + (self.high - self.low) * (values - self.least) / (self.most - self.least))

    def back(self, scaled: Array) -> Array:
        """Inverse."""
        return np.asarray(self.least + (self.most - self.least) * (scaled - self.low) / (self.high - self.low))


def compass(
    task: Simulator, robot: Robot, arguments: Arguments, train: Trainer = without_policy
) -> Iterator[Iteration]:
    """Run the published loop; yields after each iteration."""
    rng = np.random.default_rng(arguments.seed)
    torch.manual_seed(arguments.seed)
    space = task.space
    physical, kept, simulated = space.nominal.copy(), np.ones(len(space), bool), 0
    policy = train(task, physical, arguments.seed)
    for iteration in range(arguments.iterations):
        # Step 1: the agent, retrained in the simulator as it is now; real rollouts.
        if iteration and iteration % arguments.retrain_every == 0:
            policy = train(task, physical, arguments.seed + iteration)
        actions = policy.act(rng, arguments.real_rollouts)
        real = robot.act(actions).seen
        # Step 2: replays of the same actions with perturbed parameters.
        half_width = np.where(kept, published_half_width(space, physical), 0.0)
        vectors = perturb(space, physical, half_width, rng, arguments.vectors * len(actions))
        rows = np.repeat(np.arange(len(actions)), arguments.vectors)
        seen = task.rollout(vectors, actions[rows]).seen
        simulated += len(rows)
        # Step 3: labels.
        label = distance(task, seen, real[rows])
        inputs = np.concatenate([vectors[:, kept], actions[rows]], 1)
        chosen = _good(label, arguments.drop_worst)
        # Step 4: a new model on this iteration's samples only.
        scale = Scale.of(inputs[chosen], -1.0, 1.0)
        labels = Scale.of(label[chosen], 0.0, 1.0)(label[chosen])
        price = arguments.sparsity if iteration else arguments.sparsity_first
        model = fit(scale(inputs[chosen]), labels, int(kept.sum()), price, arguments, rng)
        # Step 5: descent on the parameters; then only those with an edge stay.
        bounds = np.stack([space.min[kept], space.max[kept]])
        physical[kept] = descend(model, physical[kept], actions, scale, bounds, arguments)
        edges = np.zeros((len(space), label.shape[1]))
        edges[kept] = model.edge_probability().detach().numpy()
        kept = edges.max(1) > arguments.keep_above
        unknown = np.full(len(space), np.nan)
        yield Iteration(physical.copy(), kept.copy(), edges, unknown, robot.rollouts, simulated)
        if not kept.any():
            return


def _good(label: Array, drop: float) -> NDArray[np.intp]:
    """Rows whose label (n, M) is finite and, summed, not among the largest share `drop`."""
    total = label.sum(1)
    finite = np.flatnonzero(np.isfinite(total))
    limit = np.quantile(total[finite], 1.0 - drop)
    return np.asarray(finite[total[finite] <= limit])


def fit(inputs: Array, labels: Array, free: int, price: float, arguments: Arguments, rng: np.random.Generator) -> Model:
    """Fit a new model to scaled inputs (n, N) and labels (n, M); the first `free` inputs are parameters."""
    a, n = arguments, len(inputs)
    make = Plain if a.model == "mlp" else Graph
    model: Model = make(inputs.shape[1], free, labels.shape[1], a)
    rows = rng.permutation(n)[: max(1, round(a.training_share * n))]
    x, y = (torch.from_numpy(v[rows]).float() for v in (inputs, labels))
    optimiser = torch.optim.Adam(model.parameters(), a.learning_rate)
    for _ in range(a.epochs):
        for part in torch.split(torch.from_numpy(rng.permutation(len(x))), a.batch):
            loss = functional.mse_loss(model(x[part]), y[part])
            if a.model == "graph":
                loss = loss + price * model.edge_probability().mean()  # of parameters, not of the action
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
    return model.eval()


def descend(model: Model, physical: Array, actions: Array, scale: Scale, bounds: Array, arguments: Arguments) -> Array:
    """Parameters (P',) that minimise the mean predicted label over the real actions; bounds (2, P')."""
    model.requires_grad_(requires_grad=False)
    every = np.concatenate([np.stack([physical, *bounds]), np.zeros((3, actions.shape[1]))], 1)
    start, low, high = torch.from_numpy(scale(every)[:, : len(physical)]).float()
    known = np.concatenate([np.zeros((len(actions), len(physical))), actions], 1)
    fixed = torch.from_numpy(scale(known)[:, len(physical) :]).float()
    values = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([values], arguments.learning_rate)
    for _ in range(arguments.descent_steps):
        inputs = torch.cat([values.expand(len(fixed), -1), fixed], 1)
        optimiser.zero_grad()
        torch.autograd.backward(model(inputs).mean())
        optimiser.step()
    found = torch.maximum(torch.minimum(values.detach(), high), low).double().numpy()
    back = scale.back(np.concatenate([found, np.zeros(actions.shape[1])]))[: len(physical)]
    return np.asarray(np.clip(back, *bounds))
