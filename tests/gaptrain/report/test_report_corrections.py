"""What can be corrected: every parameter in one place, with numbers in units that people use."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
from bundles import Page, large, manifest_of, parameter
from conftest import reported

from gapd.gap_model.manifest import ChannelFacts, Expected, InactiveFacts, Manifest, ParameterFacts


def blocks(page: Page) -> dict[str, list[list[str]]]:
    """Rows of the tables (texts of their cells) by the heading above."""
    found: dict[str, list[list[str]]] = {}
    title = ""
    for element in page.section("corrections").iter():
        if element.tag == "h3":
            title = "".join(element.itertext())
            found[title] = []
        elif element.tag == "tr" and title:
            found[title].append([" ".join("".join(cell.itertext()).split()) for cell in element])
    return {title: [row for row in rows if row[0] != "parameter"] for title, rows in found.items()}


def test_each_parameter_is_in_the_block_of_its_fate(small: Manifest, small_page: Page) -> None:
    names = [p.name for p in small.parameters]
    found = {title: [row[0] for row in rows] for title, rows in blocks(small_page).items()}
    assert found == {
        "Can be corrected": names[:2],
        "Only a combination is known: 1 group": [names[3], names[2]],
        "No edge": ["joint/j/stiffness"],
        "Not tested": ["geom/foot/friction"],
    }
    assert f"{names[2]} + {names[3]}" in small_page.words("corrections")


def test_tiles_count_what_the_blocks_list(large_page: Page) -> None:
    (tiles,) = large_page.classed("tiles")
    counts = [int(b.text or "") for b in tiles.iter("b")]
    listed = [len(rows) for rows in blocks(large_page).values()]
    assert counts == listed
    assert sum(counts) == 300


def test_a_parameter_that_the_motions_tell_too_little_of_or_nothing(small: Manifest, tmp_path: Path) -> None:
    names = [p.name for p in small.parameters]
    expected = Expected(8, (1.0, 1.0, 1.0, 1.0), (0.49, 0.51, 0.2, 0.2), ((names[2],),))
    page = reported(tmp_path, msgspec.structs.replace(small, expected=expected, inactive=()))
    found = {title: [row[0] for row in rows] for title, rows in blocks(page).items()}
    assert found == {"Can be corrected": [names[3], names[0]], "These motions tell too little": [names[2], names[1]]}
    assert "After 8 windows" in page.words("corrections")


def test_nothing_can_be_corrected(small: Manifest, tmp_path: Path) -> None:
    expected = Expected(32, (1.0,) * 4, (0.9,) * 4, ())
    page = reported(tmp_path, msgspec.structs.replace(small, expected=expected))
    assert "None: these motions do not tell any parameter by itself." in page.words("corrections")


def test_spreads_are_in_percent_or_in_the_unit(tmp_path: Path) -> None:
    """A linear scale has a unit of a quarter of its range; asinh of a tenth of its larger bound; log is relative."""
    log, linear, asinh = (parameter(f"joint/{s}/{s}", "N·m", s) for s in ("log", "linear", "asinh"))
    linear = msgspec.structs.replace(linear, unit="rad", nominal=0.0, min=-0.4, max=0.4)
    asinh = msgspec.structs.replace(asinh, unit="m", nominal=2.0, min=-10.0, max=10.0)
    made = manifest_of(
        (log, linear, asinh), (ChannelFacts("j/position", "rad", 0.1, "s"),), np.ones((3, 1)), np.ones((3, 1))
    )
    expected = Expected(32, (1.0, 1.0, 1.0), (0.02, 0.03, 0.1), ())
    rows = {
        row[0]: row
        for row in blocks(reported(tmp_path, msgspec.structs.replace(made, expected=expected)))["Can be corrected"]
    }
    assert rows[log.name][5:8] == ["± 172 %", "± 2.02 %", "2 %"]
    assert rows[linear.name][5:8] == ["± 0.200 rad", "± 0.00600 rad", "3 %"]
    slope = np.sqrt(1.0 + 2.0**2)  # cosh(asinh(2 / 1))
    assert rows[asinh.name][5:8] == [f"± {slope:.2f} m", f"± {0.1 * slope:.3f} m", "10 %"]


def test_tables_show_what_a_parameter_moves_most(small: Manifest, small_page: Page) -> None:
    row = blocks(small_page)["Can be corrected"][0]
    best = int(np.argmax(small.graph.effect[0]))
    assert row[1:5] == [small.channels[best].name, f"{max(small.graph.effect[0]):.1f}", "3", "4 N·m/rad"]


def test_what_has_no_edge_says_how_little_it_does(small_page: Page) -> None:
    assert blocks(small_page)["No edge"] == [["joint/j/stiffness", "0 N·m/rad", "0.0400"]]
    assert blocks(small_page)["Not tested"] == [["geom/foot/friction", "0.7"]]


def test_frozen_ones_are_named_and_inactive_ones_are_not_among_them(small: Manifest, tmp_path: Path) -> None:
    facts = {
        n: ParameterFacts(n, "kg", 1.0, 0.5, 2.0, "log", small.parameters[0].targets)
        for n in ("body/a/mass", "body/b/mass")
    }
    inactive = (InactiveFacts("body/a/mass", "kg", 1.0, 0.01, tested=True),)
    page = reported(tmp_path, msgspec.structs.replace(small, frozen=tuple(facts.values()), inactive=inactive))
    words = page.words("corrections")
    assert "1 parameter frozen in parameters.toml.body/b/mass" in words
    assert [row[0] for row in blocks(page)["No edge"]] == ["body/a/mass"]


def test_long_tables_are_folded(large_page: Page) -> None:
    for fold in large_page.section("corrections").iter("details"):
        count = int(re.findall(r"\d+", "".join(fold[0].itertext()))[0])
        if count > 40:
            assert fold.get("open") is None
    assert len(large().inactive) > 40
