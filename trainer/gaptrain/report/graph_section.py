"""The causal graph: one picture where it fits, else one of the families with a folded picture of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from gaptrain.graph import EDGE, EDGE_SIGMA
from gaptrain.report.facts import Facts
from gaptrain.report.markup import counted, folded, number, section, text
from gaptrain.report.picture import WIDEST, Line, Node, draw, width_of

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
        parts += [_framed(_overview(facts, kinds)), *_families(facts, kinds)]
    return section("graph", "What moves what", *parts)


def _kinds(facts: Facts) -> dict[str, str]:
    """CSS class of each family: colours for the largest."""
    families = Counter(family(name) for name in facts.space.names)
    return {name: f"k{i}" if i < COLOURS else "k" for i, (name, _) in enumerate(families.most_common())}


def _legend(facts: Facts, kinds: dict[str, str]) -> str:
    largest = float(facts.effect.max())
    sizes = [s for s in (EDGE_SIGMA, 1.0, 10.0, 100.0, 1e3, 1e4) if s <= max(largest, 1.0)]
    widths = "".join(
        f'<span><svg width="34" height="12"><path class="key" d="M0 6H34" stroke-width="{width_of(s, largest):.1f}"/>'
        f"</svg> {s:g} σ</span>"
        for s in sizes
    )
    faint = "".join(
        f'<span><svg width="34" height="12"><path class="key" d="M0 6H34" stroke-width="{WIDEST / 2}" '
        f'stroke-opacity="{p * 0.85:.2f}"{dash}/></svg> {p:.0%}</span>'
        for p, dash in ((1.0, ""), (0.6, ""), (0.3, ' stroke-dasharray="3 3"'))
    )
    colours = "".join(
        f'<span class="{kind}"><svg width="12" height="12"><circle class="key" cx="6" cy="6" r="5"/></svg> '
        f"{text(name)}</span>"
        for name, kind in kinds.items() if kind != "k"
    )  # fmt: skip
    rest = sum(kind == "k" for kind in kinds.values())
    if rest:
        colours += f'<span class="k"><svg width="12" height="12"><circle class="key" cx="6" cy="6" r="5"/></svg> {rest} other families</span>'
    grey = (
        '<span class="grey"><svg width="12" height="12"><circle class="key" cx="6" cy="6" r="5"/></svg> '
        "not tested, or without an edge</span>"
    )
    return (
        f'<div class="legend"><div>width: effect {widths}</div><div>opacity: probability that it is an edge {faint} '
        f"(dashed: rather not)</div><div>{colours}{grey}</div></div>"
    )


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
    """The parameters of some rows with all channels that they move."""
    drawn = facts.probability[list(rows)].max(axis=0) > 0 if not grey else np.ones(len(facts.channels), bool)
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
    found = (("no edge", "without an edge"), ("not tested", "not tested by these motions"))
    return [
        Node(f"i{i}", f"{facts.count(fate)} {words}", words, "without an edge", "grey", "corrections")
        for i, (fate, words) in enumerate(found) if facts.count(fate)
    ]  # fmt: skip


def _members(facts: Facts) -> dict[str, list[int]]:
    members: dict[str, list[int]] = {}
    for p, name in enumerate(facts.space.names):
        members.setdefault(family(name), []).append(p)
    return members


def _overview(facts: Facts, kinds: dict[str, str]) -> str:
    """Families on the left, channels by kind on the right; a line is the strongest among its edges."""
    columns: dict[str, list[int]] = {}
    for c, name in enumerate(facts.channels):
        columns.setdefault(f"*/{name.rsplit('/', 1)[-1]}" if "/" in name else name, []).append(c)
    left, lines = [], []
    for a, (name, rows) in enumerate(_members(facts).items()):
        left.append(Node(f"f{a}", f"{name} ({len(rows)})", f"{name}: {counted(len(rows), 'parameter')}", name,
                         kinds[name], f"family{a}"))  # fmt: skip
        for b, (kind, of_kind) in enumerate(columns.items()):
            effect, probability = (m[np.ix_(rows, of_kind)] for m in (facts.effect, facts.probability))
            edges = int((probability > EDGE).sum())
            title = f"{name} → {kind}: {counted(edges, 'edge')} of {probability.size}, strongest {number(effect.max())} σ"
            lines.append(Line(a, b, float(effect.max()), float(probability.max()), title))
    right = [
        Node(f"g{b}", f"{kind} ({len(of_kind)})", f"{kind}: {counted(len(of_kind), 'channel')}", kind)
        for b, (kind, of_kind) in enumerate(columns.items())
    ]
    return draw([*left, *_grey(facts)], right, lines, float(facts.effect.max()), "causal graph by families")


def _families(facts: Facts, kinds: dict[str, str]) -> list[str]:
    """A folded picture of each family."""
    parts = []
    for a, (name, rows) in enumerate(_members(facts).items()):
        best = max(rows, key=lambda p: float(facts.effect[p].max()))
        summary = f"{text(name)}: {counted(len(rows), 'parameter')}, strongest {text(_title(facts, best))}"
        chunks = [rows[i : i + READABLE] for i in range(0, len(rows), READABLE)]
        pictures = "".join(_framed(_picture(facts, chunk, kinds)) for chunk in chunks)
        parts.append(folded(f'<span class="{kinds[name]}">●</span> {summary}', f'<div id="family{a}">{pictures}</div>'))
    return parts
