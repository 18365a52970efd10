"""Bundle folders as an export leaves them, for manifests with the numbers that a test wants."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import mujoco
import numpy as np
from numpy.typing import NDArray

from gapd.gap_model.manifest import (
    SCHEMA,
    ChannelFacts,
    ChannelQuality,
    Expected,
    GraphFacts,
    InactiveFacts,
    Manifest,
    ParameterFacts,
    Provenance,
    Range,
    TimingFacts,
    parameter_facts,
)
from gapd.model.parameters import Target
from gapd.model.robot import Robot

Array = NDArray[np.float64]
MODEL = b'<mujoco><worldbody><body><joint name="j"/><geom size="1"/></body></worldbody></mujoco>'
CONTEXT = TimingFacts(0.01, 30, 0.002, 0.0)


def write_bundle(folder: Path, manifest: Manifest) -> Path:
    """The folder with its files and their hashes."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"gap.onnx": b"a network", "model.xml": MODEL, "golden.npz": b"examples"}
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
    hashes = {name: hashlib.sha256(raw).hexdigest() for name, raw in files.items()}
    (folder / "manifest.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, files=hashes)))
    return folder


def manifest_of(
    parameters: tuple[ParameterFacts, ...], channels: tuple[ChannelFacts, ...], effect: Array, probability: Array
) -> Manifest:
    """A manifest in which every parameter of effect and probability (P, C) is known to a tenth of its prior."""
    count = len(parameters)
    quality = tuple(
        ChannelQuality(c.name, float(e), 0.2 * float(e))
        for c, e in zip(channels, np.sqrt((effect**2).sum(0)), strict=True)
    )
    return Manifest(
        schema=SCHEMA, robot="tiny", engine="mujoco", engine_version=mujoco.__version__, files={},
        parameters=parameters, frozen=(), channels=channels, context=(), timing=CONTEXT,
        ranges=(Range("j position", -1.0, 1.0),),
        graph=GraphFacts(tuple(map(tuple, probability.tolist())), tuple(map(tuple, effect.tolist()))),
        inactive=(), held_out_error={"damping": 0.31, "initial position": 0.2}, spread_coverage=0.87,
        channel_quality=quality, expected=Expected(32, (1.0,) * count, (0.1,) * count, ()),
        loss=(4.0, 1.0, 0.5, 0.2), provenance=Provenance(7, 4096, 3, 40, "da7a" * 16, "0.1.0"),
    )  # fmt: skip


def of_robot(robot: Robot) -> Manifest:
    """A manifest of a robot whose parameters move every channel, each less than the one before."""
    shape = (len(robot.parameters), len(robot.layout.channels))
    channels = tuple(ChannelFacts(c.name, c.unit, c.noise, c.sensor_name) for c in robot.config.channel)
    effect = 30.0 / (1.0 + np.arange(shape[0] * shape[1], dtype=float).reshape(shape))
    return manifest_of(parameter_facts(robot.parameters.free), channels, effect, np.ones(shape))


def parameter(name: str, unit: str = "N·m", scale: str = "log") -> ParameterFacts:
    """From 0.1 to 10."""
    return ParameterFacts(name, unit, 1.0, 0.1, 10.0, scale, (Target("dof_damping", "j"),))


def large(joints: int = 30, seed: int = 0) -> Manifest:
    """A chain of joints with 7 parameters each that move what is near, and 3 more each that move nothing."""
    rng = np.random.default_rng(seed)
    kinds = ("joint/{}/damping", "joint/{}/frictionloss", "joint/{}/armature", "actuator/{}/kp", "actuator/{}/kv",
             "body/{}_link/mass", "body/{}_link/com_x")  # fmt: skip
    names = [kind.format(f"joint{j}") for kind in kinds for j in range(joints)]
    at = np.tile(np.arange(joints), len(kinds))
    kept = np.tile(np.arange(joints), 2)
    distance = np.abs(at[:, None] - kept)
    effect = rng.lognormal(2.5, 1.0, distance.shape) * np.exp(-1.2 * distance)
    probability = np.clip(0.5 + 2.0 * np.log10(effect / 0.1), 0.0, 1.0)
    channels = tuple(
        ChannelFacts(f"joint{j}/{kind}", unit, noise, f"joint{j}/{kind}")
        for kind, unit, noise in (("position", "rad", 2e-4), ("velocity", "rad/s", 5e-3)) for j in range(joints)
    )  # fmt: skip
    made = manifest_of(tuple(parameter(n) for n in names), channels, effect, probability)
    inactive = tuple(
        InactiveFacts(f"geom/foot{j}/{kind}", "1", 0.5, effect, kind == "friction_torsional")
        for kind, effect in (("friction_torsional", 0.03), ("friction_rolling", 0.0), ("friction_sliding", 0.0))
        for j in range(joints)
    )
    expected = Expected(32, (1.1,) * len(names), tuple(rng.uniform(0.005, 0.9, len(names)).tolist()),
                        ((names[0], names[4 * joints]), (names[9], names[9 + 3 * joints]), (names[20],)))  # fmt: skip
    loss = tuple(float(v) for v in 5.0 * np.exp(-np.linspace(0.0, 4.0, 60)) + 0.05)
    held_out_error = {name.rsplit("/", 1)[-1]: float(rng.uniform(0.1, 0.7)) for name in names}
    return msgspec.structs.replace(
        made, robot="large", inactive=inactive, expected=expected, loss=loss, held_out_error=held_out_error
    )


@dataclass(frozen=True)
class Page:
    """A report as an XML parser and an HTML parser see it."""

    html: str
    root: ET.Element

    @classmethod
    def of(cls, html: str) -> Page:
        """Parse it with both."""
        _Strict().feed(html)
        return cls(html, ET.fromstring(html))  # noqa: S314 - our own page

    def section(self, key: str) -> ET.Element:
        """The section with this id."""
        return next(e for e in self.root.iter("section") if e.get("id") == key)

    def words(self, key: str) -> str:
        """All text of a section, with single spaces."""
        return re.sub(r"\s+", " ", "".join(self.section(key).itertext()))

    def classed(self, name: str) -> list[ET.Element]:
        """Elements that have the class."""
        return [e for e in self.root.iter() if name in e.get("class", "").split()]


class _Strict(HTMLParser):
    """Refuses tags that are not closed in the order in which they were opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag
