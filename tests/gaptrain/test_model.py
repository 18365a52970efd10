"""The gap model: causal, gated by edges, trained by a loss whose derivative is right."""

import io
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from gapd.errors import ConfigError
from gapd.model.robot import Robot, open_robot
from gaptrain import model
from gaptrain.diagnostics import measure
from gaptrain.model import GapModel, Shape, sample_edges
from gaptrain.settings import Training, load_training
from gaptrain.shards import Samples
from gaptrain.training import Data, Learning, Trainer, prior_spread

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
    jacobian[..., robot.parameters.names.index("joint/j/damping")] = 0.0
    x0 = np.ones((n, knots, shape.channels, 2 * shape.nv)) * (1 + speed**2)
    single = np.float32
    context = np.ones((n, knots + 1, shape.contexts), single)
    return Samples(features.astype(single), context, z.astype(single), jacobian.astype(single), x0.astype(single), 0)


def spread(robot: Robot) -> torch.Tensor:
    return prior_spread(robot, np.full(2 * robot.model.nv, 0.01))


def test_effects_depend_only_on_the_past(robot: Robot) -> None:
    network = GapModel(Shape.of(robot, 16)).eval()
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


def test_an_edge_that_is_off_has_no_effect_at_all(robot: Robot) -> None:
    network = GapModel(Shape.of(robot, 16)).eval()
    knots = robot.layout.knots + 1
    with torch.no_grad():
        network.edge_logit[0, 2] = -0.1
        gap, jacobian, x0, _, probability = network(
            torch.randn(2, knots, 6), torch.ones(2, knots, 3), torch.zeros(2, 6), torch.ones(2, 6)
        )
    assert (jacobian[..., 2] == 0).all()
    assert (jacobian[..., 1] != 0).any()
    assert (x0 != 0).any()
    assert probability.shape == (6, 1)
    assert probability[2, 0] < 0.5
    torch.testing.assert_close(gap, jacobian.sum(-1))


def test_learning_the_spread_does_not_bend_the_effects(robot: Robot) -> None:
    network = GapModel(Shape.of(robot, 16))
    knots = robot.layout.knots + 1
    _, _, log_spread = network.effects(torch.randn(2, knots, 6), torch.ones(2, knots, 3), torch.zeros(2, 6))
    log_spread.sum().backward()  # type: ignore[no-untyped-call]
    assert {n.split(".")[0] for n, p in network.named_parameters() if p.grad is not None} == {"spread"}


def test_sampled_edges_are_hard_and_have_a_gradient() -> None:
    logit = torch.tensor([-6.0, 0.0, 6.0], requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([sample_edges(logit, 0.5, generator) for _ in range(400)])
    assert set(drawn.detach().unique().round(decimals=4).tolist()) == {0.0, 1.0}
    torch.testing.assert_close(drawn.mean(0), torch.tensor([0.0, 0.5, 1.0]), rtol=0, atol=0.1)
    drawn.sum().backward()  # type: ignore[no-untyped-call]
    assert logit.grad is not None
    assert (logit.grad[1:2] > 0).all()


def test_the_gain_brings_effects_to_order_one(robot: Robot, training: Training) -> None:
    data = Data(iter([samples(robot, 256, 0)]))
    Trainer(robot, data, training, spread(robot), Learning())
    shapes = data.target.float()
    moved = [i for i, n in enumerate(robot.parameters.names) if n != "joint/j/damping"]
    rms = shapes[..., moved].pow(2).mean((0, 1)).sqrt()
    assert ((rms > 0.5) & (rms < 1.5)).all()


def test_the_slope_of_the_loss_is_its_derivative(robot: Robot, training: Training) -> None:
    data = Data(iter([samples(robot, 64, 0)]))
    trainer = Trainer(robot, data, training, spread(robot), Learning())
    edge = (torch.rand(1, 6) > 0.3).float()
    gain = torch.rand(4, 1, 8) + 0.1
    error = 2 * torch.randn(4, 30, 1, 8)
    _, slope = trainer._effect_loss(error.clone(), gain, edge)
    moved = torch.randn_like(error)
    h = 1e-3
    up, _ = trainer._effect_loss(error + h * moved, gain, edge)
    down, _ = trainer._effect_loss(error - h * moved, gain, edge)
    assert (up - down) / (2 * h) == pytest.approx(float((slope * moved).sum()), rel=2e-2, abs=1e-4)


def test_training_learns_effects_and_drops_the_edge_without_one(robot: Robot, training: Training) -> None:
    torch.set_num_threads(1)  # two threads on a shared machine wait for each other
    data, held_out = Data(iter([samples(robot, 512, 0)])), Data(iter([samples(robot, 64, 1)]))
    trainer = Trainer(robot, data, training, spread(robot), Learning())
    losses = [trainer.run_epoch() for _ in range(training.epochs)]
    assert losses[-1] < 0.2 * losses[0]
    with torch.no_grad():
        quality = measure(trainer.model.eval(), held_out, robot.parameters.names, spread(robot), 0.3)
    damping = robot.parameters.names.index("joint/j/damping")
    off = trainer.model.edges()[:, damping]
    assert (off == 0).all()
    assert quality.edge_recall == 1.0
    assert quality.edge_precision == 1.0
    assert np.delete(quality.error, damping).max() < 0.3
    assert 0.5 < quality.spread_coverage < 1.0


def briefly(robot: Robot, training: Training, **changed: int) -> Trainer:
    """Four epochs of two steps; from the third step on edges are sampled and descended on."""
    brief = msgspec.structs.replace(training, epochs=4, **changed)
    return Trainer(robot, Data(iter([samples(robot, 64, 0)])), brief, spread(robot), Learning())


def weights(trainer: Trainer, epochs: int) -> torch.Tensor:
    """What further epochs make of the network, and of what its edges are judged by."""
    for _ in range(epochs):
        trainer.run_epoch()
    assert trainer.worth.any()
    return torch.cat([p.detach().flatten() for p in (*trainer.model.parameters(), trainer.worth)])


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


def test_too_many_parameters_are_refused_with_a_remedy(robot: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MAX_PARAMETERS", 5)
    with pytest.raises(ConfigError, match=r"6 free parameters: .* at most 5 .* freeze"):
        Shape.of(robot, 16)
