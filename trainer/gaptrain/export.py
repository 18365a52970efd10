"""From trained network to bundle: ONNX, golden examples, manifest, and the hash that robot.toml pins."""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import mujoco
import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapd.errors import ConfigError, InputError
from gapd.gap_model.bundle import session
from gapd.gap_model.bundle_match import model_mismatch
from gapd.gap_model.manifest import (
    ENGINE,
    GOLDEN,
    INPUTS,
    MANIFEST,
    MODEL,
    NETWORK,
    OUTPUTS,
    SCHEMA,
    ChannelQuality,
    Expected,
    GraphFacts,
    Manifest,
    Provenance,
    Range,
    channel_facts,
    parameter_facts,
    range_names,
    timing_facts,
)  # fmt: skip
from gapd.model.robot import Robot
from gaptrain.diagnostics import Quality
from gaptrain.install import bundle_folder, pin, replace_folder, require_writable
from gaptrain.model import GapModel
from gaptrain.pruning import Pruned

Single = NDArray[np.float32]

OPSET = 18
PARITY_TOLERANCE = 1e-4
GOLDEN_WINDOWS = 2
# Of a network for up to so many parameters; a larger one may be larger in proportion.
MAX_ONNX_BYTES, PER_PARAMETERS = 6_000_000, 64


@dataclass(frozen=True)
class Facts:
    """What the manifest says beyond the robot itself."""

    provenance: Provenance
    feature_min: Single  # (F,)
    feature_max: Single  # (F,)
    quality: Quality
    expected: Expected
    loss: list[float]


@dataclass(frozen=True)
class Exported:
    """What came out."""

    folder: Path
    onnx_bytes: int
    parity: float  # worst difference to torch, as a share of the largest output
    sha256: str


class Network:
    """The exported file, for the bundle folder it is made for, run with the session options of the robot."""

    def __init__(self, folder: Path, raw: bytes) -> None:
        self.folder, self.raw = folder, raw
        self.session = session(folder, raw)

    def __call__(self, window: Tensor, context: Tensor, theta: Tensor, delta: Tensor) -> tuple[Tensor, ...]:
        """Outputs as `GapModel.forward` gives them."""
        inputs = dict(zip(INPUTS, (v.numpy() for v in (window, context, theta, delta)), strict=True))
        return tuple(torch.from_numpy(v) for v in self.session.run(list(OUTPUTS), inputs))


def export(pruned: Pruned, model: GapModel, network: Network, facts: Facts, inputs: Sequence[Tensor]) -> Exported:
    """Write the bundle folder that robot.toml names, and pin it there. `inputs`: held-out examples of all four."""
    robot = pruned.robot
    most = largest_network(len(robot.parameters))
    if len(network.raw) > most:
        raise InputError(f"{NETWORK}: {len(network.raw)} bytes, at most {most}; lower `hidden` in train.toml")
    require_writable(robot)
    parity = compare(network, model, inputs)
    if not parity <= PARITY_TOLERANCE:
        raise InputError(f"{NETWORK}: differs from torch by {parity:.2g}, allowed {PARITY_TOLERANCE}; report it")
    files = {NETWORK: network.raw, MODEL: bundled_model(robot), GOLDEN: golden(network, inputs)}
    manifest = describe(pruned, facts, {n: hashlib.sha256(raw).hexdigest() for n, raw in sorted(files.items())})
    files[MANIFEST] = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    replace_folder(network.folder, files)
    sha256 = hashlib.sha256(files[MANIFEST]).hexdigest()
    pin(Path(robot.config.folder) / "robot.toml", sha256)
    return Exported(network.folder, len(network.raw), parity, sha256)


def largest_network(parameters: int) -> int:
    """Bytes that a network for so many parameters may have."""
    return round(MAX_ONNX_BYTES * max(1.0, parameters / PER_PARAMETERS))


