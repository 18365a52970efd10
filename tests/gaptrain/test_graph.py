"""The causal graph: effects as they are, edges as certain as the windows make them, and what is not tested."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from gapd.errors import ConfigError
from gapd.gap.jacobian import FiniteDifference, Point
from gapd.gap.replay import Replay, Rollouts
from gapd.model.robot import Robot
from gaptrain import graph_report
from gaptrain.cli import main
from gaptrain.draws import draw_replay_parameters, draw_windows
from gaptrain.graph import EDGE_SIGMA, STREAM, Graph, graph_of, measure_graph
from gaptrain.settings import Excitation, Training

MODELS = Path(__file__).parents[2] / "models"
Array = NDArray[np.float64]
TRAINING = Training(Excitation(home=(0.0,), amplitude=(0.8,), low_hz=0.3, high_hz=1.5), graph_windows=64, seed=5)


@pytest.fixture(scope="module")
def graph(twins: Robot) -> Graph:
    return measure_graph(twins, TRAINING, threads=1)


def test_effects_are_those_of_the_derivatives(twins: Robot, graph: Graph) -> None:
    rng = np.random.default_rng([TRAINING.seed, STREAM])
    windows, z_robot = draw_windows(twins, TRAINING, rng, 64)
    z = draw_replay_parameters(twins, rng, z_robot)
    replay = Replay(twins)
    rollouts = replay.run(windows, twins.parameters.to_physical(z))
    jacobian = FiniteDifference(replay).parameters(Point(windows, z, windows.qpos0, windows.qvel0, rollouts))
    spread = (twins.parameters.z_max - twins.parameters.z_min) / np.sqrt(12)
    wanted = np.sqrt((jacobian**2).mean((0, 1))).T * spread[:, None]
    np.testing.assert_allclose(graph.effect, wanted, rtol=1e-9, atol=1e-12)


def test_what_the_motions_do_not_touch_is_not_tested_and_has_no_edge(twins: Robot, graph: Graph) -> None:
    idle = twins.parameters.names.index("tendon/idle/stiffness")
    assert not graph.tested[idle]
    assert not graph.edges[idle].any()
    assert graph.tested.sum() == len(twins.parameters) - 1
    assert idle not in graph.active


def test_too_many_diverging_replays_are_refused(twins: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Replay.run

    def diverging(*given: object) -> Rollouts:
        rollouts = run(*given)  # type: ignore[arg-type]
        return replace(rollouts, failed=np.ones_like(rollouts.failed))

    monkeypatch.setattr(Replay, "run", diverging)
    with pytest.raises(ConfigError, match="64 of 64 simulated replays diverge"):
        measure_graph(twins, TRAINING, threads=1)


def test_probabilities_are_as_certain_as_the_motions_make_them() -> None:
    """Effects that a few windows carry: an edge at the threshold is a coin toss, others are clear."""
    rng = np.random.default_rng(0)
    motions, per_motion = 100, 4
    scale = rng.lognormal(0.0, 1.0, motions)
    size = np.array([0.1, 0.7, 1.0, 1.4, 10.0]) * EDGE_SIGMA
    squared = np.repeat(scale / scale.mean(), per_motion)[:, None, None] * size[None, :, None] ** 2
    graph = graph_of(squared, np.repeat(np.arange(motions), per_motion), rng)
    np.testing.assert_allclose(graph.effect[:, 0], size, rtol=1e-9)
    probability = graph.probability[:, 0]
    assert probability[0] == 0.0
    assert probability[1] < 0.1
    assert 0.25 < probability[2] < 0.75
    assert probability[3] > 0.9
    assert probability[4] == 1.0


def test_how_often_an_edge_is_there_that_is_said_to_be_there() -> None:
    """Calibration: over many graphs from few motions, the stated probability is the share of true edges."""
    rng = np.random.default_rng(1)
    stated, true = [], []
    for _ in range(2000):
        size = EDGE_SIGMA * np.exp(rng.uniform(-0.4, 0.4))
        scale = rng.lognormal(-0.125, 0.5, 60)  # mean 1
        squared = (scale * size**2).reshape(-1, 1, 1)
        stated.append(graph_of(squared, np.arange(60), rng).probability[0, 0])
        true.append(size > EDGE_SIGMA)
    for low, high in ((0.0, 0.2), (0.2, 0.8), (0.8, 1.01)):
        inside = (np.array(stated) >= low) & (np.array(stated) < high)
        assert np.mean(np.array(true)[inside]) == pytest.approx(np.mean(np.array(stated)[inside]), abs=0.15)


def test_windows_without_a_derivative_do_not_count() -> None:
    squared = np.full((8, 1, 2), 4.0)
    squared[3] = np.nan
    graph = graph_of(squared, np.arange(8) // 2, np.random.default_rng(0))
    np.testing.assert_allclose(graph.effect, 2.0)


def test_the_text_lists_edges_by_strength_and_names_what_is_not_tested(twins: Robot, graph: Graph) -> None:
    head, *rows, last = graph_report.text(graph, twins).splitlines()
    assert head.split() == ["parameter", "effect/σ", "edges", "strongest", "on"]
    sizes = [float(row.split()[1]) for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    assert len(rows) == len(twins.parameters) - 1
    assert last == "not tested by these motions: 1: tendon/idle/stiffness"
    plain = {entry["parameter"]: entry for entry in graph_report.plain(graph, twins)}
    assert plain["tendon/idle/stiffness"]["tested"] is False
    assert plain["joint/j/damping"]["probability"]["j/velocity"] == 1.0


def test_the_command_prints_json(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["graph", str(MODELS / "servo_pendulum"), "--windows", "16", "--json"])
    assert done.exit_code == 0, done.output
    assert [entry["tested"] for entry in json.loads(done.stdout)] == [True] * 6
    done = CliRunner().invoke(main, ["graph", str(MODELS / "servo_pendulum"), "--windows", "4"])
    assert done.exit_code == 2
    assert "4 is not in the range" in done.output


def test_the_same_seed_gives_the_same_graph(twins: Robot, graph: Graph) -> None:
    again = measure_graph(twins, TRAINING, threads=2)
    np.testing.assert_array_equal(again.effect, graph.effect)
    np.testing.assert_array_equal(again.probability, graph.probability)
