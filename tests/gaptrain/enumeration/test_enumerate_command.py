"""`gaptrain enumerate` as a user calls it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gapd.model.parameters import ParameterSet
from gaptrain.cli import main

ARM7 = Path(__file__).parents[3] / "models" / "arm7" / "model.xml"


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["enumerate", *map(str, arguments)])
    return result.exit_code, result.output


def test_it_writes_the_file_and_says_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = run(ARM7, "--tie", "joint/*/friction_timeconst", "--tie", "joint/joint[67]/damping")
    assert code == 0, output
    space = ParameterSet.from_toml(Path("parameters.toml"))
    assert output.startswith(f"parameters.toml: {len(space)} parameters, 17 left out with the reason in the file\n")
    assert "joint damping                                                         6\n" in output
    assert {"joint/*/friction_timeconst", "joint/joint[67]/damping"} <= set(space.names)
    code, output = run(ARM7)
    assert (code, output) == (
        2,
        "gaptrain: parameters.toml: exists; name another file with --out, or replace it with --force\n",
    )
    assert run(ARM7, "--force")[0] == 0
    assert list(Path.cwd().iterdir()) == [Path.cwd() / "parameters.toml"]  # no part of it, no log of MuJoCo


def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    code, output = run(tmp_path / "arm.xml", "--out", tmp_path / "p.toml")
    assert (code, output) == (2, f"gaptrain: model {tmp_path / 'arm.xml'}: no such file; correct the path\n")
    code, output = run(ARM7, "--out", tmp_path / "p.toml", "--tie", "joint/*/dampin")
    assert code == 2
    assert output.startswith("gaptrain: --tie 'joint/*/dampin': no parameter has such a name; did you mean ")
    assert output.count("\n") == 1
