"""Parameters resolved against one model: which cells of which fields they write, and with what."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from mujoco import batch
from numpy.typing import NDArray

from gapd.errors import ConfigError, nearest
from gapd.model.model_fields import (
    JOINT_COORDINATES,
    OPTIONS,
    assign,
    derived,
    element_names,
    object_of,
    tunable,
    values,
)
from gapd.model.parameters import Parameter, ParameterSet, Target

Array = NDArray[np.float64]


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


@dataclass(frozen=True)
class _Cell:
    """One resolved target."""

    field: str
    flat: int
    owner: int
    constant: float
    context: tuple[int, ...]


class Binding:
    """A ParameterSet resolved against one MjModel and the order of its context values."""

    def __init__(self, model: mujoco.MjModel, parameters: ParameterSet, context: Sequence[str]) -> None:
        """Resolve every target; raise ConfigError for what the model does not have."""
        self.parameters = parameters
        self.context_names = tuple(context)
        rows: dict[str, list[_Cell]] = {}
        writer: dict[tuple[str, int], str] = {}
        for owner, parameter in enumerate(parameters.free + parameters.frozen):
            for target in parameter.targets:
                cell = self._resolve(model, parameter, target, owner if owner < len(parameters) else -1)
                other = writer.setdefault((cell.field, cell.flat), parameter.name)
                if other != parameter.name or any(c.flat == cell.flat for c in rows.get(cell.field, [])):
                    raise ConfigError(
                        f"parameters {other} and {parameter.name} both write {target.field} of {target.element}; "
                        "make them one parameter with two targets, or freeze and remove one"
                    )
                rows.setdefault(cell.field, []).append(cell)
        self.cells = tuple(
            _Cells(
                field,
                np.array([c.flat for c in cells], np.intp),
                np.array([c.owner for c in cells], np.intp),
                np.array([c.constant for c in cells]),
                tuple(c.context for c in cells),
            )
            for field, cells in rows.items()
        )
        self.needs_set_const = any(c.needs_set_const for c in self.cells)
        self.context_used = tuple(sorted({c for cells in self.cells for columns in cells.context for c in columns}))

    def _resolve(self, model: mujoco.MjModel, parameter: Parameter, target: Target, owner: int) -> _Cell:
        columns = tuple(self._column(parameter.name, name) for name in target.context)
        constant = target.constant * (parameter.nominal if owner < 0 else 1.0)
        return _Cell(target.field, _flat_index(model, parameter.name, target), owner, constant, columns)

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
            assign(model, cells.field, cells.flat, self.values(cells, physical[None], context[None])[0])
        if self.needs_set_const:
            mujoco.mj_setConst(model, mujoco.MjData(model))


def _flat_index(model: mujoco.MjModel, parameter: str, target: Target) -> int:
    """Place in the flattened field; ConfigError for what is no field, element or index to write."""
    _require_tunable(model, parameter, target.field)
    array = values(model, target.field)
    kind = object_of(target.field)
    if kind is None:  # an option
        inner, row = array.size, 0
    else:
        inner, row = int(np.prod(array.shape[1:])), _row(model, parameter, target, kind)
    if not 0 <= target.index < inner:
        raise ConfigError(f"parameter {parameter}: index {target.index} of {target.field} is outside 0 .. {inner - 1}")
    return row * inner + target.index


def _require_tunable(model: mujoco.MjModel, parameter: str, field: str) -> None:
    known = tunable(model)
    if field in known:
        return
    if derived(field) and field in batch.MODEL_FIELDS:
        why = "is derived by MuJoCo from other fields; write those, such as body_mass or dof_armature"
    elif field.startswith("opt."):
        why = f"is no option that a robot may have otherwise; {', '.join(OPTIONS)} are"
    else:
        close = difflib.get_close_matches(field, known, n=1, cutoff=0.4)
        hint = f"did you mean '{close[0]}'?" if close else "name one such as dof_damping or body_mass"
        kind = "holds no physical numbers" if field in batch.MODEL_FIELDS else "is no field of MjModel"
        why = f"{kind}; {hint}"
    raise ConfigError(f"parameter {parameter}: field '{field}' {why}")


def _row(model: mujoco.MjModel, parameter: str, target: Target, kind: mujoco.mjtObj) -> int:
    number = mujoco.mj_name2id(model, kind, target.element)
    if number < 0:
        raise ConfigError(
            f"parameter {parameter}: {kind.name[6:].lower()} '{target.element}' is not in the model"
            f"{nearest(target.element, element_names(model, kind))}"
        )
    if target.field.startswith("dof_"):
        return int(model.jnt_dofadr[number])
    return int(model.jnt_qposadr[number]) if target.field in JOINT_COORDINATES else number
