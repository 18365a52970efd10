"""What a manifest says, in the words of the report: what becomes of each parameter, and how well it is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from gapd.errors import ConfigError, InputError
from gapd.fit.uncertainty import UNKNOWN_SHARE
from gapd.gap_model.bundle import read_manifest
from gapd.gap_model.bundle_match import REBUILD
from gapd.gap_model.manifest import MANIFEST, Manifest
from gapd.model.parameters import Parameter, ParameterSet

Array = NDArray[np.float64]
Fate = Literal["known", "combined", "weak", "no edge", "not tested"]


@dataclass(frozen=True)
class Facts:
    """A verified bundle whose numbers fit together: P parameters with an edge, C channels."""

    manifest: Manifest
    sha256: str  # of the manifest
    space: ParameterSet

    @cached_property
    def effect(self) -> Array:
        """Effects (P, C) of one prior standard deviation, in noise standard deviations."""
        return np.array(self.manifest.graph.effect).reshape(len(self.space), -1)

    @cached_property
    def probability(self) -> Array:
        """Edge probabilities (P, C)."""
        return np.array(self.manifest.graph.probability).reshape(len(self.space), -1)

    @cached_property
    def channels(self) -> tuple[str, ...]:
        """Names of the C channels."""
        return tuple(c.name for c in self.manifest.channels)

    @cached_property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Parameters of which only a combination will be known."""
        return tuple(group for group in self.manifest.expected.groups if len(group) > 1)

    @cached_property
    def fates(self) -> dict[str, Fate]:
        """What becomes of each parameter that is not frozen: those of the graph, then the inactive ones."""
        expected, grouped = self.manifest.expected, {name for group in self.groups for name in group}
        alone = {group[0] for group in expected.groups if len(group) == 1}
        fates: dict[str, Fate] = {}
        for name, prior, sd in zip(self.space.names, expected.prior_sd, expected.sd, strict=True):
            weak = name in alone or sd > UNKNOWN_SHARE * prior
            fates[name] = "combined" if name in grouped else "weak" if weak else "known"
        return fates | {p.name: "no edge" if p.tested else "not tested" for p in self.manifest.inactive}

    def count(self, fate: Fate) -> int:
        """Parameters with this fate."""
        return sum(found == fate for found in self.fates.values())

    @property
    def frozen(self) -> tuple[str, ...]:
        """Names of the parameters that parameters.toml freezes."""
        inactive = {p.name for p in self.manifest.inactive}
        return tuple(p.name for p in self.manifest.frozen if p.name not in inactive)

    def spread(self, z_sd: tuple[float, ...]) -> Array:
        """Scaled standard deviations (P,) as %, upwards, of log-scaled parameters, and in the unit of others."""
        sd = np.array(z_sd)
        physical = self.space.physical_sd(self.space.z_nominal, sd)
        return np.where(self.is_log, 100 * np.expm1(np.minimum(sd, 50.0)), physical)

    @cached_property
    def is_log(self) -> NDArray[np.bool_]:
        """Parameters (P,) on a logarithmic scale."""
        return np.array([p.scale == "log" for p in self.space.free])


def open_facts(folder: Path) -> Facts:
    """Read and verify a bundle. ConfigError if there is none, InputError if it is damaged or of another schema."""
    if not folder.is_dir():
        found = "is not a folder" if folder.exists() else "no such folder"
        raise ConfigError(f"bundle {folder}: {found}; name the folder that `gaptrain fit` wrote")
    inner = folder / "bundle"
    if not (folder / MANIFEST).exists() and (inner / MANIFEST).exists():
        raise ConfigError(f"bundle {folder}: is the folder of a model; name its bundle, {inner}")
    manifest, sha256 = read_manifest(folder)
    fault = next(_faults(manifest), "")
    if fault:
        raise InputError(f"bundle {folder}: {MANIFEST}: {fault}; {REBUILD}")
    try:
        free = [msgspec.convert(msgspec.to_builtins(p), Parameter) for p in manifest.parameters]
        return Facts(manifest, sha256, ParameterSet(free))
    except (msgspec.ValidationError, ConfigError) as error:
        raise InputError(f"bundle {folder}: {MANIFEST}: {error}; {REBUILD}") from None


def _faults(manifest: Manifest) -> Iterator[str]:
    """Numbers and names that no export writes."""
    shape = (len(manifest.parameters), len(manifest.channels))
    for key in ("probability", "effect"):
        rows: tuple[tuple[float, ...], ...] = getattr(manifest.graph, key)
        odd = next((len(row) for row in rows if len(row) != shape[1]), shape[1])
        if (len(rows), odd) != shape:
            yield f"graph.{key} has {len(rows)} x {odd} values, for {shape[0]} parameters and {shape[1]} channels"
        largest = 1.0 if key == "probability" else np.inf
        yield from (f"graph.{key} = {v} is out of range" for row in rows for v in row if not 0 <= v <= largest)
    expected, names = manifest.expected, {p.name for p in manifest.parameters}
    for key, values in (("prior_sd", expected.prior_sd), ("sd", expected.sd)):
        if len(values) != shape[0]:
            yield f"expected.{key} has {len(values)} values, for {shape[0]} parameters"
        yield from (f"expected.{key} = {v} is not positive" for v in values if not v > 0)
    grouped = [name for group in expected.groups for name in group]
    yield from (f"expected.groups has {name!r}, which is no parameter" for name in grouped if name not in names)
    yield from ("expected.groups has an empty group" for g in expected.groups if not g)
    yield from _channel_faults(manifest)
    every = Counter([*(p.name for p in manifest.parameters), *(p.name for p in manifest.inactive)])
    yield from (f"parameter {name!r} is listed twice" for name, count in every.items() if count > 1)


def _channel_faults(manifest: Manifest) -> Iterator[str]:
    channels, rated = [c.name for c in manifest.channels], [q.name for q in manifest.channel_quality]
    if not channels or len(set(channels)) < len(channels):
        yield "channels are missing or doubled"
    if rated != channels:
        yield f"channel_quality is of {len(rated)} channels or another order, channels has {len(channels)}"
    if not 0 <= manifest.spread_coverage <= 1:
        yield f"spread_coverage = {manifest.spread_coverage} is not within 0 .. 1"
