"""The published method and our variant on a task whose answer is known in closed form; the benchmark as it is run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gapd.model.parameters import Parameter, ParameterSet, Target
from gaptrain import compass
from gaptrain.compass_signed import Arguments, compass_signed
from gaptrain.edge_regression import regress
from gaptrain.policies import train_cross_entropy
from gaptrain.tasks.search import Iteration, published_half_width
from gaptrain.tasks.simulator import Rollouts, distance

Array = NDArray[np.float64]
ROOT = Path(__file__).parents[2]
P, ACTIVE = 8, (0, 3)


class Toy:
    """Two objects on lines, eight parameters: the first moves object 1, the fourth object 2, the others nothing."""

    name = "toy"
    channels = ("one/x", "two/x")
    objects = ((0,), (1,))
    steps = 6
    action_low, action_high = np.array([0.5]), np.array([1.5])

    def __init__(self) -> None:
        target = (Target("dof_damping", "any"),)
        self.space = ParameterSet([Parameter(f"p{i}", 1.0, 0.2, 5.0, target) for i in range(P)])
        self.count = 0

    def draw(self, rng: np.random.Generator, n: int) -> Array:
        return np.asarray(rng.uniform(self.action_low, self.action_high, (n, 1)))

    def rollout(self, physical: Array, actions: Array) -> Rollouts:
        self.count += len(actions)
        time = np.linspace(0, 1, self.steps)
        one = 0.1 * actions * physical[:, :1] * time
        two = 0.1 * actions * np.sqrt(physical[:, 3:4]) * time**2
        seen = np.stack([one, two], -1)
        miss = np.abs(seen[:, -1, 0] - 0.1)
        return Rollouts(seen, miss < 0.01, -miss, np.zeros(len(actions), bool))


class ToyRobot:
    """The toy with p0 = 1.4 and p3 = 0.7."""

    def __init__(self, task: Toy, seed: int) -> None:
        self.task, self.rollouts, self.noise = Toy(), 0, np.full(2, 1e-4)
        self.truth = task.space.vector({"p0": 1.4, "p3": 0.7})
        self._rng = np.random.default_rng(seed)

    def act(self, actions: Array) -> Rollouts:
        self.rollouts += len(actions)
        done = self.task.rollout(np.tile(self.truth, (len(actions), 1)), actions)
        noise = self._rng.normal(size=done.seen.shape) * self.noise
        return Rollouts(done.seen + noise, done.success, done.reward, done.failed)


def run_signed(seed: int, **changed: int) -> tuple[list[Iteration], Toy, ToyRobot]:
    task = Toy()
    robot = ToyRobot(task, seed)
    arguments = Arguments(iterations=3, rollouts=400, subsets=(1, 2, 4), seed=seed, **changed)
    return list(compass_signed(task, robot, arguments)), task, robot


def test_ours_finds_the_values_the_edges_and_says_how_sure() -> None:
    for seed in range(3):
        last = run_signed(seed)[0][-1]
        assert np.flatnonzero(last.kept).tolist() == list(ACTIVE)
        assert last.physical[list(ACTIVE)] == pytest.approx([1.4, 0.7], rel=0.02)
        off = np.abs(np.log(last.physical[list(ACTIVE)] / [1.4, 0.7]))
        assert (off < 4 * last.sd[list(ACTIVE)] + 1e-3).all()
        assert last.sd[1] > 0.5, "a parameter without effect stays unknown"


def test_ours_counts_what_it_simulates_and_stays_in_its_budget() -> None:
    iterations, task, robot = run_signed(1)
    assert iterations[-1].simulated == task.count <= 3 * 400
    assert iterations[-1].real_rollouts == robot.rollouts == 30


def test_ours_is_deterministic_given_the_seed() -> None:
    first, second = (run_signed(5)[0][-1] for _ in range(2))
    np.testing.assert_array_equal(first.physical, second.physical)
    np.testing.assert_array_equal(first.edge_probability, second.edge_probability)


def test_edge_probabilities_are_calibrated() -> None:
    rng, said, true = np.random.default_rng(3), [], []
    for _ in range(30):
        x = rng.uniform(-1, 1, (120, 20, 1))
        on = rng.random(20) < 0.3
        weights = on * rng.normal(size=20) * 0.4
        y = (x[..., 0] @ weights)[:, None] + rng.normal(size=(120, 1))
        said.append(regress(x, y, np.ones(120), np.ones(1)).edge)
        true.append(on)
    edge, on = np.concatenate(said), np.concatenate(true)
    sure, unsure = edge > 0.9, edge < 0.3
    assert on[sure].mean() > 0.85
    assert on[unsure].mean() == pytest.approx(edge[unsure].mean(), abs=0.1)


@pytest.mark.parametrize("model", ["graph", "full", "mlp"])
def test_the_published_loop_lowers_the_gap(model: str) -> None:
    torch.set_num_threads(1)
    task = Toy()
    robot = ToyRobot(task, 1)
    arguments = compass.Arguments(
        iterations=2, vectors=24, hidden=32, epochs=120, descent_steps=300, model=model, seed=2
    )
    last = list(compass.compass(task, robot, arguments))[-1]
    actions = np.array([[1.0]])
    gaps = [
        distance(task, task.rollout(v[None], actions).seen, task.rollout(robot.truth[None], actions).seen).sum()
        for v in (task.space.nominal, last.physical)
    ]
    assert gaps[1] < 0.8 * gaps[0]
    assert (last.real_rollouts, last.simulated) == (20, 480)


def test_the_published_graph_switches_edges_off_given_the_price() -> None:
    """An edge that does nothing falls from 0.953 by the price alone; one that carries the label stays."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (200, 4))
    y = x[:, :1]
    arguments = compass.Arguments(hidden=16, code=8, epochs=300, batch=100, learning_rate=0.01)
    edges = compass.fit(x, y, 3, 0.1, arguments, rng).edge_probability().detach().numpy()[:, 0]
    assert edges[0] > 0.5 > edges[1:].max()


