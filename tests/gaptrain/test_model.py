"""The gap model: causal, gated by edges, trained by a loss whose derivative is right."""

import io
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from gapd.model.robot import Robot, open_robot
from gaptrain.diagnostics import measure
from gaptrain.graph import Graph
from gaptrain.model import GapModel, Shape, pairs
from gaptrain.settings import Training, load_training
from gaptrain.shards import Samples
from gaptrain.training import Data, Trainer, prior_spread

DAMPING = "joint/j/damping"
SERVO = Path(__file__).parents[2] / "models" / "servo_pendulum"


@pytest.fixture(scope="module")
def robot() -> Robot:
    return open_robot(SERVO / "robot.toml")


@pytest.fixture(scope="module")
def training() -> Training:
    return msgspec.structs.replace(load_training(SERVO / "train.toml"), hidden=24, epochs=16, batch=32)


def samples(robot: Robot, n: int, seed: int) -> Samples:
    """Windows with a made-up law: the effects follow the speed and theta; damping moves no channel."""
    rng = np.random.default_rng(seed)
    shape = Shape.of(robot, 8)
    knots, p = shape.knots, shape.parameters
    features = np.cumsum(rng.normal(size=(n, knots + 1, 2 * shape.nv + 2 * shape.nu)), axis=1) / 5
    z = rng.uniform(robot.parameters.z_min, robot.parameters.z_max, (n, p))
    speed = features[:, 1:, shape.nv, None, None]
    size = np.exp(0.5 * (z - robot.parameters.z_nominal))[:, None, None, :]
    jacobian = 5.0 * np.tanh(speed) * size * np.ones((1, 1, shape.channels, 1))
    jacobian[..., robot.parameters.names.index(DAMPING)] = 0.0
    x0 = np.ones((n, knots, shape.channels, 2 * shape.nv)) * (1 + speed**2)
    single = np.float32
    context = np.ones((n, knots + 1, shape.contexts), single)
    return Samples(features.astype(single), context, z.astype(single), jacobian.astype(single), x0.astype(single), 0)


def graph_of(robot: Robot, *without: str) -> Graph:
    """All edges but those of some parameters."""
    on = np.array([float(name not in without) for name in robot.parameters.names])[:, None]
    on = np.repeat(on, len(robot.layout.channels), axis=1)
    return Graph(on, on, on[:, 0] > 0)


def network_of(robot: Robot, *without: str) -> GapModel:
    return GapModel(Shape.of(robot, 16), graph_of(robot, *without).probability)


def data_of(robot: Robot, drawn: Samples, *without: str) -> Data:
    return Data(iter([drawn]), *pairs(graph_of(robot, *without).probability, robot.model.nv))


def spread(robot: Robot) -> torch.Tensor:
    return prior_spread(robot, np.full(2 * robot.model.nv, 0.01))


def test_effects_depend_only_on_the_past(robot: Robot) -> None:
    network = network_of(robot).eval()
    knots = robot.layout.knots + 1
    window = torch.randn(2, knots, 6)
    context, z = torch.ones(2, knots, 3), torch.zeros(2, 6)
    later = window.clone()
    later[:, 12:] += 1.0
    with torch.no_grad():
        before, after = network(window, context, z, z), network(later, context, z, z)
    for a, b in zip(before[1:4], after[1:4], strict=True):
        torch.testing.assert_close(a[:, :11], b[:, :11], rtol=0, atol=1e-6)
    assert (before[1][:, 11:] != after[1][:, 11:]).any()


def test_a_pair_without_an_edge_has_no_weights_and_no_effect_at_all(robot: Robot) -> None:
    network = network_of(robot, robot.parameters.names[2]).eval()
    assert network.head.out_features == network_of(robot).head.out_features - 1
    knots = robot.layout.knots + 1
    with torch.no_grad():
        gap, jacobian, x0, _, probability = network(
            torch.randn(2, knots, 6), torch.ones(2, knots, 3), torch.zeros(2, 6), torch.ones(2, 6)
        )
    assert (jacobian[..., 2] == 0).all()
    assert (jacobian[..., [0, 1, 3, 4, 5]] != 0).any((0, 1, 2)).all()
    assert (x0 != 0).any()
    assert probability.shape == (6, 1)
    assert probability[2, 0] < 0.5
    torch.testing.assert_close(gap, jacobian.sum(-1))


