"""`gaptrain report` as a user calls it: a page, or one clear line and an exit code."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundles import Page, write_bundle
from click.testing import CliRunner

from gapd.gap_model.manifest import Manifest
from gaptrain.cli import main


@pytest.fixture
def bundle(small: Manifest, tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "model" / "bundle", small)


def report(folder: Path, *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    with contextlib.chdir(folder):
        done = CliRunner().invoke(main, ["report", *map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


def refused(folder: Path, *arguments: str | Path) -> tuple[int, str]:
    """Exit code and the line on stderr, when nothing was written."""
    before = sorted(folder.rglob("*"))
    code, out, line = report(folder, *arguments)
    assert out == ""
    assert line.count("\n") == 1
    assert line.startswith("gaptrain: ")
    assert "; " in line, "a refusal names the remedy after a semicolon"
    assert sorted(folder.rglob("*")) == before
    return code, line


def test_a_page_and_a_line(bundle: Path, tmp_path: Path) -> None:
    code, out, line = report(tmp_path, "model/bundle")
    assert (code, line) == (0, "")
    assert out.startswith("report.html: tiny, 4 parameters with an edge, verified; ")
    assert Page.of((tmp_path / "report.html").read_text("utf-8")).section("graph") is not None
    assert report(tmp_path, bundle, "--out", "other.html")[0] == 0
    assert (tmp_path / "other.html").read_bytes() == (tmp_path / "report.html").read_bytes()


def test_as_a_process_of_its_own_and_without_torch(bundle: Path, tmp_path: Path) -> None:
    code = "import sys; from gaptrain.cli import main; main(standalone_mode=False); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, "report", bundle], cwd=tmp_path, timeout=60, check=True)
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["gap.onnx", "model.xml", "golden.npz"])
def test_a_changed_file(bundle: Path, tmp_path: Path, name: str) -> None:
    path = bundle / name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    code, line = refused(tmp_path, bundle)
    assert (code, f"{name} has sha256 " in line, "copy the bundle again" in line) == (1, True, True)


@pytest.mark.parametrize("name", ["gap.onnx", "model.xml", "golden.npz", "manifest.json"])
def test_a_missing_file(bundle: Path, tmp_path: Path, name: str) -> None:
    (bundle / name).unlink()
    code, line = refused(tmp_path, bundle)
    assert (code, f"{name} cannot be read (No such file" in line) == (1, True)


def test_what_is_no_bundle(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for argument, said in (
        ("nowhere", "no such folder"),
        ("file", "is not a folder"),
        ("model", "is the folder of a model; name its bundle, model/bundle"),
    ):
        code, line = refused(tmp_path, argument)
        assert (code, said in line) == (2, True)


def test_an_output_that_cannot_be_one(bundle: Path, tmp_path: Path) -> None:
    for argument in (tmp_path, tmp_path / "no" / "r.html", bundle / "r.html"):
        code, line = refused(tmp_path, bundle, "--out", argument)
        assert (code, "give --out a file" in line) == (2, True)


def _set(*path: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        place: Any = manifest
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_set("schema", value=2), "schema = 2, this gapd reads 3"),
        (_set("schema", value="3"), "does not decode"),
        (_set("new", value=1), "does not decode: Object contains unknown field `new`"),
        (_set("files", "more.bin", value="0"), "files = gap.onnx, golden.npz, model.xml, more.bin"),
        (_set("graph", "probability", 0, 0, value=1.2), "graph.probability = 1.2 is out of range"),
        (_set("graph", "effect", 0, 0, value=-1.0), "graph.effect = -1.0 is out of range"),
        (_set("graph", "effect", 1, value=[1.0]), "graph.effect has 4 x 1 values, for 4 parameters and 3 channels"),
        (_set("graph", "probability", value=[]), "graph.probability has 0 x 3 values"),
        (_set("expected", "sd", value=[0.1]), "expected.sd has 1 values, for 4 parameters"),
        (_set("expected", "prior_sd", 0, value=0.0), "expected.prior_sd = 0.0 is not positive"),
        (_set("expected", "groups", value=[["elsewhere"]]), "expected.groups has 'elsewhere'"),
        (_set("expected", "groups", value=[[]]), "expected.groups has an empty group"),
        (_set("channel_quality", value=[]), "channel_quality is of 0 channels"),
        (_set("spread_coverage", value=2.0), "spread_coverage = 2.0"),
        (_set("parameters", 1, "scale", value="cubic"), "Invalid enum value 'cubic'"),
        (_set("parameters", 1, "min", value=-1.0), "min -1.0 on scale log must be positive"),
        (_set("inactive", 0, "name", value="joint/j/damping"), "parameter 'joint/j/damping' is listed twice"),
    ],
)
def test_a_manifest_that_no_export_writes(
    bundle: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    code, line = refused(tmp_path, bundle)
    assert code == 1
    assert said in line


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff\xfe{}", b"3"])
def test_a_manifest_that_is_none(bundle: Path, tmp_path: Path, raw: bytes) -> None:
    (bundle / "manifest.json").write_bytes(raw)
    code, line = refused(tmp_path, bundle)
    assert (code, "manifest.json does not decode" in line) == (1, True)
