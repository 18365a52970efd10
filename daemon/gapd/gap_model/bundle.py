"""The bundle: what the trainer exports and the daemon loads. Nothing in it is used before it is verified."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from gapd.errors import InputError
from gapd.gap_model.bundle_match import REBUILD, Mismatch, manifest_mismatch, model_mismatch
from gapd.gap_model.manifest import (
    GOLDEN,
    INPUTS,
    MANIFEST,
    MODEL,
    NETWORK,
    OUTPUTS,
    SCHEMA,
    Manifest,
    interface,
)
from gapd.model.robot import Robot, open_robot

Array = NDArray[np.float64]
Single = NDArray[np.float32]

MAX_BYTES = 64 * 2**20
# Another CPU rounds differently; a wrong network is off by far more than this share of the largest output.
GOLDEN_TOLERANCE = 1e-3
# How a reference to a file outside the ONNX is encoded: an entry with the key "location".
_EXTERNAL = b"\x0a\x08location"
# Inputs this share of the trained span outside it still count as inside.
RANGE_MARGIN = 0.1


class _Schema(msgspec.Struct):
    schema: int


@dataclass(frozen=True)
class Bundle:
    """A verified bundle, ready to run."""

    folder: Path
    sha256: str
    manifest: Manifest
    session: Any

    def run(self, window: Single, context: Single, theta: Single, delta: Single) -> dict[str, Single]:
        """Outputs by name, of window (B, K+1, F), context (B, K+1, max(X, 1)), theta and delta (B, P)."""
        inputs = dict(zip(INPUTS, (window, context, theta, delta), strict=True))
        return dict(zip(OUTPUTS, self.session.run(list(OUTPUTS), inputs), strict=True))

    @property
    def edge_probability(self) -> NDArray[np.float64]:
        """Probability (P, C) that a parameter acts on a channel; below 0.5 its effect is exactly zero."""
        return np.array(self.manifest.graph.probability)

    def outside_range(self, features: Array, context: Array) -> tuple[str, ...]:
        """Names of features (n, K+1, F) and context (n, K+1, X) outside what the network was trained on."""
        values = np.concatenate([features, context], axis=-1).reshape(-1, features.shape[-1] + context.shape[-1])
        low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
        names = []
        for column, known in enumerate(self.manifest.ranges):
            margin = RANGE_MARGIN * (known.max - known.min) + 1e-9
            if low[column] < known.min - margin or high[column] > known.max + margin:
                names.append(known.name)
        return tuple(names)


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """Manifest, and its sha256, of a bundle whose files are all as it lists them; for which robot is not looked at.

    InputError says what is damaged, missing or of another schema.
    """
    raw = _read(folder, MANIFEST)
    manifest = _decode(folder, raw)
    _files(folder, manifest)
    return manifest, hashlib.sha256(raw).hexdigest()


def open_active(path: Path) -> Robot:
    """The robot of a robot.toml with what its bundle says is inactive held; all is free where there is no bundle.

    ConfigError or InputError says what does not fit.
    """
    robot = open_robot(path)
    if not robot.config.bundle:
        return robot
    folder = bundle_folder(robot)
    manifest = _decode(folder, _pinned(folder, robot))
    return robot.holding({p.name for p in manifest.inactive})


def open_bundle(robot: Robot) -> Bundle:
    """Verify the bundle that robot.toml names and load it; InputError says what does not fit.

    The robot is that of `open_active`.
    """
    folder = bundle_folder(robot)
    raw = _pinned(folder, robot)
    digest, manifest = hashlib.sha256(raw).hexdigest(), _decode(folder, raw)
    _refuse(folder, manifest_mismatch(manifest, robot))
    files = _files(folder, manifest)
    _refuse(folder, model_mismatch(files[MODEL], robot))
    network = session(folder, files[NETWORK])
    _check_interface(folder, network, robot)
    bundle = Bundle(folder, digest, manifest, network)
    _self_test(bundle, files[GOLDEN])
    return bundle


def bundle_folder(robot: Robot) -> Path:
    """Folder of the robot's bundle; InputError if none is configured or it is not there."""
    if not robot.config.bundle:
        raise InputError(f"robot {robot.config.robot}: bundle is not set; name the bundle folder in robot.toml")
    folder = robot.config.path(robot.config.bundle)
    if not folder.is_dir():
        raise InputError(
            f"bundle {folder}: no such folder; copy it there, run `gaptrain fit`, or correct `bundle` in robot.toml"
        )
    return folder


def _pinned(folder: Path, robot: Robot) -> bytes:
    """Bytes of the manifest, which is the one that robot.toml pins, if it pins one."""
    raw = _read(folder, MANIFEST)
    digest, pinned = hashlib.sha256(raw).hexdigest(), robot.config.bundle_sha256
    if pinned and digest != pinned:
        found = f"{MANIFEST} has sha256 {digest}, but robot.toml pins {pinned}"
        raise _refusal(folder, found, "restore the pinned bundle, or pin this one if you trust it")
    return raw


