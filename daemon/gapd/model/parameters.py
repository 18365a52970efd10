"""Parameters: unknown numbers, their bounds and scales."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from gapd.errors import ConfigError, nearest
from gapd.limits import LARGEST, SMALLEST, factor_fault, name_fault, number_fault, text_fault
from gapd.typed_toml import decode_toml

Array = NDArray[np.float64]

# Largest step of a fit: a log parameter falls to a half or rises to four times, a
# linear one moves by a sixth of its range, an asinh one by a ninth.
LARGEST_FALL = 0.5
LARGEST_RISE = 3.0
LARGEST_MOVE = 0.7
# Bounds closer than this share of their size cannot be told apart in a fit.
NARROWEST = 1e-9


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One MjModel cell that a parameter writes: value = parameter x product of `factor`.

    `element` is a name, or `#number` for an element that has none. Fields that begin with `inertia.` are no cells but
    numbers of a body from which its mass, centre of mass and inertia follow together (gapd.model.inertia).
    """

    field: str
    element: str = ""
    index: int = 0
    factor: tuple[float | str, ...] = ()

    @property
    def constant(self) -> float:
        """Product of the numbers among the factors."""
        return float(np.prod([f for f in self.factor if not isinstance(f, str)]))

    @property
    def context(self) -> tuple[str, ...]:
        """Names of the context values among the factors."""
        return tuple(f for f in self.factor if isinstance(f, str))


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One unknown number of the simulator, in SI units."""

    name: str
    nominal: float
    min: float
    max: float
    targets: tuple[Target, ...]
    unit: str = ""
    scale: Literal["log", "linear", "asinh"] = "log"
    frozen: bool = False

    def check(self) -> None:
        """Raise ConfigError where bounds, nominal and scale contradict each other or overflow."""
        for key, value, fault in self._faults():
            if fault:
                raise ConfigError(f"parameter {self.name!r}: {key} = {value!r} {fault}")
        if not self.min < self.max:
            raise ConfigError(f"parameter {self.name}: min {self.min} is not below max {self.max}; swap or widen them")
        if not self.min <= self.nominal <= self.max:
            bounds = f"{self.min} .. {self.max}; correct it, or widen them"
            raise ConfigError(f"parameter {self.name}: nominal {self.nominal} is outside {bounds}")
        if self.scale == "log" and self.min <= 0:
            raise ConfigError(f"parameter {self.name}: min {self.min} on scale log must be positive; use scale asinh")
        if self.max - self.min < NARROWEST * max(abs(self.min), abs(self.max)):
            raise ConfigError(f"parameter {self.name}: min {self.min} .. max {self.max} leaves no room; freeze it")
        if not self.targets:
            raise ConfigError(f"parameter {self.name}: targets is empty; name the MjModel field it writes")

    def _faults(self) -> Iterator[tuple[str, object, str]]:
        """Key, value and fault of everything in it."""
        yield "name", self.name, name_fault(self.name)
        yield "unit", self.unit, text_fault(self.unit)
        for key in ("nominal", "min", "max"):
            value: float = getattr(self, key)
            yield key, value, number_fault(value, -LARGEST, LARGEST)
        yield "min", self.min, "is too small for scale log" if self.scale == "log" and 0 < self.min < SMALLEST else ""
        for target in self.targets:
            yield "element", target.element, text_fault(target.element)
            for factor in target.factor:
                yield "factor", factor, "" if isinstance(factor, str) else factor_fault(factor)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    parameter: tuple[Parameter, ...]


class ParameterSet:
    """The parameters of one robot: P free ones, in a fixed order, and the frozen ones at their nominal.

    Physical values are arrays (..., P) in SI units. Scaled values z (..., P) are what estimator and
    network work in: ln(value) for log, value / ((max - min) / 4) for linear, asinh(value / s) with
    s = max(|min|, |max|) / 10 for asinh.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        """Order the parameters; raise ConfigError on contradictions or doubled names."""
        for parameter in parameters:
            parameter.check()
        doubled = [name for name, count in Counter(p.name for p in parameters).items() if count > 1]
        if doubled:
            raise ConfigError(f"parameter {min(doubled)} is defined twice; keep one")
        self.every = tuple(parameters)
        self.free = tuple(p for p in parameters if not p.frozen)
        self.frozen = tuple(p for p in parameters if p.frozen)
        if not self.free:
            raise ConfigError("no free parameter; unfreeze at least one")
        self.names = tuple(p.name for p in self.free)
        self.units = tuple(p.unit for p in self.free)
        self.nominal: Array = np.array([p.nominal for p in self.free])
        self.min: Array = np.array([p.min for p in self.free])
        self.max: Array = np.array([p.max for p in self.free])
        scale = np.array([p.scale for p in self.free])
        self._log = scale == "log"
        self._asinh = scale == "asinh"
        magnitude = np.maximum(np.abs(self.min), np.abs(self.max)) / 10
        self._unit: Array = np.where(self._asinh, magnitude, np.where(self._log, 1.0, (self.max - self.min) / 4))
        self.z_min, self.z_max = self.to_scaled(self.min), self.to_scaled(self.max)
        self.z_nominal = self.to_scaled(self.nominal)

    @classmethod
    def from_toml(cls, path: Path) -> ParameterSet:
        """Read parameters.toml; raise ConfigError that names the file and the key."""
        return cls(decode_toml(path, _File).parameter)

    def holding(self, names: Collection[str]) -> ParameterSet:
        """The same parameters with those of these names frozen too."""
        return ParameterSet([msgspec.structs.replace(p, frozen=p.frozen or p.name in names) for p in self.every])

    def __len__(self) -> int:
        """Return P, the number of free parameters."""
        return len(self.free)

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of what gives scaled values their meaning: names, units, scales, bounds, order."""
        meaning = [(p.name, p.unit, p.scale, float(p.min), float(p.max)) for p in self.free]
        return hashlib.sha256(msgspec.json.encode(meaning)).hexdigest()

    def to_scaled(self, physical: Array) -> Array:
        """Physical (..., P) to scaled (..., P)."""
        value = np.asarray(physical, float) / self._unit
        logarithm = np.log(np.where(self._log, np.maximum(value, 1e-300), 1.0))
        return np.where(self._log, logarithm, np.where(self._asinh, np.arcsinh(value), value))

    def to_physical(self, z: Array) -> Array:
        """Scaled (..., P) to physical (..., P)."""
        z = np.asarray(z, float)
        curved = np.where(self._log, np.exp(np.where(self._log, z, 0.0)), np.sinh(np.where(self._asinh, z, 0.0)))
        return np.where(self._log | self._asinh, curved, z) * self._unit

    def advance(self, z: Array, step: Array) -> Array:
        """Scaled values (P,) after a step (P,) that is relative for log parameters: value x (1 + step).

        Most parameters act nearly linearly by their physical value. Steps in the logarithm need several rounds for
        a factor of ten, steps in the value one.
        """
        return np.asarray(z + np.where(self._log, np.log1p(np.where(self._log, step, 0.0)), step))

    def growth(self, here: Array, there: Array) -> Array:
        """Factor (P,) by which derivatives by scaled values grow from here to there (P,), if the model is linear."""
        return np.asarray(np.exp(np.where(self._log, there - here, 0.0)))

    def box(self, z: Array) -> tuple[Array, Array]:
        """Smallest and largest step (P,) from z: within the bounds, and no farther than derivatives can be trusted."""
        low, high = self.z_min - z, self.z_max - z
        low, high = (np.where(self._log, np.expm1(np.where(self._log, side, 0.0)), side) for side in (low, high))
        down, up = np.where(self._log, LARGEST_FALL, LARGEST_MOVE), np.where(self._log, LARGEST_RISE, LARGEST_MOVE)
        return np.maximum(low, -down), np.minimum(high, up)

    def physical_sd(self, z: Array, z_sd: Array) -> Array:
        """Standard deviation in physical units of scaled values z with standard deviation z_sd, first order."""
        slope = np.where(self._log, np.exp(np.where(self._log, z, 0.0)), np.cosh(np.where(self._asinh, z, 0.0)))
        return np.where(self._log | self._asinh, slope, 1.0) * self._unit * z_sd

    def draw(self, rng: np.random.Generator, n: int) -> Array:
        """Draw n physical vectors (n, P), uniform in the scaled coordinates within the bounds."""
        return self.to_physical(rng.uniform(self.z_min, self.z_max, (n, len(self))))

    def vector(self, values: Mapping[str, float]) -> Array:
        """Nominal vector (P,) with the named values replaced; ConfigError on an unknown name."""
        result = self.nominal.copy()
        for name, value in values.items():
            if name not in self.names:
                raise ConfigError(f"parameter {name} is not in the set{nearest(name, self.names)}")
            result[self.names.index(name)] = value
        return result
