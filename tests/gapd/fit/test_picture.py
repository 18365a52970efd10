"""The picture: the format of its ending, and one line before the fit where it cannot be made."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gapd.errors import ConfigError
from gapd.fit.cycle import Report, prepare, run
from gapd.fit.picture import draw, require_drawable
from gapd.model.robot import Robot

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def report(tiny: Robot, recorded: Any) -> Report:
    truth = tiny.parameters.nominal * np.array([1.5, 2.0, 0.6, 1.8])
    return run(tiny, prepare(tiny, [recorded(tiny, truth, 20.0, seed=2).frames]))


@pytest.mark.parametrize(("ending", "starts"), [("png", PNG), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_picture_has_the_format_of_its_ending(
    report: Report, tiny: Robot, tmp_path: Path, ending: str, starts: bytes
) -> None:
    path = tmp_path / f"gap.{ending}"
    require_drawable(path)
    draw(report, tiny, path)
    raw = path.read_bytes()
    assert raw.startswith(starts)
    assert len(raw) > 5000
    require_drawable(path)  # it may be replaced


def test_picture_without_matplotlib_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'gapd\[host\]', or leave --picture out"):
        require_drawable(tmp_path / "gap.png")


def test_picture_with_a_broken_matplotlib_is_refused_before_the_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise AttributeError("_ARRAY_API not found")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", broken)
    with pytest.raises(ConfigError, match=r"matplotlib is there but fails \(_ARRAY_API not found\)"):
        require_drawable(tmp_path / "gap.png")


def test_names_are_no_formulas_to_the_picture(report: Report, tiny: Robot, tmp_path: Path) -> None:
    odd = replace(tiny, layout=replace(tiny.layout, channels=("a$b$", "x$^$", "$")))
    draw(report, odd, tmp_path / "gap.svg")


@pytest.mark.parametrize("name", [f"{300 * 'x'}.png", f"{300 * 'x'}/gap.png"])
def test_a_picture_that_no_file_system_takes(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be written there \(File name too long\)"):
        require_drawable(tmp_path / name)


def test_trying_leaves_nothing_and_takes_nothing(tmp_path: Path) -> None:
    require_drawable(tmp_path / "gap.png")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "gap.png").write_bytes(b"old")
    require_drawable(tmp_path / "gap.png")
    assert (tmp_path / "gap.png").read_bytes() == b"old"


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_full_disk_is_one_line(report: Report, tiny: Robot, tmp_path: Path, ending: str) -> None:
    (tmp_path / f"gap.{ending}").symlink_to("/dev/full")
    with pytest.raises(ConfigError, match=r"cannot be written \(No space left on device\); name another file"):
        draw(report, tiny, tmp_path / f"gap.{ending}")
