"""manifest.json and the interface of gap.onnx: what a bundle says about itself, and what a robot expects."""

from __future__ import annotations

import msgspec

from gapd.model.parameters import Parameter, Target
from gapd.model.robot import Robot

# Raise with every change of what follows: a bundle of another schema is refused by its number, not by a strange field.
SCHEMA = 3
ENGINE = "mujoco"
MANIFEST, NETWORK, MODEL, GOLDEN = "manifest.json", "gap.onnx", "model.xml", "golden.npz"
INPUTS = ("window", "context", "theta", "delta")
OUTPUTS = ("gap", "jacobian", "x0_jacobian", "log_spread", "edge_probability")


class ParameterFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A parameter as the network was trained for it. Numbers in `unit`."""

    name: str
    unit: str
    nominal: float
    min: float
    max: float
    scale: str
    targets: tuple[Target, ...]


class ChannelFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A channel as the network was trained for it."""

    name: str
    unit: str
    noise: float
    sensor: str


class TimingFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time grid of the windows: `knots` intervals of `knot_s`, simulated in steps of `step_s`; when commands act."""

    knot_s: float
    knots: int
    step_s: float
    command_offset_s: float


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Range of one input of the network in training."""

    name: str
    min: float
    max: float


class GraphFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The causal graph of the parameters with an edge, measured on the training's motions. Columns are channels."""

    probability: tuple[tuple[float, ...], ...]  # (P, C) that one prior standard deviation does more than an edge has to
    effect: tuple[tuple[float, ...], ...]  # (P, C) rms of what it does, in noise standard deviations


class InactiveFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A parameter that the graph gives no edge: every fit holds it at its nominal, in `unit`."""

    name: str
    unit: str
    nominal: float
    effect: float  # largest over the channels, in noise standard deviations
    tested: bool  # whether it does anything at all in the training's motions


class ChannelQuality(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far the network is off on one channel. In noise standard deviations, rms over held-out windows."""

    name: str
    effect: float  # of a first-order step of all parameters, as in training
    missed: float  # of that, what the network's derivatives miss


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What so many windows of the training's motions would tell about each parameter, by exact derivatives."""

    windows: int
    prior_sd: tuple[float, ...]  # (P,) scaled: of a uniform draw within the bounds
    sd: tuple[float, ...]  # (P,) scaled, after those windows
    groups: tuple[tuple[str, ...], ...]  # parameters of which they tell only a combination; alone: nothing at all


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the network comes from."""

    seed: int
    windows: int
    dropped_windows: int
    epochs: int
    data: str
    gapd_version: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """manifest.json."""

    schema: int
    robot: str
    engine: str
    engine_version: str
    files: dict[str, str]  # name -> sha256
    parameters: tuple[ParameterFacts, ...]
    frozen: tuple[ParameterFacts, ...]
    channels: tuple[ChannelFacts, ...]
    context: tuple[str, ...]
    timing: TimingFacts
    ranges: tuple[Range, ...]  # F features of the replayed windows, then X context values
    graph: GraphFacts
    inactive: tuple[InactiveFacts, ...]  # among `frozen` too
    held_out_error: dict[str, float]  # ||J_hat - J|| / ||J|| by kind of parameter
    spread_coverage: float  # share of held-out errors of J·delta within the 90 % interval of log_spread
    channel_quality: tuple[ChannelQuality, ...]
    expected: Expected
    loss: tuple[float, ...]  # mean over each epoch of training
    provenance: Provenance


def parameter_facts(parameters: tuple[Parameter, ...]) -> tuple[ParameterFacts, ...]:
    """Parameters as a manifest states them."""
    return tuple(ParameterFacts(p.name, p.unit, p.nominal, p.min, p.max, p.scale, p.targets) for p in parameters)


def channel_facts(robot: Robot) -> tuple[ChannelFacts, ...]:
    """The robot's channels as a manifest states them."""
    return tuple(ChannelFacts(c.name, c.unit, c.noise, c.sensor_name) for c in robot.config.channel)


def timing_facts(robot: Robot) -> TimingFacts:
    """The robot's window timing as a manifest states it."""
    layout = robot.layout
    return TimingFacts(layout.knot_s, layout.knots, layout.step_s, robot.config.timing.command_offset_s)


def range_names(robot: Robot) -> tuple[str, ...]:
    """Inputs of the network in order: F features of the replayed windows, then X context values."""
    layout = robot.layout
    names = [f"{j} {kind}" for kind in ("position", "velocity") for j in layout.joints]
    names += [f"{a} {kind}" for kind in ("command", "force") for a in layout.actuators]
    return (*names, *robot.config.context_names)


def interface(robot: Robot) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Shapes of the network's inputs and outputs after the batch axis; edge_probability has no batch axis."""
    nv, nu, knots = robot.model.nv, robot.model.nu, robot.layout.knots
    p, c, x = len(robot.parameters), len(robot.layout.channels), max(len(robot.config.context), 1)
    inputs = ([knots + 1, 2 * nv + 2 * nu], [knots + 1, x], [p], [p])
    outputs = ([knots, c], [knots, c, p], [knots, c, 2 * nv], [knots, c], [p, c])
    return dict(zip(INPUTS, inputs, strict=True)), dict(zip(OUTPUTS, outputs, strict=True))
