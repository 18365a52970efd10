"""From a model folder to the bundle that gapd loads: data, training, export. Each stage can be resumed."""

from __future__ import annotations

import hashlib
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from click import echo
from numpy.typing import NDArray

import gapd
from gapd.errors import ConfigError, InputError
from gapd.gap_model.manifest import Provenance
from gapd.model.robot import Robot, open_robot
from gaptrain.data import make_data, open_training
from gaptrain.dataset import data_folder, shard_paths
from gaptrain.diagnostics import lines, measure
from gaptrain.draws import draw_windows
from gaptrain.expected import expected
from gaptrain.export import Exported, Facts, export, largest_network, to_onnx
from gaptrain.model import GapModel, Shape, pairs
from gaptrain.pruning import Pruned, prune
from gaptrain.settings import Training, check_training
from gaptrain.shards import read_shards
from gaptrain.training import Data, Learning, Trainer, prior_spread

# Raise when a checkpoint of an older version must be neither continued nor exported.
CHECKPOINT_VERSION = 3
CHECKPOINT = "checkpoint.pt"
EXAMPLES = 8


class State(msgspec.Struct, frozen=True):
    """What `Trainer.state` gives."""

    model: dict[str, torch.Tensor]
    optimiser: dict[str, Any]
    generator: torch.Tensor
    loss: list[float]
    step: int


class Checkpoint(msgspec.Struct, frozen=True):
    """What checkpoint.pt holds, as plain values and tensors."""

    version: int
    fingerprint: str  # of the training that it can be continued with
    data: str  # hash of the data that it was trained on
    training: Training
    shape: dict[str, Any]
    windows: int
    dropped: int
    feature_min: torch.Tensor  # (F,)
    feature_max: torch.Tensor  # (F,)
    trainer: State


def fit(
    model_dir: Path,
    windows: int | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    threads: int | None = None,
    ray: str | None = None,
) -> Exported:
    """Make data, train, export. Arguments left out come from train.toml. ConfigError before any of it."""
    robot, training = open_training(model_dir, windows=windows, epochs=epochs, seed=seed)
    torch.set_num_threads(threads or 2)
    echo(f"{robot.config.robot}: seed {training.seed}, {training.windows} windows, {training.epochs} epochs")
    _require_fitting_size(robot, training, np.zeros((len(robot.parameters), len(robot.layout.channels))))
    pruned = prune(robot, training, threads or 2)
    _require_fitting_size(pruned.robot, training, pruned.graph.probability)
    folder = make_data(pruned.robot, training, threads, ray)
    # The checkpoint of this training, not the newest: there may be nothing left to train.
    return export_checkpoint(pruned, train(pruned, training, folder))


def _require_fitting_size(robot: Robot, training: Training, edge_probability: NDArray[np.float64]) -> None:
    """Raise ConfigError if the bundle would refuse the network after all the work."""
    model = GapModel(Shape.of(robot, training.hidden), edge_probability)
    size = sum(t.nbytes for t in model.state_dict().values())
    most = largest_network(len(robot.parameters))
    if size > most:
        raise ConfigError(
            f"train.toml: hidden = {training.hidden}: the network would have {size} bytes, at most {most}; lower hidden"
        )


def train(pruned: Pruned, training: Training, folder: Path) -> Path:
    """Train, continuing from the checkpoint if it belongs to the same training. Return the checkpoint.

    A checkpoint that cannot be continued is said, and written over by that of the first epoch.
    """
    robot, path = pruned.robot, folder / CHECKPOINT
    modelled = pairs(pruned.graph.probability, robot.model.nv)
    data = Data(read_shards(shard_paths(folder, training, "train")), *modelled, training.windows)
    if data.dropped:
        echo(f"{data.dropped} training windows dropped: their simulation diverged")
    if len(data) < training.batch:
        raise ConfigError(f"windows = {len(data)} usable: fewer than one batch of {training.batch}; raise windows")
    trainer = Trainer(robot, pruned.graph, data, training, spread_of(robot, training))
    defined_by = msgspec.json.encode((CHECKPOINT_VERSION, training, asdict(trainer.learning)))
    about = {
        "version": CHECKPOINT_VERSION, "data": folder.name,
        "fingerprint": hashlib.sha256(defined_by).hexdigest(), "training": msgspec.to_builtins(training),
        "shape": asdict(trainer.model.shape), "windows": len(data), "dropped": data.dropped,
        "feature_min": data.window.amin((0, 1)), "feature_max": data.window.amax((0, 1)),
    }  # fmt: skip
    if path.exists():
        _continue(trainer, path, str(about["fingerprint"]))
    while trainer.epoch < training.epochs:
        began = time.monotonic()
        loss = trainer.run_epoch()
        if not np.isfinite(loss):
            raise InputError(f"epoch {trainer.epoch}: loss is {loss}; raise batch or change seed in train.toml")
        echo(f"epoch {trainer.epoch}/{training.epochs}: loss {loss:.4f}, {time.monotonic() - began:.1f} s")
        partial = path.with_name(path.name + ".part")
        torch.save(about | {"trainer": trainer.state()}, partial)
        partial.replace(path)
    return path


