"""A graph of two columns as SVG: nodes on the left, nodes on the right, lines as wide as an effect is strong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gaptrain.graph import EDGE, EDGE_SIGMA
from gaptrain.report.markup import text

# Pixels: height of a line of text, width of a letter, space between groups and between the columns, margin.
ROW, LETTER, GROUP_SPACE, BETWEEN, MARGIN = 18, 6.4, 8, 540, 8
LONGEST_LABEL = 42
# Width of lines in pixels. The square of the logarithm keeps hundreds of weak lines from hiding the strong ones.
THINNEST, WIDEST, POWER = 0.35, 6.5, 2.0
# Lines below this probability are not drawn.
DRAWN_FROM = 0.05
DASHED = ' stroke-dasharray="3 3"'
# An opaque line would hide those below it.
OPAQUE = 0.8


@dataclass(frozen=True)
class Node:
    """One end of lines. `kind` is a CSS class with its colour; `link` is what a click on the label leads to."""

    key: str
    label: str
    title: str
    group: str
    kind: str = ""
    link: str = ""


@dataclass(frozen=True)
class Line:
    """From left[a] to right[b]. effect in noise standard deviations."""

    a: int
    b: int
    effect: float
    probability: float
    title: str


def width_of(effect: float, largest: float) -> float:
    """Width in pixels, by the logarithm of the effect."""
    return THINNEST + (WIDEST - THINNEST) * float(strength(effect, largest) ** POWER)


def strength(effect: float, largest: float) -> float:
    """0 .. 1, linear in the logarithm from what an edge needs to the largest effect of the bundle."""
    span = math.log10(max(largest / EDGE_SIGMA, 10.0))
    return min(math.log10(max(effect / EDGE_SIGMA, 1.0)) / span, 1.0)


def draw(left: Sequence[Node], right: Sequence[Node], lines: Sequence[Line], largest: float, label: str) -> str:
    """The picture; `largest` effect of the bundle, so that widths mean the same in every picture of a page."""
    drawn = [line for line in lines if line.probability >= DRAWN_FROM]
    order = _by_weight(left, drawn)
    left_y, right_y = _places([left[i] for i in order]), _places(right)
    height = max(left_y[-1] if left_y else 0, right_y[-1]) + ROW
    right_y = _spread(right_y, height)
    left_y = _spread(left_y, height)
    left_width, right_width = (MARGIN + _label_width(nodes) for nodes in (left, right))
    x0, x1 = left_width, left_width + BETWEEN
    size = f'viewBox="0 0 {x1 + right_width} {height:g}" width="{x1 + right_width}" height="{height:g}"'
    parts = [f'<svg class="graph" role="group" aria-label="{text(label)}" {size}>']
    for i, y in zip(order, left_y, strict=True):
        own = sorted((line for line in drawn if line.a == i), key=lambda line: line.effect)
        paths = "".join(_path(line, right[line.b], x0, y, x1, right_y[line.b], largest) for line in own)
        parts.append(_left(left[i], paths, x0, y))
    parts += [_right(node, x1, y) for node, y in zip(right, right_y, strict=True)]
    return "\n".join([*parts, "</svg>"])


def _by_weight(left: Sequence[Node], lines: Sequence[Line]) -> list[int]:
    """Order of the left nodes in which lines cross little: groups by where their strong lines lead."""
    pull: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        weight = math.log1p(line.effect / EDGE_SIGMA) ** 2 * line.probability
        pull.setdefault(left[line.a].group, []).append((weight, line.b))
    middle = {group: sum(w * b for w, b in ends) / max(sum(w for w, _ in ends), 1e-9) for group, ends in pull.items()}
    first = {node.group: i for i, node in reversed(list(enumerate(left)))}
    return sorted(range(len(left)), key=lambda i: (middle.get(left[i].group, np.inf), first[left[i].group], i))


def _places(nodes: Sequence[Node]) -> list[float]:
    """Heights of the labels from top to bottom, with space between groups."""
    places, y = [], 0.0
    for before, node in zip([None, *nodes], nodes, strict=False):
        y += ROW + (GROUP_SPACE if before is not None and before.group != node.group else 0)
        places.append(y)
    return places


def _spread(places: list[float], height: float) -> list[float]:
    """The same places stretched over the height of the other column."""
    if len(places) == 1:
        return [height / 2]
    factor = (height - ROW) / places[-1] if places else 1.0
    return [round(y * factor - ROW / 4, 1) for y in places]


def _label_width(nodes: Sequence[Node]) -> int:
    return math.ceil(LETTER * max(min(len(node.label), LONGEST_LABEL) for node in nodes)) + 14 if nodes else 14


def _path(line: Line, end: Node, x0: float, y0: float, x1: float, y1: float, largest: float) -> str:
    middle = (x0 + x1) / 2
    dashed = DASHED if line.probability <= EDGE else ""
    return (
        f'<path data-end="{text(end.key)}" d="M{x0:g} {y0:g}C{middle:g} {y0:g} {middle:g} {y1:g} {x1:g} {y1:g}" '
        f'stroke-width="{width_of(line.effect, largest):.1f}" stroke-opacity="{OPAQUE * line.probability:.2f}"{dashed}>'
        f"<title>{text(line.title)}</title></path>"
    )


def _left(node: Node, paths: str, x: float, y: float) -> str:
    label = f'<text x="{x - 9:g}" y="{y + 4:g}" text-anchor="end">{text(short(node.label))}</text>'
    if node.link:
        label = f'<a href="#{text(node.link)}">{label}</a>'
    dot = f'<circle cx="{x - 2:g}" cy="{y:g}" r="3"/>'
    return f'{_open(node, "left")}<g class="lines">{paths}</g>{dot}{label}</g>'


def _right(node: Node, x: float, y: float) -> str:
    label = f'<text x="{x + 9:g}" y="{y + 4:g}">{text(short(node.label))}</text>'
    return f'{_open(node, "right")}<circle cx="{x + 2:g}" cy="{y:g}" r="3"/>{label}</g>'


def _open(node: Node, side: str) -> str:
    name = f'class="node {side} {node.kind}" data-node="{text(node.key)}" tabindex="0"'
    return f"<g {name}><title>{text(node.title)}</title>"


def short(label: str) -> str:
    """The label, cut in its middle where it is too long for a picture."""
    return label if len(label) <= LONGEST_LABEL else f"{label[: LONGEST_LABEL // 2 - 1]}…{label[-LONGEST_LABEL // 2 :]}"
