"""Reports of a small robot and of one with 300 parameters."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from gapd.gap_model.manifest import Expected, InactiveFacts, Manifest
from gapd.model.robot import Robot
from gaptrain.report.page import write_report

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package

from bundles import Page, large, of_robot, write_bundle


def reported(folder: Path, manifest: Manifest) -> Page:
    """The page about a bundle with this manifest, as it is on the disk."""
    out = folder / "report.html"
    write_report(write_bundle(folder / "bundle", manifest), out)
    return Page.of(out.read_text("utf-8"))


@pytest.fixture(scope="session")
def small(tiny: Robot) -> Manifest:
    """Kp and damping known, friction and armature in combination; two parameters that are inactive."""
    made = of_robot(tiny)
    names = [p.name for p in made.parameters]
    inactive = (
        InactiveFacts("joint/j/stiffness", "N·m/rad", 0.0, 0.04, tested=True),
        InactiveFacts("geom/foot/friction", "1", 0.7, 0.0, tested=False),
    )
    expected = Expected(32, (1.0, 1.0, 1.0, 1.0), (0.02, 0.3, 0.8, 0.6), (tuple(names[2:]),))
    return msgspec.structs.replace(made, inactive=inactive, expected=expected)


@pytest.fixture(scope="session")
def small_page(small: Manifest, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return reported(tmp_path_factory.mktemp("small"), small)


@pytest.fixture(scope="session")
def large_page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return reported(tmp_path_factory.mktemp("large"), large())
