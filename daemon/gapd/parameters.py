"""Parameters: unknown numbers, their bounds and scales, and how they are written into an MjModel in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import mujoco
import numpy as np
from numpy.typing import NDArray

from gapd.config import decode_toml
from gapd.errors import ConfigError, nearest

Array = NDArray[np.float64]

# Largest step of a fit: a log parameter falls to a half or rises to four times, another moves by a sixth of its range.
LARGEST_FALL = 0.5
LARGEST_RISE = 3.0
LARGEST_MOVE = 0.7

# Fields that no object prefix tells: arrays over joint coordinates.
_JOINT_COORDINATES = ("qpos0", "qpos_spring")
_OBJECT_OF_PREFIX = {
    "dof": mujoco.mjtObj.mjOBJ_JOINT,
    "jnt": mujoco.mjtObj.mjOBJ_JOINT,
    "body": mujoco.mjtObj.mjOBJ_BODY,
    "geom": mujoco.mjtObj.mjOBJ_GEOM,
    "site": mujoco.mjtObj.mjOBJ_SITE,
    "actuator": mujoco.mjtObj.mjOBJ_ACTUATOR,
    "tendon": mujoco.mjtObj.mjOBJ_TENDON,
    "sensor": mujoco.mjtObj.mjOBJ_SENSOR,
    "eq": mujoco.mjtObj.mjOBJ_EQUALITY,
    "pair": mujoco.mjtObj.mjOBJ_PAIR,
}


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One MjModel cell that a parameter writes: value = parameter x product of `factor`."""

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
        """Raise ConfigError where bounds, nominal and scale contradict each other."""
        if not self.min < self.max:
            raise ConfigError(f"parameter {self.name}: min {self.min} is not below max {self.max}; swap or widen them")
        if not self.min <= self.nominal <= self.max:
            raise ConfigError(f"parameter {self.name}: nominal {self.nominal} is outside {self.min} .. {self.max}")
        if self.scale == "log" and self.min <= 0:
            raise ConfigError(f"parameter {self.name}: min {self.min} on scale log must be positive; use scale asinh")
        if not self.targets:
            raise ConfigError(f"parameter {self.name}: targets is empty; name the MjModel field it writes")


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
        names = [p.name for p in parameters]
        doubled = {n for n in names if names.count(n) > 1}
        if doubled:
            raise ConfigError(f"parameter {min(doubled)} is defined twice; keep one")
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

    def __len__(self) -> int:
        """Return P, the number of free parameters."""
        return len(self.free)

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

    def growth(self, step: Array) -> Array:
        """Factor (P,) by which derivatives with respect to scaled values grow along a step, if the model is linear."""
        return np.asarray(np.where(self._log, 1.0 + step, 1.0))

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


@dataclass(frozen=True)
class _Cells:
    """All targets on one MjModel field: flat index, owner, constant and context columns."""

    field: str
    flat: NDArray[np.intp]  # (T,) position in the flattened field
    owner: NDArray[np.intp]  # (T,) index of the free parameter, -1 for frozen
    constant: Array  # (T,)
    context: tuple[tuple[int, ...], ...]  # (T,) columns of the context

    @property
    def needs_set_const(self) -> bool:
        """Whether mj_setConst derives constants from the field."""
        fields = mujoco.MjModel._setconst_inputs  # noqa: SLF001  the only place MuJoCo lists them
        return self.field in fields or self.field.startswith("opt.")