def _continue(trainer: Trainer, path: Path, fingerprint: str) -> None:
    """Continue from the checkpoint, or say why training starts over."""
    try:
        saved = _load(path)
    except InputError as error:
        echo(f"{str(error).rpartition(';')[0]}; starting over")
        return
    if saved.fingerprint != fingerprint or saved.data != path.parent.name:
        echo(f"{path}: of another model, train.toml, option or gaptrain; starting over")
        return
    with _foreign(path):
        trainer.restore(msgspec.structs.asdict(saved.trainer))
    echo(f"continuing after epoch {trainer.epoch}")


def export_last(model_dir: Path) -> Exported:
    """Export the bundle from the checkpoint trained last."""
    robot = open_robot(model_dir / "robot.toml")
    root = Path(robot.config.folder) / ".data"
    found = sorted(root.glob(f"*/{CHECKPOINT}"), key=lambda p: p.stat().st_mtime)
    if not found:
        raise InputError(f"{root}: no {CHECKPOINT}; run `gaptrain fit` first")
    saved = _load(found[-1])
    _require_own(found[-1], saved)
    return export_checkpoint(prune(robot, saved.training), found[-1])


def export_checkpoint(pruned: Pruned, path: Path) -> Exported:
    """Export the bundle from a checkpoint, measured on the held-out windows beside it."""
    saved, robot = _load(path), pruned.robot
    training, model = saved.training, _restored(pruned, path, saved)
    every = np.divmod(np.arange(model.shape.channels * model.shape.columns), model.shape.columns)
    held_out = Data(read_shards(shard_paths(path.parent, training, "held_out")), *every, training.held_out)
    provenance = Provenance(
        seed=training.seed, windows=saved.windows, dropped_windows=saved.dropped,
        epochs=len(saved.trainer.loss), data=path.parent.name, gapd_version=gapd.__version__,
    )  # fmt: skip
    delta = torch.from_numpy(np.random.default_rng(0).normal(size=held_out.z[:EXAMPLES].shape)).float() * 0.1
    inputs = (held_out.window[:EXAMPLES], held_out.context[:EXAMPLES], held_out.z[:EXAMPLES], delta)
    network = to_onnx(robot, model, provenance, inputs)
    spread = spread_of(robot, training)
    quality = measure(network, held_out, robot.parameters.names, spread, Learning.delta_share)
    for line in lines(quality):
        echo(line)
    facts = Facts(
        provenance, saved.feature_min.numpy(), saved.feature_max.numpy(), quality,
        expected(robot, training, torch.get_num_threads()), saved.trainer.loss,
    )  # fmt: skip
    done = export(pruned, model, network, facts, inputs)
    echo(f"{done.folder}: {done.onnx_bytes} bytes, parity with torch {done.parity:.1e}, sha256 {done.sha256}")
    return done


def spread_of(robot: Robot, training: Training) -> torch.Tensor:
    """Prior spread of all columns; that of the initial state as windows state it."""
    windows, _ = draw_windows(robot, training, np.random.default_rng(training.seed), count=64)
    return prior_spread(robot, np.median(windows.x0_sd, axis=0))


def _restored(pruned: Pruned, path: Path, saved: Checkpoint) -> GapModel:
    """The network of a checkpoint; InputError if it is not for this robot."""
    robot = pruned.robot
    _require_own(path, saved)
    if path.parent != data_folder(robot, saved.training):
        raise _other(path)
    shape = Shape.of(robot, saved.training.hidden)
    if saved.shape != asdict(shape):
        raise InputError(f"{path}: made by another gaptrain; run `gaptrain fit`")
    model = GapModel(shape, pruned.graph.probability)
    with _foreign(path):
        model.load_state_dict(saved.trainer.model)
    return model


def _require_own(path: Path, saved: Checkpoint) -> None:
    """InputError where the file was copied from another model."""
    if saved.data != path.parent.name:
        raise _other(path)


def _other(path: Path) -> InputError:
    return InputError(f"{path}: made for other parameters, channels or model; run `gaptrain fit`")


def _load(path: Path) -> Checkpoint:
    """Read a checkpoint; InputError if it is damaged or of another version."""
    try:
        _require_sums(path)
        state = torch.load(path, weights_only=True)
    except Exception as error:  # noqa: BLE001 - torch raises many classes for a damaged file
        reason = " ".join(str(error).split())[:120].replace(";", ",") or type(error).__name__
        raise InputError(f"{path}: cannot be read ({reason}); delete it and run `gaptrain fit`") from None
    version = state.get("version") if isinstance(state, dict) else None
    if version != CHECKPOINT_VERSION:
        raise InputError(
            f"{path}: checkpoint version {version}, this gaptrain has {CHECKPOINT_VERSION}; run `gaptrain fit`"
        )
    try:
        saved = msgspec.convert(state, Checkpoint)
        check_training(saved.training, str(path))
    except (msgspec.ValidationError, ConfigError) as error:
        raise InputError(f"{path}: made by another program ({error}); delete it and run `gaptrain fit`") from None
    return saved


def _require_sums(path: Path) -> None:
    """Raise BadZipFile where a checksum is wrong: torch does not look at them."""
    with zipfile.ZipFile(path) as file:
        altered = file.testzip()
    if altered is not None:
        raise zipfile.BadZipFile(f"wrong checksum of {altered}")


@contextmanager
def _foreign(path: Path) -> Iterator[None]:
    """Turn what torch raises for weights and states of another network into one line."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{path}: does not fit this network ({reason}); delete it and run `gaptrain fit`") from None
