"""Parameters resolved against one model: which cells of which fields they write, and with what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from gapd.errors import ConfigError, nearest
from gapd.model.addresses import Addresses
from gapd.model.inertia import FIELDS, InertiaCells
from gapd.model.inertia_targets import InertiaTargets
from gapd.model.model_fields import assign
from gapd.model.parameters import Parameter, ParameterSet, Target

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Cells:
    """All cells of one MjModel field that parameters write: flat index, owner, constant and context columns."""

    field: str
    flat: NDArray[np.intp]  # (T,) position in the flattened field
    owner: NDArray[np.intp]  # (T,) index of the free parameter, -1 for frozen
    constant: Array  # (T,)
    context: tuple[tuple[int, ...], ...]  # (T,) columns of the context
    inertia: InertiaCells | None = None  # the last of them follow from the ten numbers of bodies

    @property
    def needs_set_const(self) -> bool:
        """Whether mj_setConst derives constants from the field."""
        fields = mujoco.MjModel._setconst_inputs  # noqa: SLF001  the only place MuJoCo lists them
        return self.field in fields or self.field.startswith("opt.")


class _Columns:
    """Resolved targets on one field, in the order they came."""

    def __init__(self) -> None:
        self.writer: dict[int, str] = {}  # parameter by flat index
        self.owner: list[int] = []
        self.constant: list[float] = []
        self.context: list[tuple[int, ...]] = []

    def claim(self, flat: int, parameter: str, what: str) -> None:
        if flat in self.writer:
            raise ConfigError(
                f"parameters {self.writer[flat]} and {parameter} both write {what}; "
                "make them one parameter with two targets, or freeze and remove one"
            )
        self.writer[flat] = parameter

    def cells(self, field: str, inertia: InertiaTargets) -> Cells:
        """The cells of the field, those of consistent inertias last."""
        flat, owner, constant = (
            np.array([*self.writer], np.intp),
            np.array(self.owner, np.intp),
            np.array(self.constant),
        )
        more = inertia.cells(field, len(flat))
        if more is None:
            return Cells(field, flat, owner, constant, tuple(self.context))
        return Cells(
            field,
            np.append(flat, more.flat),
            np.append(owner, more.owners),
            np.append(constant, more.constants),
            (*self.context, *(() for _ in more.flat)),
            more,
        )


class Binding:
    """A ParameterSet resolved against one MjModel and the order of its context values."""

    def __init__(self, model: mujoco.MjModel, parameters: ParameterSet, context: Sequence[str]) -> None:
        """Resolve every target; raise ConfigError for what the model does not have."""
        self.parameters = parameters
        self.context_names = tuple(context)
        addresses, columns = Addresses(model), dict[str, _Columns]()
        inertia = InertiaTargets(model)
        for owner, parameter in enumerate(parameters.free + parameters.frozen):
            for target in parameter.targets:
                if target.field.startswith("inertia."):
                    inertia.add(addresses, parameter, target, owner if owner < len(parameters) else -1)
                else:
                    self._add(columns, addresses, parameter, target, owner)
        inertia.require_alone({field: found.writer for field, found in columns.items()})
        fields = dict.fromkeys([*columns, *(f for f in FIELDS if inertia.writes(f))])
        self.cells = tuple(columns.get(field, _Columns()).cells(field, inertia) for field in fields)
        self.needs_set_const = any(c.needs_set_const for c in self.cells)
        self.context_used = tuple(sorted({c for cells in self.cells for columns in cells.context for c in columns}))

    def _add(
        self, columns: dict[str, _Columns], addresses: Addresses, parameter: Parameter, target: Target, owner: int
    ) -> None:
        flat = addresses.cell(parameter.name, target)
        context = tuple(self._column(parameter.name, name) for name in target.context)
        frozen = owner >= len(self.parameters)
        column = columns.setdefault(target.field, _Columns())
        column.claim(flat, parameter.name, f"{target.field} of {target.element}")
        column.owner.append(-1 if frozen else owner)
        column.constant.append(target.constant * (parameter.nominal if frozen else 1.0))
        column.context.append(context)

    def _column(self, parameter: str, name: str) -> int:
        if name not in self.context_names:
            raise ConfigError(
                f"parameter {parameter}: factor '{name}' is no [[context]] of robot.toml"
                f"{nearest(name, self.context_names)}"
            )
        return self.context_names.index(name)

    def values(self, cells: Cells, physical: Array, context: Array) -> Array:
        """Values (n, T) for the cells from physical (n, P) and context (n, X)."""
        padded = np.concatenate([physical, np.ones((len(physical), 1))], axis=1)  # owner -1 reads the 1
        value = padded[:, cells.owner] * cells.constant
        for column, factors in enumerate(cells.context):
            for x in factors:
                value[:, column] = value[:, column] * context[:, x]
        if cells.inertia is not None:
            value[:, cells.inertia.column] = cells.inertia.values(padded)
        return np.asarray(value)

    def write(self, model: mujoco.MjModel, physical: Array, context: Array) -> None:
        """Write physical (P,) under context (X,) into the model in place, with mj_setConst where needed."""
        for cells in self.cells:
            assign(model, cells.field, cells.flat, self.values(cells, physical[None], context[None])[0])
        if self.needs_set_const:
            mujoco.mj_setConst(model, mujoco.MjData(model))
