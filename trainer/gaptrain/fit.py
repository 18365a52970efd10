"""From a model folder to the bundle that gapd loads: data, training, export. Each stage can be resumed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

import gapd
from gapd.errors import ConfigError, InputError
from gapd.manifest import Provenance
from gapd.robot import Robot, open_robot
from gaptrain.dataset import data_folder, draw_windows, generate, read_shards, shard_paths
from gaptrain.diagnostics import lines, measure
from gaptrain.export import Exported, Facts, export
from gaptrain.model import GapModel, Shape
from gaptrain.simulate import Training, load_training
from gaptrain.training import Data, Learning, Trainer, prior_spread

# Raise when a checkpoint of an older version must not be continued.
CHECKPOINT_VERSION = 2
CHECKPOINT = "checkpoint.pt"
EXAMPLES = 8

Say = Callable[[str], None]


def fit(
    model_dir: Path,
    windows: int | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    threads: int = 2,
    say: Say = print,
    quiet: bool = False,
) -> Exported:
    """Make data, train, export. Arguments left out come from train.toml."""
    robot = open_robot(model_dir / "robot.toml")
    given = {"windows": windows, "epochs": epochs, "seed": seed}
    training = load_training(model_dir / "train.toml")
    training = msgspec.structs.replace(training, **{k: v for k, v in given.items() if v is not None})
    for name in ("windows", "epochs", "held_out"):
        if getattr(training, name) < 1:
            raise ConfigError(f"{name} = {getattr(training, name)}: must be at least 1")
    torch.set_num_threads(threads)
    say(f"{robot.config.robot}: seed {training.seed}, {training.windows} windows, {training.epochs} epochs")
    folder = generate(robot, training, threads, quiet)
    train(robot, training, folder, say)
    return export_last(model_dir, say)


def train(robot: Robot, training: Training, folder: Path, say: Say) -> None:
    """Train, continuing from the checkpoint if it belongs to the same training; one checkpoint per epoch."""
    learning, path = Learning(), folder / CHECKPOINT
    data = Data(read_shards(shard_paths(folder, "train", training.windows)), training.windows)
    if len(data) < training.batch:
        raise ConfigError(f"windows = {len(data)} usable: fewer than one batch of {training.batch}; raise windows")
    low, high = data.window.amin((0, 1)), data.window.amax((0, 1))
    trainer = Trainer(robot, data, training, spread_of(robot, training), learning)
    fingerprint = _fingerprint(training, learning)
    saved = _load(path) if path.exists() else {}
    if saved.get("fingerprint") == fingerprint:
        trainer.restore(saved["trainer"])
        say(f"continuing after epoch {trainer.epoch}")
    while trainer.epoch < training.epochs:
        began = time.monotonic()
        loss = trainer.run_epoch()
        say(f"epoch {trainer.epoch}/{training.epochs}: loss {loss:.4f}, {time.monotonic() - began:.1f} s")
        state = {
            "fingerprint": fingerprint, "shape": trainer.model.shape.to_plain(), "trainer": trainer.state(),
            "training": msgspec.to_builtins(training), "windows": len(data), "dropped": data.dropped,
            "feature_min": low, "feature_max": high,
        }  # fmt: skip
        partial = path.with_name(path.name + ".part")
        torch.save(state, partial)
        partial.replace(path)


def export_last(model_dir: Path, say: Say = print) -> Exported:
    """Export the bundle from the last checkpoint, measured on the held-out windows."""
    robot = open_robot(model_dir / "robot.toml")
    saved = _newest(robot)
    training = msgspec.convert(saved["training"], Training)
    try:
        shape = Shape.from_plain(saved["shape"])
    except TypeError:
        raise InputError(f"checkpoint of {model_dir}: made by another gaptrain; run `gaptrain fit`") from None
    if shape != Shape.of(robot, shape.hidden):
        raise InputError(f"checkpoint of {model_dir}: made for other parameters or channels; run `gaptrain fit`")
    model = GapModel(shape)
    model.load_state_dict(saved["trainer"]["model"])
    folder = data_folder(robot, training)
    held_out = Data(read_shards(shard_paths(folder, "held_out", training.held_out)), training.held_out)
    spread = spread_of(robot, training)
    quality = measure(model, held_out, robot.parameters.names, spread, Learning.delta_share)
    for line in lines(quality):
        say(line)
    provenance = Provenance(
        seed=training.seed, windows=saved["windows"], dropped_windows=saved["dropped"],
        epochs=saved["trainer"]["epoch"], data=folder.name, gapd_version=gapd.__version__,
    )  # fmt: skip
    facts = Facts(
        provenance, saved["feature_min"].numpy(), saved["feature_max"].numpy(),
        quality.by_family(quality.error), quality.spread_coverage,
    )  # fmt: skip
    examples = (held_out.window[:EXAMPLES], held_out.context[:EXAMPLES], held_out.z[:EXAMPLES])
    done = export(robot, model, facts, examples)
    say(f"{done.folder}: {done.onnx_bytes} bytes, parity with torch {done.parity:.1e}, sha256 {done.sha256}")
    return done


def spread_of(robot: Robot, training: Training) -> torch.Tensor:
    """Prior spread of all columns; that of the initial state as windows state it."""
    windows, _ = draw_windows(robot, training, np.random.default_rng(training.seed), count=64)
    return prior_spread(robot, np.median(windows.x0_sd, axis=0))


def _fingerprint(training: Training, learning: Learning) -> str:
    defined_by = (CHECKPOINT_VERSION, training, asdict(learning))
    return hashlib.sha256(msgspec.json.encode(defined_by)).hexdigest()


def _newest(robot: Robot) -> dict[str, Any]:
    root = Path(robot.config.folder) / ".data"
    found = sorted(root.glob(f"*/{CHECKPOINT}"), key=lambda p: p.stat().st_mtime)
    if not found:
        raise InputError(f"{root}: no {CHECKPOINT}; run `gaptrain fit` first")
    return _load(found[-1])


def _load(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    except Exception as error:  # noqa: BLE001 - torch raises many classes for a damaged file
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{path}: cannot be read ({reason}); delete it and run `gaptrain fit`") from None
    return state
