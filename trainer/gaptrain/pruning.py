"""The robot with the parameters that the causal graph finds: the network is made for these, and fits move only them."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from click import echo
from rich.console import Console

from gapd import durable
from gapd.errors import ConfigError
from gapd.gap_model.manifest import InactiveFacts
from gapd.model.robot import Robot
from gaptrain import graph_report
from gaptrain.dataset import data_folder
from gaptrain.graph import EDGE_SIGMA, Graph, measure_graph
from gaptrain.settings import Training


@dataclass(frozen=True)
class Pruned:
    """A robot whose parameters without an edge are held, the graph of the others, and what is held."""

    robot: Robot
    graph: Graph
    inactive: tuple[InactiveFacts, ...]


def prune(robot: Robot, training: Training, threads: int = 2) -> Pruned:
    """Measure the graph, or read what was measured before; ConfigError where it has no edge."""
    graph = _graph(robot, training, threads)
    active, free = graph.active, robot.parameters.free
    if not len(active):
        raise ConfigError(
            f"{robot.config.path(robot.config.parameters)}: no parameter moves a channel by {EDGE_SIGMA} of its noise; "
            "widen the bounds, or raise the amplitude in train.toml"
        )
    inactive = tuple(
        InactiveFacts(p.name, p.unit, p.nominal, float(effect.max()), bool(tested))
        for p, effect, tested in zip(free, graph.effect, graph.tested, strict=True)
        if p.name not in {free[a].name for a in active}
    )
    return Pruned(robot.holding({p.name for p in inactive}), graph.take(active), inactive)


def _graph(robot: Robot, training: Training, threads: int) -> Graph:
    path = data_folder(robot, training) / f"graph-{training.graph_windows}.npz"
    graph = _read(path, (len(robot.parameters), len(robot.layout.channels)))
    if graph is None:
        graph = measure_graph(robot, training, threads, Console())
        path.parent.mkdir(parents=True, exist_ok=True)
        file = io.BytesIO()
        arrays = {"effect": graph.effect, "probability": graph.probability, "tested": graph.tested}
        np.savez(file, allow_pickle=False, data=np.array(path.parent.name), **arrays)
        durable.replace(path, file.getvalue())
    for line in graph_report.rest(graph, robot):
        echo(line)
    return graph


def _read(path: Path, shape: tuple[int, int]) -> Graph | None:
    """The graph in a file; None if it is not there, and, said in a line, if it is damaged or another model's."""
    try:
        with zipfile.ZipFile(path) as file:
            altered = file.testzip()
        with np.load(path, allow_pickle=False) as arrays:
            graph, data = Graph(arrays["effect"], arrays["probability"], arrays["tested"]), str(arrays["data"])
    except FileNotFoundError:
        return None
    except (EOFError, KeyError, ValueError, zipfile.BadZipFile):
        pass
    else:
        shapes = (graph.effect.shape, graph.probability.shape, graph.tested.shape)
        if altered is None and data == path.parent.name and shapes == (shape, shape, shape[:1]):
            return graph
    echo(f"{path}: damaged or of another model; measured again")
    return None
