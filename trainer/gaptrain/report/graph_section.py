"""The causal graph: one picture where it fits, else one of the families with a folded picture of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from gaptrain.graph import EDGE, EDGE_SIGMA
from gaptrain.report.facts import Facts
from gaptrain.report.markup import counted, folded, number, section, text
from gaptrain.report.matrix import matrix
from gaptrain.report.picture import DASHED, DRAWN_FROM, OPAQUE, WIDEST, Line, Node, draw, width_of

# Parameters or channels up to which one picture is readable, grey ones among them up to which each has its own line.
READABLE, GREY = 64, 12
# Families with a colour of their own; page.css has as many.
COLOURS = 9


def family(name: str) -> str:
    """As in joint/*/damping."""
    kind, _, rest = name.partition("/")
    return f"{kind}/*/{rest.rsplit('/', 1)[-1]}" if "/" in rest else name


def owner(name: str) -> str:
    """What the parameter or channel belongs to: elbow of joint/elbow/damping and of elbow/position."""
    inner = name.split("/", 1)[1] if name.count("/") > 1 else name
    return inner.rsplit("/", 1)[0]


def graph_section(facts: Facts) -> str:
    """The pictures, with what they mean."""
    whole = max(len(facts.space), len(facts.channels)) <= READABLE
    edges = int((facts.probability > EDGE).sum())
    said = (
        f"<p>{counted(edges, 'edge')} from {counted(len(facts.space), 'parameter')} to "
        f"{counted(len(facts.channels), 'channel')}. A line says that one prior standard deviation of the parameter "
        f"moves the channel by more than {EDGE_SIGMA:g} noise standard deviations (σ) in the training's motions. "
        "Point at a name to see only its lines, click to keep them.</p>"
    )
    kinds = _kinds(facts)
    parts = [said, _legend(facts, kinds)]
    if whole:
        parts.append(_framed(_picture(facts, list(range(len(facts.space))), kinds, grey=True)))
    else:
        parts += [_framed(_by_family(facts, kinds)), *_families(facts, kinds), _by_owner(facts)]
    parts.append(
        folded("The edges as a matrix: the stronger, the more colour", f"<figure>{_matrix(facts)}</figure>", whole)
    )
    return section("graph", "What moves what", *parts)


def _kinds(facts: Facts) -> dict[str, str]:
    """CSS class of each family: colours for the largest."""
    families = Counter(family(name) for name in facts.space.names)
    return {name: f"k{i}" if i < COLOURS else "k" for i, (name, _) in enumerate(families.most_common())}


def _legend(facts: Facts, kinds: dict[str, str]) -> str:
    largest = float(facts.effect.max())
    sizes = [s for s in (EDGE_SIGMA, 1.0, 10.0, 100.0, 1e3, 1e4) if s <= max(largest, 1.0)]
    widths = "".join(_stroke(f'stroke-width="{width_of(s, largest):.1f}"', f"{s:g} σ") for s in sizes)
    half = f'stroke-width="{WIDEST / 2}"'
    faint = "".join(
        _stroke(f'{half} stroke-opacity="{OPAQUE * p:.2f}"{DASHED if p <= EDGE else ""}', f"{100 * p:g} %")
        for p in (1.0, 0.6, 0.3)
    )
    colours = [_dot(kind, text(name)) for name, kind in kinds.items() if kind != "k"]
    rest = sum(kind == "k" for kind in kinds.values())
    colours += [_dot("k", counted(rest, "other family").replace("familys", "families"))] if rest else []
    colours += [_dot("grey", "without an edge, or not tested")] if facts.manifest.inactive else []
    return (
        f'<div class="legend"><div>width: effect {widths}</div><div>opacity: probability that it is an edge {faint} '
        f"(dashed: rather not)</div><div>{''.join(colours)}</div></div>"
    )


def _stroke(look: str, words: str) -> str:
    return f'<span><svg width="34" height="12"><path class="key" d="M0 6H34" {look}/></svg> {words}</span>'


def _dot(kind: str, words: str) -> str:
    circle = '<svg width="12" height="12"><circle class="key" cx="6" cy="6" r="5"/></svg>'
    return f'<span class="{kind}">{circle} {words}</span>'


def _framed(picture: str) -> str:
    return f'<figure>{picture}<figcaption class="said">&#160;</figcaption></figure>'


def _right(facts: Facts, columns: Sequence[int]) -> list[Node]:
    """Channels in the order of what they belong to."""
    owners = list(dict.fromkeys(owner(c) for c in facts.channels))
    nodes = []
    for c in sorted(columns, key=lambda c: owners.index(owner(facts.channels[c]))):
        name, effects = facts.channels[c], facts.effect[:, c]
        moved = np.flatnonzero(facts.probability[:, c] > EDGE)
        strongest = sorted(moved, key=lambda p: -effects[p])[:3]
        named = ", ".join(f"{facts.space.names[p]} {number(effects[p])} σ" for p in strongest)
        title = f"{name}: moved by {counted(len(moved), 'parameter')}{'; most by ' + named if named else ''}"
        nodes.append(Node(f"c{c}", name, title, owner(name)))
    return nodes


