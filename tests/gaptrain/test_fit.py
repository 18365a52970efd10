"""Checkpoints that are damaged, foreign or of another version, and training that does not converge."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from gapd.errors import InputError
from gapd.model.robot import open_robot
from gaptrain import dataset, fit
from gaptrain.cli import main
from gaptrain.pruning import prune
from gaptrain.settings import load_training
from gaptrain.training import Trainer

TRAIN = """
windows = 32
held_out = 16
graph_windows = 32
shard_windows = 16
hidden = 4
epochs = 2
batch = 16
[excitation]
home = [0.0]
amplitude = [1.2]
"""


def train(folder: Path) -> Path:
    """Data and training as `gaptrain fit` does it; the export would take seconds."""
    robot, training = open_robot(folder / "robot.toml"), load_training(folder / "train.toml")
    pruned = prune(robot, training, threads=1)
    return fit.train(pruned, training, dataset.generate(pruned.robot, training, threads=1))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, make_robot: Callable[[Path], object]) -> Path:
    """The tiny robot, trained in a second, badly."""
    folder = tmp_path_factory.mktemp("trained") / "tiny"
    folder.mkdir()
    make_robot(folder)
    (folder / "train.toml").write_text(TRAIN)
    train(folder)
    return folder


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "tiny"))


def checkpoint(folder: Path) -> Path:
    (path,) = (folder / ".data").glob("*/checkpoint.pt")
    return path


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    saved = torch.load(path, weights_only=True)
    change(saved)
    torch.save(saved, path)


def as_bytes(raw: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(raw)


def flip_a_weight(path: Path) -> None:
    weights = torch.load(path, weights_only=True)["trainer"]["model"]["enter.weight"].numpy().tobytes()
    raw = path.read_bytes()
    path.write_bytes(raw.replace(weights, bytes([weights[0] ^ 1]) + weights[1:]))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda p: p.write_bytes(p.read_bytes()[:5000]), "cannot be read"),
    "altered": (flip_a_weight, "wrong checksum of checkpoint"),
    "empty": (as_bytes(b""), "cannot be read"),
    "text": (as_bytes(b"no checkpoint"), "cannot be read"),
    "list": (lambda p: torch.save([1, 2], p), "checkpoint version None, this gaptrain has"),
    "weights alone": (lambda p: torch.save({"model": torch.zeros(1)}, p), "checkpoint version None, this gaptrain has"),
    "older": (lambda p: changed(p, lambda s: s.update(version=1)), "checkpoint version 1, this gaptrain has"),
    "without shape": (lambda p: changed(p, lambda s: s.pop("shape")), "missing required field `shape`"),
    "without loss": (lambda p: changed(p, lambda s: s["trainer"].pop("loss")), "missing required field `loss`"),
    "text for range": (lambda p: changed(p, lambda s: s.update(feature_min="0")), "Expected `Tensor`, got `str`"),
    "hidden": (lambda p: changed(p, lambda s: s["training"].update(hidden=-1)), "hidden = -1: must be within"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_fit_says_that_a_checkpoint_is_unusable_and_starts_over(
    copied: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = checkpoint(copied)
    whole = torch.load(path, weights_only=True)
    damage, reason = DAMAGES[kind]
    damage(path)
    train(copied)
    lines = [line for line in capsys.readouterr().out.splitlines() if "starting over" in line]
    assert len(lines) == 1
    assert lines[0].startswith(str(path))
    assert reason in lines[0]
    again = torch.load(path, weights_only=True)
    for name, weights in whole["trainer"]["model"].items():
        torch.testing.assert_close(again["trainer"]["model"][name], weights, rtol=0, atol=0)


@pytest.mark.parametrize("kind", DAMAGES)
def test_an_export_of_an_unusable_checkpoint_is_one_line_and_exit_code_1(copied: Path, kind: str) -> None:
    damage, reason = DAMAGES[kind]
    damage(checkpoint(copied))
    result = CliRunner().invoke(main, ["export", str(copied)])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert reason in result.stderr
    assert "run `gaptrain fit`" in result.stderr


def test_a_checkpoint_of_another_training_is_said_and_not_continued(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copied / "train.toml"
    path.write_text(TRAIN.replace("epochs = 2", "epochs = 3"))
    train(copied)
    said = capsys.readouterr().out
    assert "checkpoint.pt: of another model, train.toml, option or gaptrain; starting over" in said
    assert "epoch 1/3: loss" in said


@pytest.mark.parametrize("part", ["model", "optimiser", "generator"])
def test_a_checkpoint_with_the_state_of_another_network_is_refused(copied: Path, part: str) -> None:
    other: Any = torch.zeros(1) if part == "generator" else {"enter.weight": torch.zeros(1)}
    changed(checkpoint(copied), lambda s: s["trainer"].update({part: other}))
    with pytest.raises(InputError, match=r"does not fit this network .*; delete it and run `gaptrain fit`"):
        train(copied)
    if part == "model":
        with pytest.raises(InputError, match="does not fit this network"):
            fit.export_last(copied)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("parameters.toml", "max = 0.5", "max = 0.6"), ("model.xml", 'mass="0.5"', 'mass="0.6"')],
)
def test_an_export_after_bounds_or_model_changed_is_refused(copied: Path, name: str, old: str, new: str) -> None:
    text = (copied / name).read_text()
    assert old in text
    (copied / name).write_text(text.replace(old, new))
    with pytest.raises(InputError, match="made for other parameters, channels or model; run `gaptrain fit`"):
        fit.export_last(copied)


@pytest.mark.parametrize("kind", ["empty", "gone"])
def test_an_export_without_whole_held_out_windows_is_refused(copied: Path, kind: str) -> None:
    path = checkpoint(copied).with_name("held_out-0000.npz")
    path.unlink()
    if kind == "empty":
        path.touch()
    with pytest.raises(InputError, match=r"held_out-0000\.npz: (damaged|no such file).* run `gaptrain fit` to make it"):
        fit.export_last(copied)


def of_a_heavier_robot(copied: Path) -> Path:
    """Data folder of the robot with another mass; all files in it, of the same sizes, are those of the first robot."""
    model, first = copied / "model.xml", checkpoint(copied).parent
    model.write_text(model.read_text().replace('mass="0.5"', 'mass="0.6"'))
    training = load_training(copied / "train.toml")
    folder = dataset.data_folder(open_robot(copied / "robot.toml"), training)
    assert folder != first
    return first.rename(folder)


def test_data_and_checkpoint_copied_from_another_model_are_made_again(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = checkpoint(copied).parent.name
    folder = of_a_heavier_robot(copied)
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix != ".lock"}
    train(copied)
    said = capsys.readouterr().out
    for shard in ("held_out-0000", "train-0000", "train-0001"):
        wrong = f"it holds the windows of {first}/{shard}, not of {folder.name}/{shard}"
        assert f"{folder / shard}.npz: damaged ({wrong}); made again\n" in said
    assert f"{folder}/checkpoint.pt: of another model, train.toml, option or gaptrain; starting over\n" in said
    assert all((folder / name).read_bytes() != raw for name, raw in before.items())
    capsys.readouterr()
    train(copied)
    assert "made again" not in capsys.readouterr().out


def test_an_export_from_another_models_files_is_one_line_and_exit_code_1(copied: Path) -> None:
    first = checkpoint(copied).parent.name
    folder = of_a_heavier_robot(copied)
    result = CliRunner().invoke(main, ["export", str(copied)])
    wanted = f"gaptrain: {folder}/checkpoint.pt: made for other parameters, channels or model; run `gaptrain fit`\n"
    assert (result.exit_code, result.output) == (1, wanted)
    changed(checkpoint(copied), lambda s: s.update(data=folder.name))
    result = CliRunner().invoke(main, ["export", str(copied)])
    wrong = f"it holds the windows of {first}/held_out-0000, not of {folder.name}/held_out-0000"
    wanted = f"gaptrain: {folder}/held_out-0000.npz: {wrong}; run `gaptrain fit` to make it again\n"
    assert result.exit_code == 1
    assert result.output.endswith(wanted)  # after the graph, which is measured again


def test_a_loss_that_is_no_number_ends_training_and_keeps_the_checkpoint(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint(copied)
    before = path.read_bytes()
    (copied / "train.toml").write_text(TRAIN.replace("epochs = 2", "epochs = 3"))
    monkeypatch.setattr(Trainer, "run_epoch", lambda _: float("nan"))
    with pytest.raises(InputError, match="loss is nan; raise batch or change seed"):
        train(copied)
    assert path.read_bytes() == before
