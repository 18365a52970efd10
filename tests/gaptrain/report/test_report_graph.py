"""The picture of the graph: every edge, as wide as it is strong, as opaque as it is sure; folded where it is large."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import numpy as np
import pytest
from bundles import Page, large, manifest_of, parameter
from conftest import reported

from gapd.gap_model.manifest import ChannelFacts, GraphFacts, InactiveFacts, Manifest
from gaptrain.report.graph_section import READABLE, family, owner
from gaptrain.report.picture import width_of


def graphs(element: ET.Element) -> list[ET.Element]:
    return [e for e in element.iter("svg") if e.get("class") == "graph"]


def nodes(graph: ET.Element, side: str) -> dict[str, ET.Element]:
    """Nodes of a side by their label."""
    found = [g for g in graph.iter("g") if side in g.get("class", "").split()]
    return {"".join(next(g.iter("text")).itertext()): g for g in found}


def test_an_edge_is_as_wide_as_strong_and_as_opaque_as_sure(small: Manifest, tmp_path: Path) -> None:
    probability = np.array([[1.0, 0.8, 0.4], [0.6, 0.04, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    graph = GraphFacts(tuple(map(tuple, probability.tolist())), small.graph.effect)
    (picture,) = graphs(reported(tmp_path, msgspec.structs.replace(small, graph=graph)).section("graph"))
    left, right = nodes(picture, "left"), nodes(picture, "right")
    assert set(right) == {c.name for c in small.channels}
    for p, named in enumerate(small.parameters):
        lines = {line.get("data-end"): line for line in left[named.name].iter("path")}
        for c, channel in enumerate(small.channels):
            line = lines.pop(right[channel.name].get("data-node"), None)
            assert (line is not None) == (probability[p, c] >= 0.05)
            if line is None:
                continue
            assert float(line.get("stroke-opacity", "")) == pytest.approx(0.8 * probability[p, c], abs=0.006)
            assert ("stroke-dasharray" in line.attrib) == (probability[p, c] <= 0.5)
            title = "".join(next(line.iter("title")).itertext())
            assert title.startswith(f"{named.name} → {channel.name}: ")
        assert not lines
    widths = [float(line.get("stroke-width", "")) for g in left.values() for line in g.iter("path")]
    effects = [
        float("".join(next(line.iter("title")).itertext()).split(": ")[1].split(" σ")[0])
        for g in left.values() for line in g.iter("path")
    ]  # fmt: skip
    assert np.all(np.diff(np.array(widths)[np.argsort(effects)]) >= 0)
    assert max(widths) == 6.5
    assert width_of(0.1, 30.0) == 0.35


def test_a_line_begins_and_ends_at_its_names(small_page: Page) -> None:
    (picture,) = graphs(small_page.section("graph"))
    right = {g.get("data-node"): next(g.iter("circle")) for g in nodes(picture, "right").values()}
    for node in nodes(picture, "left").values():
        own = next(node.iter("circle"))
        for line in node.iter("path"):
            start, end = line.get("d", "")[1:].split("C")[0].split(), line.get("d", "").split()[-2:]
            assert float(start[1]) == pytest.approx(float(own.get("cy", "")), abs=0.1)
            assert float(end[1]) == pytest.approx(float(right[line.get("data-end")].get("cy", "")), abs=0.1)


def test_what_is_inactive_is_grey_and_has_no_lines(small_page: Page) -> None:
    left = nodes(graphs(small_page.section("graph"))[0], "left")
    for name, said in (("joint/j/stiffness", "no edge"), ("geom/foot/friction", "not tested by these motions")):
        assert "grey" in left[name].get("class", "").split()
        assert not list(left[name].iter("path"))
        assert "".join(next(left[name].iter("title")).itertext()) == f"{name}: {said}"
    assert not [name for name, node in left.items() if "grey" in node.get("class", "") and list(node.iter("path"))]


def test_nothing_is_drawn_outside_of_the_picture_or_over_another(large_page: Page) -> None:
    for picture in graphs(large_page.section("graph")):
        width, height = float(picture.get("width", "")), float(picture.get("height", ""))
        for side in ("left", "right"):
            labels = [next(g.iter("text")) for g in nodes(picture, side).values()]
            heights = sorted(float(label.get("y", "")) for label in labels)
            assert heights[0] > 8
            assert heights[-1] < height
            assert min(np.diff(heights), default=99.0) >= 12
            for label in labels:
                across, letters = float(label.get("x", "")), 6.4 * len(label.text or "")
                assert (across - letters > 0) if side == "left" else (across + letters < width)


def test_a_large_graph_is_folded_into_families(large_page: Page) -> None:
    manifest = large()
    section = large_page.section("graph")
    folds = [d for d in section.iter("details") if d.get("open") is None]
    first, *others = graphs(section)
    assert set(nodes(first, "left")) == {
        f"{kind} (30)" for kind in {family(p.name) for p in manifest.parameters}
    } | {"30 without an edge", "60 not tested by these motions"}  # fmt: skip
    assert set(nodes(first, "right")) == {"*/position (30)", "*/velocity (30)"}
    shown = [name for fold in folds for graph in graphs(fold) for name in nodes(graph, "left")]
    for parameter_facts in manifest.parameters:
        assert shown.count(parameter_facts.name) == 1
    assert all(len(nodes(graph, "left")) <= READABLE for graph in others)
    links = {a.get("href") for a in first.iter("a")}
    assert {f"#{d.get('id')}" for fold in folds for d in fold.iter("div") if d.get("id")} <= links


def test_a_line_between_groups_is_the_strongest_edge(large_page: Page) -> None:
    manifest = large()
    effect, probability = np.array(manifest.graph.effect), np.array(manifest.graph.probability)
    rows = [family(p.name) == "joint/*/damping" for p in manifest.parameters]
    columns = [c.name.endswith("/velocity") for c in manifest.channels]
    part = np.ix_(rows, columns)
    node = nodes(graphs(large_page.section("graph"))[0], "left")["joint/*/damping (30)"]
    titles = ["".join(next(line.iter("title")).itertext()) for line in node.iter("path")]
    edges = int((probability[part] > 0.5).sum())
    strongest = f"{effect[part].max():.1f}"
    assert f"joint/*/damping → */velocity: {edges} edges of 900, strongest {strongest} σ" in titles


def test_objects_are_seen_together(large_page: Page) -> None:
    fold = next(d for d in large_page.section("graph").iter("details") if (d[0].text or "") == "By object")
    (picture,) = graphs(fold)
    assert set(nodes(picture, "right")) == {f"joint{j} (2)" for j in range(30)}
    assert {f"joint{j} (5)" for j in range(30)} < set(nodes(picture, "left"))


def test_the_matrix_has_a_cell_for_each_edge(large_page: Page) -> None:
    (matrix,) = large_page.classed("matrix")
    cells = sum(path.get("d", "").count("M") for path in matrix.iter("path"))
    assert cells == int((np.array(large().graph.probability) > 0.5).sum())


def test_parameters_of_one_object_lie_opposite_of_its_channels(tmp_path: Path) -> None:
    """Names of parameters are in no order; those of a joint are together, in the order of the joints' channels."""
    names = [f"{kind}/{part}/{what}" for kind, what in (("joint", "damping"), ("actuator", "kp")) for part in "dbca"]
    channels = tuple(
        ChannelFacts(f"{part}/{kind}", "rad", 0.1, "s") for kind in ("position", "velocity") for part in "abcd"
    )
    effect = np.array([[9.0 if owner(n) == owner(c.name) else 0.01 for c in channels] for n in names])
    probability = (effect > 0.1).astype(float)
    made = manifest_of(tuple(parameter(n) for n in names), channels, effect, probability)
    (picture,) = graphs(reported(tmp_path, made).section("graph"))
    assert [owner(name) for name in nodes(picture, "left")] == list("aabbccdd")
    assert [owner(name) for name in nodes(picture, "right")] == list("aabbccdd")


def test_many_grey_ones_are_counted(small: Manifest, tmp_path: Path) -> None:
    inactive = tuple(InactiveFacts(f"geom/g{i}/friction", "1", 1.0, 0.0, tested=i < 5) for i in range(40))
    (picture,) = graphs(reported(tmp_path, msgspec.structs.replace(small, inactive=inactive)).section("graph"))
    grey = [name for name, node in nodes(picture, "left").items() if "grey" in node.get("class", "")]
    assert grey == ["5 without an edge", "35 not tested by these motions"]


@pytest.mark.parametrize(
    ("name", "family_of", "owner_of"),
    [
        ("joint/elbow/damping", "joint/*/damping", "elbow"),
        ("joint/left/wheel/damping", "joint/*/damping", "left/wheel"),
        ("elbow/position", "elbow/position", "elbow"),
        ("friction", "friction", "friction"),
    ],
)
def test_families_and_owners_of_names(name: str, family_of: str, owner_of: str) -> None:
    assert (family(name), owner(name)) == (family_of, owner_of)