class Binding:
    """A ParameterSet resolved against one MjModel and the order of its context values."""

    def __init__(self, model: mujoco.MjModel, parameters: ParameterSet, context: Sequence[str]) -> None:
        """Resolve every target; raise ConfigError for what the model does not have."""
        self.parameters = parameters
        self.context_names = tuple(context)
        rows: dict[str, list[tuple[int, int, float, tuple[int, ...]]]] = {}
        writer: dict[tuple[str, int], str] = {}
        for position, parameter in enumerate(parameters.free + parameters.frozen):
            free = position < len(parameters)
            for target in parameter.targets:
                flat = _flat_index(model, parameter.name, target)
                other = writer.get((target.field, flat))
                if other is not None:
                    raise ConfigError(
                        f"parameters {other} and {parameter.name} both write {target.field} of {target.element}; "
                        "make them one parameter with two targets, or freeze and remove one"
                    )
                writer[target.field, flat] = parameter.name
                constant = target.constant * (1.0 if free else parameter.nominal)
                columns = tuple(self._column(parameter.name, name) for name in target.context)
                rows.setdefault(target.field, []).append((flat, position if free else -1, constant, columns))
        self.cells = tuple(
            _Cells(
                field,
                np.array([r[0] for r in cells], np.intp),
                np.array([r[1] for r in cells], np.intp),
                np.array([r[2] for r in cells]),
                tuple(r[3] for r in cells),
            )
            for field, cells in rows.items()
        )
        self.needs_set_const = any(c.needs_set_const for c in self.cells)
        self.context_used = tuple(sorted({c for cells in self.cells for columns in cells.context for c in columns}))

    def _column(self, parameter: str, name: str) -> int:
        if name not in self.context_names:
            raise ConfigError(
                f"parameter {parameter}: factor '{name}' is no [[context]] of robot.toml"
                f"{nearest(name, self.context_names)}"
            )
        return self.context_names.index(name)

    def values(self, cells: _Cells, physical: Array, context: Array) -> Array:
        """Values (n, T) for the cells from physical (n, P) and context (n, X)."""
        padded = np.concatenate([physical, np.ones((len(physical), 1))], axis=1)  # owner -1 reads the 1
        value = padded[:, cells.owner] * cells.constant
        for column, factors in enumerate(cells.context):
            for x in factors:
                value[:, column] = value[:, column] * context[:, x]
        return np.asarray(value)

    def write(self, model: mujoco.MjModel, physical: Array, context: Array) -> None:
        """Write physical (P,) under context (X,) into the model in place, with mj_setConst where needed."""
        for cells in self.cells:
            _field(model, cells.field).reshape(-1)[cells.flat] = self.values(cells, physical[None], context[None])[0]
        if self.needs_set_const:
            mujoco.mj_setConst(model, mujoco.MjData(model))


def _field(model: mujoco.MjModel, name: str) -> Array:
    holder: object = model.opt if name.startswith("opt.") else model
    value = getattr(holder, name.removeprefix("opt."), None)
    if not isinstance(value, np.ndarray):
        raise ConfigError(f"field '{name}' is no array of MjModel{nearest(name, _array_names(model))}")
    return value


def _array_names(model: mujoco.MjModel) -> list[str]:
    return [n for n in dir(model) if n.split("_")[0] in _OBJECT_OF_PREFIX or n in _JOINT_COORDINATES]


def _flat_index(model: mujoco.MjModel, parameter: str, target: Target) -> int:
    array = _field(model, target.field)
    inner = int(np.prod(array.shape[1:]))
    row = 0
    if not target.field.startswith("opt."):
        row = _row(model, parameter, target)
    else:
        inner = array.size
    if not 0 <= target.index < inner:
        raise ConfigError(f"parameter {parameter}: index {target.index} of {target.field} is outside 0 .. {inner - 1}")
    return row * inner + target.index


def _row(model: mujoco.MjModel, parameter: str, target: Target) -> int:
    prefix = target.field.split("_")[0]
    kind = mujoco.mjtObj.mjOBJ_JOINT if target.field in _JOINT_COORDINATES else _OBJECT_OF_PREFIX.get(prefix)
    if kind is None:
        raise ConfigError(f"parameter {parameter}: field '{target.field}' has no named element that gapd can find")
    number = mujoco.mj_name2id(model, kind, target.element)
    if number < 0:
        raise ConfigError(
            f"parameter {parameter}: {kind.name[6:].lower()} '{target.element}' is not in the model"
            f"{nearest(target.element, _element_names(model, kind))}"
        )
    if target.field.startswith("dof_"):
        return int(model.jnt_dofadr[number])
    return int(model.jnt_qposadr[number]) if target.field in _JOINT_COORDINATES else number


def _element_names(model: mujoco.MjModel, kind: mujoco.mjtObj) -> list[str]:
    counts = {"joint": model.njnt, "actuator": model.nu, "equality": model.neq, "pair": model.npair}
    label = kind.name[6:].lower()
    count = counts.get(label) or getattr(model, f"n{label}")
    names = (mujoco.mj_id2name(model, kind, i) for i in range(count))
    return [n for n in names if n]
