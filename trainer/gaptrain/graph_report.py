"""A causal graph as text and as JSON types: what each parameter moves, what moves nothing, what is not tested."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gapd.model.robot import Robot
from gaptrain.graph import Graph

# Names of parameters in one line of text.
NAMED = 4


def text(graph: Graph, robot: Robot) -> str:
    """One line for each parameter with an edge, strongest first, then the others by name."""
    return "\n".join(_lines(graph, robot))


def _lines(graph: Graph, robot: Robot) -> Iterator[str]:
    names, channels = robot.parameters.names, robot.layout.channels
    width = max((len(names[p]) for p in graph.active), default=9)
    yield f"{'parameter':<{width}}  effect/σ  edges  strongest on"
    for p in sorted(graph.active, key=lambda p: -graph.effect[p].max()):
        strongest = channels[int(np.argmax(graph.effect[p]))]
        yield f"{names[p]:<{width}}  {graph.effect[p].max():8.3g}  {graph.edges[p].sum():5d}  {strongest}"
    yield from rest(graph, robot)


def rest(graph: Graph, robot: Robot) -> Iterator[str]:
    """A line for the parameters without an edge and one for those that are not tested, if there are any."""
    names = np.array(robot.parameters.names)
    yield from _listed("no edge", names[graph.tested & ~graph.edges.any(axis=1)].tolist())
    yield from _listed("not tested by these motions", names[~graph.tested].tolist())


def _listed(label: str, names: list[str]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        yield f"{label}: {len(names)}: {', '.join(names[:NAMED])}{more}"


def plain(graph: Graph, robot: Robot) -> list[dict[str, Any]]:
    """Every parameter with its effects (noise standard deviations) and edge probabilities by channel."""
    channels = robot.layout.channels
    return [
        {
            "parameter": name, "tested": bool(graph.tested[p]),
            "effect": dict(zip(channels, graph.effect[p].tolist(), strict=True)),
            "probability": dict(zip(channels, graph.probability[p].tolist(), strict=True)),
        }
        for p, name in enumerate(robot.parameters.names)
    ]  # fmt: skip
