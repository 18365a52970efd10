"""From a model folder to a bundle: a real small fit, its export, and the command line around them."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from gapd.bundle import open_bundle
from gapd.errors import InputError
from gapd.robot import open_robot
from gaptrain import dataset, export, fit
from gaptrain.cli import main

SERVO = Path(__file__).parents[2] / "models" / "servo_pendulum"
TRAIN = """
windows = 96
held_out = 32
hidden = 16
epochs = 2
batch = 16
seed = 3
[excitation]
kind = "position"
home = [0.0]
amplitude = [1.2]
"""


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, said: list[str]) -> Iterator[Path]:
    """A servo model fitted in seconds, badly."""
    folder = tmp_path_factory.mktemp("models") / "servo_pendulum"
    shutil.copytree(SERVO, folder, ignore=shutil.ignore_patterns(".data", "bundle"))
    (folder / "train.toml").write_text(TRAIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "SHARD_WINDOWS", 32)
        fit.fit(folder, say=said.append, quiet=True)
        yield folder


def test_a_fit_leaves_a_bundle_that_opens_and_is_pinned(fitted: Path, said: list[str]) -> None:
    robot = open_robot(fitted / "robot.toml")
    bundle = open_bundle(robot)
    assert robot.config.bundle_sha256 == bundle.sha256
    assert bundle.manifest.provenance.windows == 96
    assert bundle.manifest.provenance.epochs == 2
    assert bundle.manifest.held_out_error["damping"] > 0
    assert len(bundle.manifest.ranges) == 2 * 1 + 2 * 2 + 3
    text = "\n".join(said)
    assert "seed 3" in text
    assert "epoch 2/2: loss" in text
    assert "parity with torch" in text


def test_pinning_keeps_comments_and_order(tmp_path: Path) -> None:
    path = tmp_path / "robot.toml"
    path.write_text('# first\nrobot = "r"  # type\n\n[timing]\nknots = 30 # many\n')
    export.pin(path, "a" * 64)
    pinned = f'# first\nrobot = "r"  # type\nbundle = "bundle"\nbundle_sha256 = "{"a" * 64}"\n'
    assert path.read_text() == pinned + "\n[timing]\nknots = 30 # many\n"
    path.write_text(path.read_text().replace('bundle = "bundle"', "bundle = 'mine'"))
    export.pin(path, "b" * 64)
    assert "bundle = 'mine'" in path.read_text()
    assert path.read_text().count("bundle_sha256") == 1
    assert "b" * 64 in path.read_text()
    assert path.read_text().endswith("[timing]\nknots = 30 # many\n")


def test_a_second_fit_continues_and_the_export_is_reproducible(fitted: Path) -> None:
    lines: list[str] = []
    before = {p.name: p.read_bytes() for p in (fitted / "bundle").iterdir()}
    fit.fit(fitted, say=lines.append, quiet=True)
    assert "continuing after epoch 2" in lines
    assert not any(line.startswith("epoch") for line in lines)
    assert {p.name: p.read_bytes() for p in (fitted / "bundle").iterdir()} == before


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
    network = (fitted / "bundle" / "gap.onnx").read_bytes()
    monkeypatch.setattr(export, "to_onnx", lambda *_: network)  # exporting again would take seconds
    monkeypatch.setattr(export, "MAX_ONNX_BYTES", 1000)
    with pytest.raises(InputError, match="at most 1000; lower `hidden`"):
        fit.export_last(fitted, say=lambda _: None)


def test_export_without_a_checkpoint_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    folder = tmp_path / "servo_pendulum"
    shutil.copytree(SERVO, folder, ignore=shutil.ignore_patterns(".data", "bundle"))
    result = CliRunner().invoke(main, ["export", str(folder)])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "run `gaptrain fit` first" in result.stderr


def test_a_checkpoint_of_another_version_is_refused(fitted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def older(_: object) -> None:
        raise TypeError

    monkeypatch.setattr(fit.Shape, "from_plain", older)
    with pytest.raises(InputError, match="made by another gaptrain; run `gaptrain fit`"):
        fit.export_last(fitted, say=lambda _: None)


def test_a_bad_train_toml_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    folder = tmp_path / "servo_pendulum"
    shutil.copytree(SERVO, folder, ignore=shutil.ignore_patterns(".data", "bundle"))
    (folder / "train.toml").write_text(TRAIN.replace("hidden", "hiden"))
    result = CliRunner().invoke(main, ["fit", str(folder)])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "did you mean 'hidden'" in result.stderr