def _picture(facts: Facts, rows: Sequence[int], kinds: dict[str, str], grey: bool = False) -> str:
    """The parameters of some rows with the channels that they move, or with the grey ones and all channels."""
    drawn = facts.probability[list(rows)].max(axis=0) >= DRAWN_FROM
    drawn |= grey or not drawn.any()
    right = _right(facts, np.flatnonzero(drawn).tolist())
    place = {node.key: i for i, node in enumerate(right)}
    left, lines = [], []
    for a, p in enumerate(rows):
        name = facts.space.names[p]
        left.append(Node(f"p{p}", name, _title(facts, p), owner(name), kinds[family(name)]))
        for c in np.flatnonzero(drawn).tolist():
            effect, probability = float(facts.effect[p, c]), float(facts.probability[p, c])
            title = f"{name} → {facts.channels[c]}: {number(effect)} σ, edge probability {probability:.2f}"
            lines.append(Line(a, place[f"c{c}"], effect, probability, title))
    left += _grey(facts) if grey else []
    return draw(left, right, lines, float(facts.effect.max()), "causal graph: parameters left, channels right")


def _title(facts: Facts, p: int) -> str:
    edges, best = int((facts.probability[p] > EDGE).sum()), int(np.argmax(facts.effect[p]))
    strongest = f"{facts.channels[best]} by {number(facts.effect[p, best])} σ"
    return f"{facts.space.names[p]}: moves {counted(edges, 'channel')}, most {strongest}"


def _grey(facts: Facts) -> list[Node]:
    """Inactive parameters: each if they are few, else how many there are."""
    inactive = facts.manifest.inactive
    if len(inactive) <= GREY:
        words = {True: "no edge", False: "not tested by these motions"}
        return [
            Node(f"i{i}", p.name, f"{p.name}: {words[p.tested]}", "without an edge", "grey", "corrections")
            for i, p in enumerate(inactive)
        ]
    found = ((facts.count("no edge"), "without an edge"), (facts.count("not tested"), "not tested by these motions"))
    return [
        Node(f"i{i}", f"{count} {words}", words, "without an edge", "grey", "corrections")
        for i, (count, words) in enumerate(found) if count
    ]  # fmt: skip


def _matrix(facts: Facts) -> str:
    """Parameters by family down, channels by what they belong to across."""
    members = [p for rows in _members(facts.space.names, family).values() for p in rows]
    columns = [int(node.key[1:]) for node in _right(facts, range(len(facts.channels)))]
    shown = np.where(facts.probability > EDGE, facts.effect, 0.0)[np.ix_(members, columns)]
    names, channels = [facts.space.names[p] for p in members], [facts.channels[c] for c in columns]
    return matrix(names, channels, shown)


def _members(names: Sequence[str], of: Callable[[str], str]) -> dict[str, list[int]]:
    """Numbers of the names by what `of` says of each."""
    members: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        members.setdefault(of(name), []).append(i)
    return members


def _channel_kind(name: str) -> str:
    return f"*/{name.rsplit('/', 1)[-1]}" if "/" in name else name


def _by_family(facts: Facts, kinds: dict[str, str]) -> str:
    """Families on the left, each a link to its own picture; channels by kind on the right."""
    rows, columns = _members(facts.space.names, family), _members(facts.channels, _channel_kind)
    left = [
        Node(
            f"f{a}", f"{name} ({len(of)})", f"{name}: {counted(len(of), 'parameter')}", name, kinds[name], f"family{a}"
        )
        for a, (name, of) in enumerate(rows.items())
    ]
    return _overview(facts, [*left, *_grey(facts)], rows, columns, "causal graph by families")


def _by_owner(facts: Facts) -> str:
    """What parameters belong to on the left, what channels belong to on the right; nothing where that says no more."""
    rows, columns = _members(facts.space.names, owner), _members(facts.channels, owner)
    if len(columns) < 2 or max(len(rows), len(columns)) > 2 * READABLE:
        return ""
    left = [
        Node(f"o{a}", f"{name} ({len(of)})", f"{name}: {', '.join(facts.space.names[p] for p in of)}", name)
        for a, (name, of) in enumerate(rows.items())
    ]
    return folded("By object", _framed(_overview(facts, left, rows, columns, "causal graph by objects")))


def _overview(
    facts: Facts, left: list[Node], rows: dict[str, list[int]], columns: dict[str, list[int]], label: str
) -> str:
    """Groups of parameters and of channels; a line is the strongest among the edges between two groups."""
    lines = []
    for a, (name, members) in enumerate(rows.items()):
        for b, (end, of_end) in enumerate(columns.items()):
            probability = facts.probability[np.ix_(members, of_end)]
            effect = facts.effect[np.ix_(members, of_end)]
            best, edges = int(np.argmax(effect * (probability > EDGE))), int((probability > EDGE).sum())
            strongest, certain = float(effect.flat[best]), float(probability.flat[best])
            title = f"{name} → {end}: {counted(edges, 'edge')} of {effect.size}, strongest {number(strongest)} σ"
            lines.append(Line(a, b, strongest, certain, title))
    right = [
        Node(f"g{b}", f"{end} ({len(of_end)})", f"{end}: {counted(len(of_end), 'channel')}", end)
        for b, (end, of_end) in enumerate(columns.items())
    ]
    return draw(left, right, lines, float(facts.effect.max()), label)


def _families(facts: Facts, kinds: dict[str, str]) -> list[str]:
    """A folded picture of each family."""
    parts = []
    for a, (name, rows) in enumerate(_members(facts.space.names, family).items()):
        best = max(rows, key=lambda p: float(facts.effect[p].max()))
        summary = f"{text(name)}: {counted(len(rows), 'parameter')}, strongest {text(_title(facts, best))}"
        chunks = [rows[i : i + READABLE] for i in range(0, len(rows), READABLE)]
        pictures = "".join(_framed(_picture(facts, chunk, kinds)) for chunk in chunks)
        parts.append(folded(f'<span class="{kinds[name]}">●</span> {summary}', f'<div id="family{a}">{pictures}</div>'))
    return parts
