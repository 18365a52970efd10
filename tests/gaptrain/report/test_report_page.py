"""The page: whole in one file, well-formed, with every number of the manifest where somebody looks for it."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from pathlib import Path

import msgspec
import pytest
from bundles import Page, large, of_robot, parameter, write_bundle
from conftest import reported

from gapd.gap_model.manifest import ChannelFacts, InactiveFacts, Manifest
from gapd.model.robot import Robot
from gaptrain.report.page import SECTIONS, write_report

EVIL = """</script><script>alert(1)</script>"'&<b onmouseover=alert(2)>"""


@pytest.mark.parametrize("which", ["small_page", "large_page"])
def test_the_page_needs_nothing_beside_it(which: str, request: pytest.FixtureRequest) -> None:
    page: Page = request.getfixturevalue(which)
    for element in page.root.iter():
        assert element.tag not in {"link", "img", "iframe", "object", "embed", "base", "form", "image", "use"}
        assert not {"src", "srcset", "action", "style"} & set(element.keys())
        assert not [key for key in element.keys() if key.startswith("on")]  # noqa: SIM118 - an Element has no __iter__ of keys
        assert element.get("href", "#").startswith("#")
    assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttpRequest", page.html)


def test_nothing_but_its_own_style_and_script_may_run(small_page: Page) -> None:
    policy = next(e.get("content", "") for e in small_page.root.iter("meta") if "http-equiv" in e.keys())  # noqa: SIM118
    assert policy.startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        (element,) = small_page.root.iter(tag)
        digest = base64.b64encode(hashlib.sha256((element.text or "").encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_links_lead_to_something_and_ids_are_single(large_page: Page) -> None:
    ids = [e.get("id") for e in large_page.root.iter() if e.get("id")]
    assert len(ids) == len(set(ids))
    assert {key for key, _ in SECTIONS} <= set(ids)
    assert {e.get("href", "")[1:] for e in large_page.root.iter("a")} <= set(ids)


def test_it_says_where_the_bundle_comes_from_and_that_it_was_verified(small: Manifest, tmp_path: Path) -> None:
    words = reported(tmp_path, small).words("provenance")
    digest = hashlib.sha256((tmp_path / "bundle" / "manifest.json").read_bytes()).hexdigest()
    origin = small.provenance
    for said in (digest, origin.data, origin.gapd_version, small.engine_version, f"{origin.windows} of 30 × 0.01 s"):
        assert said in words
    assert f"seed{origin.seed}" in words
    assert f"epochs{origin.epochs}" in words
    assert "Verified when this page was made: gap.onnx, golden.npz, model.xml" in words


def test_channels_say_what_is_missed(small: Manifest, small_page: Page) -> None:
    rows = ["".join(row.itertext()) for row in small_page.section("channels").iter("tr")][1:]
    assert len(rows) == len(small.channels)
    for row, channel, quality in zip(rows, small.channels, small.channel_quality, strict=True):
        assert row.startswith(channel.name)
        assert channel.unit in row
        assert f"{quality.effect:.1f}" in row
        assert "20 %" in row


@pytest.mark.parametrize(
    ("coverage", "words"),
    [(0.6, "errs more than it says"), (0.88, "about as stated"), (0.99, "errs less than it says")],
)
def test_coverage_is_judged(small: Manifest, tmp_path: Path, coverage: float, words: str) -> None:
    page = reported(tmp_path, msgspec.structs.replace(small, spread_coverage=coverage))
    assert f"{100 * coverage:.1f} %" in page.words("network")
    assert words in page.words("network")


@pytest.mark.parametrize(
    "loss", [(), (0.5,), (0.5, 0.5), (3.0, 0.4, 0.01), (0.3, -0.2, -1.4), (0.0, 0.0), (2.0, 1e-300)]
)
def test_the_training_curve_has_a_point_for_each_epoch(
    small: Manifest, tmp_path: Path, loss: tuple[float, ...]
) -> None:
    page = reported(tmp_path, msgspec.structs.replace(small, loss=loss))
    curves = page.classed("curve")
    assert len(curves) == bool(loss)
    for curve in curves:
        (line,) = curve.iter("polyline")
        points = [tuple(map(float, point.split(","))) for point in line.get("points", "").split()]
        assert len(points) == len(loss)
        width, height = float(curve.get("width", "")), float(curve.get("height", ""))
        assert all(0 <= x <= width and 0 <= y <= height for x, y in points)
        falling = [b[1] >= a[1] for a, b in itertools.pairwise(points)]
        assert all(falling), "a smaller loss is lower on the page"


def test_names_of_any_characters_do_not_break_the_page(tiny: Robot, tmp_path: Path) -> None:
    made = of_robot(tiny)
    evil = msgspec.structs.replace(
        made,
        robot=EVIL,
        parameters=(parameter(f"joint/{EVIL}/{EVIL}", EVIL[:30]), *made.parameters[1:]),
        channels=(ChannelFacts(EVIL, EVIL, 0.1, EVIL), *made.channels[1:]),
        channel_quality=(msgspec.structs.replace(made.channel_quality[0], name=EVIL), *made.channel_quality[1:]),
        inactive=(InactiveFacts(f"body/{EVIL}/mass\u202e", EVIL, 1.0, 0.01, tested=True),),
        held_out_error={EVIL: 0.2},
        context=(EVIL,),
        engine_version=EVIL,
        provenance=msgspec.structs.replace(made.provenance, data=EVIL, gapd_version=EVIL),
    )
    page = reported(tmp_path, evil)
    assert len(list(page.root.iter("script"))) == 1
    assert not list(page.root.iter("b"))[5:], "tiles alone are bold"
    assert not any("onmouseover" in e.keys() for e in page.root.iter())  # noqa: SIM118
    assert page.html.count("alert(1)") == page.html.count("&gt;alert(1)&lt;")
    assert "\u202e" not in page.html
    assert "\\u202e" in page.html
    assert any(EVIL in "".join(title.itertext()) for title in page.root.iter("title"))


def test_the_line_for_the_terminal_and_a_report_that_is_replaced(small: Manifest, tmp_path: Path) -> None:
    bundle, out = write_bundle(tmp_path / "bundle", small), tmp_path / "page.html"
    out.write_text("an older one")
    said = write_report(bundle, out)
    assert said == f"{out}: tiny, 4 parameters with an edge, verified; {out.stat().st_size // 1000 + 1} kB"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bundle", "page.html"]


def test_size_at_300_parameters(large_page: Page) -> None:
    assert len(large().inactive) + len(large().parameters) == 300
    assert len(large_page.html) < 3_000_000