def test_the_plain_network_has_no_graph() -> None:
    model = compass.fit(np.zeros((4, 3)), np.zeros((4, 1)), 2, 0.0, compass.Arguments(model="mlp", epochs=1),
                        np.random.default_rng(1))  # fmt: skip
    assert model.edge_probability().numpy().tolist() == [[1.0], [1.0]]


def test_scaling_is_undone() -> None:
    values = np.array([[1.0, 5.0, 2.0], [3.0, 5.0, -2.0]])
    scale = compass.Scale.of(values, -1.0, 1.0)
    np.testing.assert_allclose(scale(values), [[-1, 0, 1], [1, 0, -1]])
    np.testing.assert_allclose(scale.back(scale(values)), values)


def test_published_widths_go_by_what_a_parameter_writes() -> None:
    def one(field: str, nominal: float, index: int = 0) -> float:
        p = Parameter("p", nominal, -100, 100, (Target(field, "e", index),), scale="linear")
        return float(published_half_width(ParameterSet([p]), np.array([nominal]))[0])

    assert one("geom_friction", 0.05) == 0.02
    assert one("geom_solref", -10, 1) == 10
    assert one("geom_solref", -60, 1) == 30
    assert (one("task.velocity_lag", 0.75), one("task.camera_x", 0.0)) == (0.1, 0.03)
    assert one("body_mass", 4.0) == 2.0


def test_a_policy_is_learned_without_any_package() -> None:
    task = Toy()
    actions = train_cross_entropy(task, task.space.vector({"p0": 0.8}), 1).act(np.random.default_rng(1), 20)
    assert actions == pytest.approx(1.25, abs=0.05)


def test_the_benchmark_runs_and_says_what_it_cannot(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "compass.py", "--size", "tiny", "--tasks", "air_hockey", "--out", "out"],
        cwd=tmp_path, env=os.environ | {"PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1"}, capture_output=True,
        text=True, timeout=110, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    text = (tmp_path / "out" / "compass-air_hockey.md").read_text(encoding="utf-8")
    assert all(name in text for name in ("ours, signed", "COMPASS", "COMPASS, mlp", "Gauss-Newton", "random search"))
    assert ("CMA-ES is left out" in done.stdout) == (importlib.util.find_spec("cma") is None)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
