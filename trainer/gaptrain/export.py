"""From trained network to bundle: ONNX, golden examples, manifest, and the hash that robot.toml pins."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import mujoco
import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapd.errors import InputError
from gapd.manifest import (
    ENGINE,
    GOLDEN,
    INPUTS,
    MANIFEST,
    MODEL,
    NETWORK,
    OUTPUTS,
    SCHEMA,
    Manifest,
    Provenance,
    Range,
    channel_facts,
    parameter_facts,
    timing_facts,
)  # fmt: skip
from gapd.robot import Robot
from gaptrain.model import GapModel

Single = NDArray[np.float32]

OPSET = 18
PARITY_TOLERANCE = 1e-4
GOLDEN_WINDOWS = 2
MAX_ONNX_BYTES = 6_000_000


@dataclass(frozen=True)
class Facts:
    """What the manifest says beyond the robot itself."""

    provenance: Provenance
    feature_min: Single  # (F,)
    feature_max: Single  # (F,)
    held_out_error: dict[str, float]
    spread_coverage: float


@dataclass(frozen=True)
class Exported:
    """What came out."""

    folder: Path
    onnx_bytes: int
    parity: float  # worst difference to torch, as a share of the largest output
    sha256: str


def export(robot: Robot, model: GapModel, facts: Facts, examples: tuple[Tensor, Tensor, Tensor]) -> Exported:
    """Write the bundle folder that robot.toml names, and pin it there. `examples`: held-out window, context, theta."""
    model.eval()
    folder = robot.config.path(robot.config.bundle or "bundle")
    folder.mkdir(exist_ok=True)
    delta = torch.from_numpy(np.random.default_rng(0).normal(size=examples[2].shape)).float() * 0.1
    inputs = (*examples, delta)
    network = to_onnx(model, inputs, facts, robot)
    if len(network) > MAX_ONNX_BYTES:
        raise InputError(f"{NETWORK}: {len(network)} bytes, at most {MAX_ONNX_BYTES}; lower `hidden` in train.toml")
    parity = compare(network, model, inputs)
    if not parity <= PARITY_TOLERANCE:
        raise InputError(f"{NETWORK}: differs from torch by {parity:.2g}, allowed {PARITY_TOLERANCE}; report it")
    files = {NETWORK: network, MODEL: robot.config.path(robot.config.model).read_bytes()}
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
    write_golden(folder / GOLDEN, network, inputs)
    files[GOLDEN] = (folder / GOLDEN).read_bytes()
    manifest = describe(robot, model, facts, {n: hashlib.sha256(raw).hexdigest() for n, raw in sorted(files.items())})
    raw = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    (folder / MANIFEST).write_bytes(raw)
    sha256 = hashlib.sha256(raw).hexdigest()
    pin(Path(robot.config.folder) / "robot.toml", sha256)
    return Exported(folder, len(network), parity, sha256)


def to_onnx(model: GapModel, inputs: tuple[Tensor, ...], facts: Facts, robot: Robot) -> bytes:
    """Serialised ONNX with a dynamic batch axis and one metadata key per fact."""
    batch = torch.export.Dim("batch", min=1, max=4096)
    for noisy in ("torch.onnx", "onnxscript", "onnx_ir"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about its own deprecated internals
        program = torch.onnx.export(
            model, inputs, dynamo=True, verbose=False, opset_version=OPSET, optimize=True,
            input_names=list(INPUTS), output_names=list(OUTPUTS),
            dynamic_shapes=tuple({0: batch} for _ in inputs),
        )  # fmt: skip
    if program is None:
        raise InputError(f"{NETWORK}: the exporter returned nothing; check the versions of torch and onnxscript")
    proto = program.model_proto
    strip(proto)
    for key, value in metadata(robot, facts).items():
        proto.metadata_props.append(onnx.StringStringEntryProto(key=key, value=json.dumps(value)))
    onnx.checker.check_model(proto, full_check=True)
    return bytes(proto.SerializeToString())


def strip(proto: Any) -> None:
    """Remove what the exporter notes about source lines: it holds paths and changes from run to run."""
    for item in (
        proto.graph,
        *proto.graph.node,
        *proto.graph.input,
        *proto.graph.output,
        *proto.graph.value_info,
    ):
        del item.metadata_props[:]
    for item in (*proto.graph.node, *proto.graph.initializer):
        item.doc_string = ""
    del proto.metadata_props[:]
    del proto.graph.value_info[:]


def metadata(robot: Robot, facts: Facts) -> dict[str, Any]:
    """One key per fact; the manifest is the authority, this identifies a file that stands alone."""
    layout = robot.layout
    return {
        "robot": robot.config.robot,
        "schema": SCHEMA,
        "engine": [ENGINE, mujoco.__version__],
        "parameters": list(robot.parameters.names),
        "channels": list(layout.channels),
        "noise": layout.noise.tolist(),
        "timing": msgspec.to_builtins(timing_facts(robot)),
        "provenance": msgspec.to_builtins(facts.provenance),
    }


def session(network: bytes) -> Any:
    """A session on one thread, as on the robot."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(network, options, providers=["CPUExecutionProvider"])