def _refusal(folder: Path, found: str, remedy: str) -> InputError:
    return InputError(f"bundle {folder}: {found}; {remedy}")


def _refuse(folder: Path, mismatch: Mismatch | None) -> None:
    if mismatch is not None:
        raise _refusal(folder, mismatch.found, mismatch.remedy)


def _read(folder: Path, name: str) -> bytes:
    path = folder / name
    try:
        if path.stat().st_size > MAX_BYTES:
            raise _refusal(folder, f"{name} has {path.stat().st_size} bytes, more than {MAX_BYTES}", REBUILD)
        return path.read_bytes()
    except OSError as error:
        raise _refusal(folder, f"{name} cannot be read ({error.strerror})", REBUILD) from None


def _decode(folder: Path, raw: bytes) -> Manifest:
    try:
        schema = msgspec.json.decode(raw, type=_Schema).schema
        if schema != SCHEMA:
            raise _refusal(folder, f"schema = {schema}, this gapd reads {SCHEMA}", "export it with this gapd's version")
        manifest = msgspec.json.decode(raw, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _refusal(folder, f"{MANIFEST} does not decode: {error}", REBUILD) from None
    if set(manifest.files) != {NETWORK, MODEL, GOLDEN}:
        listed = ", ".join(sorted(manifest.files))
        raise _refusal(folder, f"files = {listed}, expected {NETWORK}, {MODEL}, {GOLDEN}", REBUILD)
    return manifest


def _files(folder: Path, manifest: Manifest) -> dict[str, bytes]:
    return {name: _verified(folder, name, manifest.files[name]) for name in (NETWORK, GOLDEN, MODEL)}


def _verified(folder: Path, name: str, expected: str) -> bytes:
    """Bytes of a file whose hash is the manifest's: what is checked is what is loaded."""
    raw = _read(folder, name)
    digest = hashlib.sha256(raw).hexdigest()
    if digest != expected:
        raise _refusal(folder, f"{name} has sha256 {digest}, the manifest says {expected}", "copy the bundle again")
    return raw


def session(folder: Path, raw: bytes) -> Any:
    """ONNX session of verified bytes, as quiet as a robot needs it: one thread, no spinning. InputError if unusable."""
    if _EXTERNAL in raw:
        raise _refusal(folder, f"{NETWORK} refers to a file outside itself", "export it without external data")
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(raw, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - onnxruntime has a class per status code, all straight below Exception
        reason = " ".join(str(error).split())[:200]
        raise _refusal(folder, f"{NETWORK} is no usable network ({reason})", REBUILD) from None


def _check_interface(folder: Path, session: Any, robot: Robot) -> None:
    for nodes, wanted in zip((session.get_inputs(), session.get_outputs()), interface(robot), strict=True):
        found = {n.name: n for n in nodes}
        if set(found) != set(wanted):
            names = f"{', '.join(sorted(found))}, expected {', '.join(sorted(wanted))}"
            raise _refusal(folder, f"{NETWORK} has {names}", REBUILD)
        for name, shape in wanted.items():
            node, fixed = found[name], name == "edge_probability"
            dynamic_batch = fixed or isinstance(node.shape[0], str)
            if node.type != "tensor(float)" or not dynamic_batch or node.shape[0 if fixed else 1 :] != shape:
                found_shape = f"{NETWORK} {name} is {node.type} {node.shape}"
                raise _refusal(folder, f"{found_shape}, expected float {shape} after the batch", REBUILD)


def _self_test(bundle: Bundle, raw: bytes) -> None:
    """Run the golden inputs: this CPU must give the trainer's outputs."""
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as file:
            golden = {name: file[name] for name in (*INPUTS, *OUTPUTS)}
        outputs = bundle.run(*(golden[name] for name in INPUTS))
    except Exception as error:  # noqa: BLE001 - damaged or misshapen: numpy and onnxruntime raise many
        raise _refusal(
            bundle.folder, f"{GOLDEN} does not run ({' '.join(str(error).split())[:200]})", REBUILD
        ) from None
    for name, value in outputs.items():
        wanted = golden[name]
        if not np.isfinite(value).all() or value.shape != wanted.shape:
            raise _refusal(bundle.folder, f"self-test: {name} is not finite or misshapen", REBUILD)
        worst = float(np.abs(value - wanted).max() / max(float(np.abs(wanted).max()), 1e-6))
        if worst > GOLDEN_TOLERANCE:
            found = f"self-test: {name} is off by {worst:.2g} of its largest value, allowed {GOLDEN_TOLERANCE}"
            raise _refusal(bundle.folder, found, "export it again, or report this CPU and onnxruntime version")
