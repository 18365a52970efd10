"""From a model folder to a bundle: a real small fit, its export, and the command line around them."""

import re
import shutil
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner

from gapd.errors import InputError
from gapd.gap_model.bundle import open_bundle
from gapd.model.robot import open_robot
from gaptrain import dataset, export, fit, shards
from gaptrain.cli import main
from gaptrain.pruning import prune
from gaptrain.settings import load_training

SERVO = Path(__file__).parents[2] / "models" / "servo_pendulum"
TRAIN = """
windows = 96
held_out = 32
graph_windows = 64
shard_windows = 32
hidden = 16
epochs = 2
batch = 16
seed = 3
[excitation]
kind = "position"
home = [0.0]
amplitude = [1.2]
"""


def run(*arguments: str | Path) -> str:
    """Run the command to its end and return what it prints."""
    result = CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What the fit of `fitted` printed."""
    return []


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, said: list[str]) -> Path:
    """A servo model fitted in seconds, badly."""
    folder = tmp_path_factory.mktemp("models") / "servo_pendulum"
    shutil.copytree(SERVO, folder, ignore=shutil.ignore_patterns(".data", "bundle"))
    (folder / "train.toml").write_text(TRAIN)
    said.append(run("fit", folder, "--threads", "1"))  # two threads on a shared machine wait for each other
    return folder


@pytest.fixture
def copied(fitted: Path, tmp_path: Path) -> Path:
    """A copy of the fitted model, with data and checkpoint, to change."""
    return Path(shutil.copytree(fitted, tmp_path / "servo_pendulum"))


def checkpoint(folder: Path) -> Path:
    (path,) = (folder / ".data").glob("*/checkpoint.pt")
    return path


def test_a_fit_leaves_a_bundle_that_opens_and_is_pinned(fitted: Path, said: list[str]) -> None:
    robot = open_robot(fitted / "robot.toml")
    bundle = open_bundle(robot)
    assert robot.config.bundle_sha256 == bundle.sha256
    assert bundle.manifest.provenance.windows == 96
    assert bundle.manifest.provenance.epochs == 2
    assert bundle.manifest.held_out_error["damping"] > 0
    assert len(bundle.manifest.ranges) == 2 * 1 + 2 * 2 + 3
    (text,) = said
    assert "seed 3" in text
    assert "epoch 2/2: loss" in text
    assert "parity with torch" in text


def test_the_stated_error_is_that_of_the_exported_file(fitted: Path, said: list[str]) -> None:
    robot = open_robot(fitted / "robot.toml")
    bundle = open_bundle(robot)
    folder = fitted / ".data" / bundle.manifest.provenance.data
    (exact,) = shards.read_shards(dataset.shard_paths(folder, load_training(fitted / "train.toml"), "held_out"))
    found = bundle.run(exact.features, exact.context, exact.z, 0 * exact.z)["jacobian"]
    damping = robot.parameters.names.index("joint/j/damping")
    wrong, true = (found - exact.jacobian)[..., damping], exact.jacobian[..., damping]
    stated = bundle.manifest.held_out_error["damping"]
    assert stated == pytest.approx(np.linalg.norm(wrong) / np.linalg.norm(true), rel=1e-2)
    assert re.search(rf"^damping +{stated:.3f} ", said[0], re.MULTILINE)


def test_a_fit_with_nothing_left_to_train_exports_its_own_network_again(copied: Path) -> None:
    before = {p.name: p.read_bytes() for p in (copied / "bundle").iterdir()}
    own, robot = checkpoint(copied), open_robot(copied / "robot.toml")
    other = msgspec.structs.replace(load_training(copied / "train.toml"), seed=4)
    pruned = prune(robot, other, threads=1)
    newest = fit.train(pruned, other, dataset.generate(pruned.robot, other, threads=1))
    assert newest != own
    assert newest.stat().st_mtime_ns > own.stat().st_mtime_ns
    lines = run("fit", copied, "--threads", "1").splitlines()
    assert "continuing after epoch 2" in lines
    assert not any(line.startswith("epoch") for line in lines)
    assert {p.name: p.read_bytes() for p in (copied / "bundle").iterdir()} == before


def test_the_network_is_self_contained_and_says_what_it_is(fitted: Path) -> None:
    proto = onnx.load_from_string((fitted / "bundle" / "gap.onnx").read_bytes())
    assert all(i.data_location == onnx.TensorProto.DEFAULT for i in proto.graph.initializer)
    assert {o.domain for o in proto.opset_import} == {""}
    facts = {p.key: p.value for p in proto.metadata_props}
    assert facts["robot"] == '"servo_pendulum"'
    assert "0.0015" in facts["noise"]
    raw = (fitted / "bundle" / "gap.onnx").read_bytes()
    assert str(Path(fit.__file__).parent).encode() not in raw


def test_the_batch_is_the_only_free_axis(fitted: Path) -> None:
    robot = open_robot(fitted / "robot.toml")
    bundle = open_bundle(robot)
    for node in bundle.session.get_inputs():
        assert [isinstance(d, str) for d in node.shape] == [True, *[False] * (len(node.shape) - 1)]
    rng = np.random.default_rng(0)
    for batch in (1, 3, 32):
        shapes = [(batch, *n.shape[1:]) for n in bundle.session.get_inputs()]
        outputs = bundle.run(*(rng.normal(size=s).astype(np.float32) for s in shapes))
        assert outputs["jacobian"].shape == (batch, robot.layout.knots, 1, 6)
        assert all(np.isfinite(v).all() for v in outputs.values())


def test_a_network_that_is_too_large_is_refused(fitted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = export.Network(fitted / "bundle", (fitted / "bundle" / "gap.onnx").read_bytes())
    monkeypatch.setattr(fit, "to_onnx", lambda *_: network)  # exporting again would take seconds
    monkeypatch.setattr(export, "MAX_ONNX_BYTES", 1000)
    with pytest.raises(InputError, match="at most 1000; lower `hidden`"):
        fit.export_last(fitted)


@pytest.mark.parametrize("factor", [0.0, np.nan])
def test_an_export_that_differs_from_torch_is_measured_as_it_is_and_refused(
    fitted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], factor: float
) -> None:
    class Broken(export.Network):
        def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(factor * v for v in super().__call__(*inputs))

    before = {p.name: p.read_bytes() for p in (fitted / "bundle").iterdir()}
    broken = Broken(fitted / "bundle", before["gap.onnx"])
    monkeypatch.setattr(fit, "to_onnx", lambda *_: broken)
    with pytest.raises(InputError, match=r"differs from torch by (1|nan), allowed 0\.0001"):
        fit.export_last(fitted)
    assert re.search(r"^damping +(1\.000 +1\.000|nan +nan)", capsys.readouterr().out, re.MULTILINE)
    assert {p.name: p.read_bytes() for p in (fitted / "bundle").iterdir()} == before


def test_export_without_a_checkpoint_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    folder = tmp_path / "servo_pendulum"
    shutil.copytree(SERVO, folder, ignore=shutil.ignore_patterns(".data", "bundle"))
    result = CliRunner().invoke(main, ["export", str(folder)])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "run `gaptrain fit` first" in result.stderr


def test_a_checkpoint_of_another_version_is_refused(copied: Path) -> None:
    saved = torch.load(checkpoint(copied), weights_only=True)
    del saved["shape"]["limited"]
    torch.save(saved, checkpoint(copied))
    with pytest.raises(InputError, match="made by another gaptrain; run `gaptrain fit`"):
        fit.export_last(copied)


def test_a_checkpoint_of_another_robot_is_refused(copied: Path) -> None:
    path = copied / "robot.toml"
    path.write_text(path.read_text().replace("noise = 0.0015", "noise = 0.003"))
    with pytest.raises(InputError, match="made for other parameters, channels or model; run `gaptrain fit`"):
        fit.export_last(copied)


def test_a_bad_train_toml_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    folder = tmp_path / "servo_pendulum"
    shutil.copytree(SERVO, folder, ignore=shutil.ignore_patterns(".data", "bundle"))
    (folder / "train.toml").write_text(TRAIN.replace("hidden", "hiden"))
    result = CliRunner().invoke(main, ["fit", str(folder)])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "did you mean 'hidden'" in result.stderr