def bundled_model(robot: Robot) -> bytes:
    """The robot's MJCF as one file that stands alone; ConfigError if it needs files besides it."""
    path = robot.config.path(robot.config.model)
    raw = path.read_bytes()
    fault = model_mismatch(raw, robot)
    if fault:  # it includes others
        spec = mujoco.MjSpec.from_file(str(path))
        spec.compile()
        raw = spec.to_xml().encode()
        fault = model_mismatch(raw, robot)
    if fault:
        raise ConfigError(f"model {path}: does not stand alone ({fault.found}); put it into one file without meshes")
    return raw


def to_onnx(robot: Robot, model: GapModel, provenance: Provenance, inputs: tuple[Tensor, ...]) -> Network:
    """ONNX with a dynamic batch axis and one metadata key per fact."""
    model.eval()
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
    for key, value in metadata(robot, provenance).items():
        proto.metadata_props.append(onnx.StringStringEntryProto(key=key, value=json.dumps(value)))
    onnx.checker.check_model(proto, full_check=True)
    return Network(bundle_folder(robot), bytes(proto.SerializeToString()))


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


def metadata(robot: Robot, provenance: Provenance) -> dict[str, Any]:
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
        "provenance": msgspec.to_builtins(provenance),
    }


def compare(network: Network, model: GapModel, inputs: Sequence[Tensor]) -> float:
    """Worst difference of ONNX to torch as a share of the largest value of each output: on `inputs` and on noise."""
    shares, generator = [], torch.Generator().manual_seed(0)
    noisy = tuple(v + 0.1 * v.std() * torch.randn(v.shape, generator=generator) for v in inputs)
    for values in (inputs, tuple(v[:1] for v in inputs), noisy):
        with torch.no_grad():
            wanted = model(*values)
        for a, b in zip(network(*values), wanted, strict=True):
            shares.append((a - b).abs().max() / b.abs().max().clamp_min(1e-6))
    return float(torch.stack(shares).max())  # NaN if any is


def golden(network: Network, inputs: Sequence[Tensor]) -> bytes:
    """Inputs and what the network makes of them as an npz file, for the self-test on the robot."""
    values = [v[:GOLDEN_WINDOWS] for v in inputs]
    named = zip((*INPUTS, *OUTPUTS), (*values, *network(*values)), strict=True)
    file = BytesIO()
    np.savez_compressed(file, allow_pickle=False, **{name: v.numpy() for name, v in named})
    return file.getvalue()


def describe(pruned: Pruned, facts: Facts, files: dict[str, str]) -> Manifest:
    """The manifest."""
    robot, quality = pruned.robot, facts.quality
    context = robot.config.context
    low = (*facts.feature_min.tolist(), *(c.low for c in context))
    high = (*facts.feature_max.tolist(), *(c.high for c in context))
    ranges = tuple(Range(n, float(a), float(b)) for n, a, b in zip(range_names(robot), low, high, strict=True))
    return Manifest(
        schema=SCHEMA,
        robot=robot.config.robot,
        engine=ENGINE,
        engine_version=mujoco.__version__,
        files=files,
        parameters=parameter_facts(robot.parameters.free),
        frozen=parameter_facts(robot.parameters.frozen),
        channels=channel_facts(robot),
        context=robot.config.context_names,
        timing=timing_facts(robot),
        ranges=ranges,
        graph=GraphFacts(_rows(pruned.graph.probability), _rows(pruned.graph.effect)),
        inactive=pruned.inactive,
        held_out_error={k: round(v, 5) for k, v in quality.by_family(quality.error).items()},
        spread_coverage=round(quality.spread_coverage, 4),
        channel_quality=tuple(
            ChannelQuality(name, float(effect), float(missed))
            for name, effect, missed in zip(
                robot.layout.channels, quality.channel_effect, quality.channel_missed, strict=True
            )
        ),
        expected=facts.expected,
        loss=tuple(facts.loss),
        provenance=facts.provenance,
    )


def _rows(values: NDArray[np.float64]) -> tuple[tuple[float, ...], ...]:
    """Rows with four significant digits: what a person compares, and a hundred parameters stay below a megabyte."""
    return tuple(tuple(float(f"{v:.4g}") for v in row) for row in values)