def compare(network: bytes, model: GapModel, inputs: tuple[Tensor, ...]) -> float:
    """Worst difference of ONNX to torch as a share of the largest value of each output: on `inputs` and on noise."""
    runs, worst = session(network), 0.0
    generator = torch.Generator().manual_seed(0)
    noisy = tuple(v + 0.1 * v.std() * torch.randn(v.shape, generator=generator) for v in inputs)
    for values in (inputs, tuple(v[:1] for v in inputs), noisy):
        with torch.no_grad():
            wanted = model(*values)
        found = runs.run(list(OUTPUTS), {n: v.numpy() for n, v in zip(INPUTS, values, strict=True)})
        for a, b in zip(found, wanted, strict=True):
            worst = max(worst, float(np.abs(a - b.numpy()).max() / max(float(b.abs().max()), 1e-6)))
    return worst


def write_golden(path: Path, network: bytes, inputs: tuple[Tensor, ...]) -> None:
    """Inputs and what the network makes of them, for the self-test on the robot."""
    values = {n: v[:GOLDEN_WINDOWS].numpy() for n, v in zip(INPUTS, inputs, strict=True)}
    outputs = dict(zip(OUTPUTS, session(network).run(list(OUTPUTS), values), strict=True))
    np.savez_compressed(path, allow_pickle=False, **values, **outputs)


def describe(robot: Robot, model: GapModel, facts: Facts, files: dict[str, str]) -> Manifest:
    """The manifest."""
    layout = robot.layout
    names = [f"{j} {kind}" for kind in ("position", "velocity") for j in layout.joints]
    names += [f"{a} {kind}" for kind in ("command", "force") for a in layout.actuators]
    ranges = [Range(n, float(a), float(b)) for n, a, b in zip(names, facts.feature_min, facts.feature_max, strict=True)]
    ranges += [Range(c.name, c.low, c.high) for c in robot.config.context]
    probability = torch.sigmoid(model.edge_logit.detach()).T.double().numpy()
    return Manifest(
        schema=SCHEMA,
        robot=robot.config.robot,
        engine=ENGINE,
        engine_version=mujoco.__version__,
        files=files,
        parameters=parameter_facts(robot),
        channels=channel_facts(robot),
        context=robot.config.context_names,
        timing=timing_facts(robot),
        ranges=tuple(ranges),
        edge_probability=tuple(tuple(row) for row in probability.round(6).tolist()),
        held_out_error={k: round(v, 5) for k, v in facts.held_out_error.items()},
        spread_coverage=round(facts.spread_coverage, 4),
        provenance=facts.provenance,
    )


def pin(path: Path, sha256: str) -> None:
    """Write bundle_sha256, and bundle where it is not set, into robot.toml; all other lines and comments stay."""
    text = path.read_text(encoding="utf-8")
    for key, value, keep in (("bundle", "bundle", True), ("bundle_sha256", sha256, False)):
        line = f'{key} = "{value}"'
        found = re.search(rf"^{key}\s*=\s*(\"([^\"\n]*)\"|'([^'\n]*)')", text, re.MULTILINE)
        if found is None:  # top-level keys come before the first table
            table = re.search(r"^\s*\[", text, re.MULTILINE)
            at = table.start() if table else len(text)
            text = f"{text[:at].rstrip()}\n{line}\n\n{text[at:].lstrip()}"
        elif not keep or not (found[2] or found[3]):
            text = text[: found.start()] + line + text[found.end() :]
    partial = path.with_name(path.name + ".part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