def test_learning_the_spread_does_not_bend_the_effects(robot: Robot) -> None:
    network = network_of(robot)
    knots = robot.layout.knots + 1
    _, _, log_spread = network.effects(torch.randn(2, knots, 6), torch.ones(2, knots, 3), torch.zeros(2, 6))
    log_spread.sum().backward()  # type: ignore[no-untyped-call]
    assert {n.split(".")[0] for n, p in network.named_parameters() if p.grad is not None} == {"spread"}


def test_the_gain_brings_effects_to_order_one(robot: Robot, training: Training) -> None:
    data = data_of(robot, samples(robot, 256, 0), DAMPING)
    Trainer(robot, graph_of(robot, DAMPING), data, training, spread(robot))
    rms = data.target.float().pow(2).mean((0, 1)).sqrt()
    assert ((rms > 0.5) & (rms < 1.5)).all()


def test_the_slope_of_the_loss_is_its_derivative(robot: Robot, training: Training) -> None:
    trainer = Trainer(robot, graph_of(robot), data_of(robot, samples(robot, 64, 0)), training, spread(robot))
    gain = torch.rand(4, 8).double() + 0.1
    error = 2 * torch.randn(4, 30, 8).double()
    _, slope = trainer._effect_loss(error.clone(), gain)
    moved = torch.randn_like(error)
    h = 1e-3
    up, _ = trainer._effect_loss(error + h * moved, gain)
    down, _ = trainer._effect_loss(error - h * moved, gain)
    assert (up - down) / (2 * h) == pytest.approx(float((slope * moved).sum()), rel=1e-3)


def test_training_learns_the_effects_with_an_edge(robot: Robot, training: Training) -> None:
    torch.set_num_threads(1)  # two threads on a shared machine wait for each other
    graph, all_pairs = graph_of(robot, DAMPING), pairs(graph_of(robot).probability, robot.model.nv)
    data, held_out = data_of(robot, samples(robot, 512, 0), DAMPING), Data(iter([samples(robot, 64, 1)]), *all_pairs)
    trainer = Trainer(robot, graph, data, training, spread(robot))
    losses = [trainer.run_epoch() for _ in range(training.epochs)]
    assert losses == trainer.loss
    assert losses[-1] < 0.2 * losses[0]
    with torch.no_grad():
        quality = measure(trainer.model.eval(), held_out, robot.parameters.names, spread(robot), 0.3)
    assert quality.edge_recall == 1.0
    assert quality.edge_precision == 1.0
    assert np.delete(quality.error, robot.parameters.names.index(DAMPING)).max() < 0.3
    assert 0.5 < quality.spread_coverage < 1.0
    assert 0 < quality.channel_missed[0] < 0.3 * quality.channel_effect[0]


def briefly(robot: Robot, training: Training, **changed: int) -> Trainer:
    """Four epochs of two steps."""
    brief = msgspec.structs.replace(training, epochs=4, **changed)
    return Trainer(robot, graph_of(robot), data_of(robot, samples(robot, 64, 0)), brief, spread(robot))


def weights(trainer: Trainer, epochs: int) -> torch.Tensor:
    """What further epochs make of the network."""
    for _ in range(epochs):
        trainer.run_epoch()
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def test_the_same_seed_trains_the_same_network_and_another_seed_another(robot: Robot, training: Training) -> None:
    one, same, other = (weights(briefly(robot, training, seed=seed), 2) for seed in (1, 1, 2))
    torch.testing.assert_close(one, same, rtol=0, atol=0)
    assert not torch.equal(one, other)


def test_a_resumed_training_ends_like_an_uninterrupted_one(robot: Robot, training: Training) -> None:
    whole = weights(briefly(robot, training), 4)
    first, second, file = briefly(robot, training), briefly(robot, training), io.BytesIO()
    weights(first, 2)
    torch.save(first.state(), file)
    file.seek(0)
    second.restore(torch.load(file, weights_only=True))
    torch.testing.assert_close(weights(second, 2), whole, rtol=0, atol=0)
