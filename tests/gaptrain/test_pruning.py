"""Parameters without an edge: held from the graph to the robot, and said everywhere."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from gapd.cli import cli
from gapd.errors import ConfigError
from gapd.gap_model.bundle import open_active, open_bundle
from gapd.model.parameters import ParameterSet
from gapd.model.robot import Robot, assemble, open_robot
from gaptrain.cli import main
from gaptrain.dataset import data_folder
from gaptrain.graph import measure_graph
from gaptrain.pruning import prune
from gaptrain.settings import Training, load_training

IDLE = "tendon/idle/stiffness"
TRAIN = """
windows = 32
held_out = 16
graph_windows = 32
shard_windows = 16
hidden = 4
epochs = 1
batch = 16
seed = 5
[excitation]
home = [0.0]
amplitude = [0.8]
"""


@pytest.fixture
def folder(twins: Robot, tmp_path: Path) -> Path:
    """The robot with a spring of nothing, with bundle = "bundle" and train.toml."""
    source = Path(twins.config.folder)
    for name in ("model.xml", "parameters.toml"):
        (tmp_path / name).write_text((source / name).read_text())
    (tmp_path / "robot.toml").write_text(f'bundle = "bundle"\n{(source / "robot.toml").read_text()}')
    (tmp_path / "train.toml").write_text(TRAIN)
    return tmp_path


@pytest.fixture
def training(folder: Path) -> Training:
    return load_training(folder / "train.toml")


def test_what_has_no_edge_is_held_at_nominal_and_the_others_are_free(folder: Path, training: Training) -> None:
    robot = open_robot(folder / "robot.toml")
    pruned = prune(robot, training, threads=1)
    assert pruned.robot.parameters.names == tuple(n for n in robot.parameters.names if n != IDLE)
    (held,) = pruned.inactive
    assert (held.name, held.unit, held.nominal, held.tested) == (IDLE, "N/m", 1.0, False)
    assert held.effect < 1e-6
    whole = measure_graph(robot, training, threads=1)
    np.testing.assert_array_equal(pruned.graph.effect, np.delete(whole.effect, robot.parameters.names.index(IDLE), 0))
    assert pruned.graph.edges.any(axis=1).all()


def test_a_measured_graph_is_kept_and_measured_again_where_its_file_is_damaged(
    folder: Path, training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    robot = open_robot(folder / "robot.toml")
    first = prune(robot, training, threads=1)
    path = data_folder(robot, training) / "graph-32.npz"
    raw, written = path.read_bytes(), path.stat().st_mtime_ns
    assert prune(robot, training, threads=1).inactive == first.inactive
    assert path.stat().st_mtime_ns == written
    assert "damaged" not in capsys.readouterr().out
    for wrong in (raw[: len(raw) // 2], b"", raw.replace(b"tested", b"tasted"), raw[:200] + b"\xff" + raw[201:]):
        path.write_bytes(wrong)
        assert prune(robot, training, threads=1).inactive == first.inactive
        assert f"{path}: damaged or of another model; measured again" in capsys.readouterr().out
        assert path.read_bytes() == raw


def test_motions_that_show_nothing_are_refused_with_a_remedy(folder: Path, training: Training) -> None:
    robot = open_robot(folder / "robot.toml")
    known = [
        msgspec.structs.replace(p, min=(1 - 1e-6) * p.nominal, max=(1 + 1e-6) * p.nominal)
        for p in robot.parameters.every
    ]
    robot = assemble(robot.config, robot.model, ParameterSet(known))
    with pytest.raises(ConfigError, match=r"no parameter moves a channel .*; widen the bounds, or raise the amplitude"):
        prune(robot, training, threads=1)


def test_robot_host_and_command_line_hold_what_the_bundle_says(folder: Path) -> None:
    done = CliRunner().invoke(main, ["fit", str(folder), "--threads", "1"], catch_exceptions=False)
    assert f"not tested by these motions: 1: {IDLE}" in done.output
    path = folder / "robot.toml"
    robot = open_active(path)
    assert IDLE in {p.name for p in robot.parameters.frozen}
    assert len(robot.parameters) == len(open_robot(path).parameters) - 1
    manifest = open_bundle(robot).manifest
    assert [p.name for p in manifest.inactive] == [IDLE]
    assert manifest.expected.windows == 32
    assert len(manifest.expected.sd) == len(robot.parameters)
    assert (np.array(manifest.expected.sd) <= np.array(manifest.expected.prior_sd)).all()
    assert any(set(group) == {"actuator/servo/kv", "joint/j/damping"} for group in manifest.expected.groups)
    assert [c.name for c in manifest.channel_quality] == list(robot.layout.channels)
    assert len(manifest.loss) == 1
    said = CliRunner().invoke(cli, ["check", "--config", str(path)], catch_exceptions=False).output
    assert "holds 1 parameters without an edge, 1 of them not tested in training" in said
