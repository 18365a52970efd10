"""Parameters of a task: those that write into the model, and those that only the task knows what to do with."""

from __future__ import annotations

import mujoco
import numpy as np
from mujoco import batch
from numpy.typing import NDArray

from gapd.errors import ConfigError, nearest
from gapd.model.binding import Binding
from gapd.model.parameters import Parameter, ParameterSet

Array = NDArray[np.float64]
# A target `field = "task.camera_x"` is no field of MjModel: the task reads the value by that name.
PREFIX = "task."


class TaskParameters:
    """Parameters of a task resolved against its model and the names of the task's own parameters."""

    def __init__(self, model: mujoco.MjModel, space: ParameterSet, own: tuple[str, ...]) -> None:
        """ConfigError for what neither the model nor the task has."""
        self.space = space
        mine = np.array([_is_own(p) for p in space.free])
        self._columns = np.flatnonzero(~mine)
        self._own = {name: [] for name in own}  # type: dict[str, list[int]]
        for column in np.flatnonzero(mine):
            for target in space.free[column].targets:
                self._claim(target.field.removeprefix(PREFIX), int(column))
        held = [p for p in space.frozen if _is_own(p)]
        self._held = {t.field.removeprefix(PREFIX): p.nominal for p in held for t in p.targets}
        in_model = [space.free[i] for i in self._columns] + [p for p in space.frozen if p not in held]
        self._binding = Binding(model, ParameterSet(in_model), ())

    def _claim(self, name: str, column: int) -> None:
        if name not in self._own:
            raise ConfigError(
                f"parameter {self.space.names[column]}: the task has no '{PREFIX}{name}'{nearest(name, self._own)}"
            )
        self._own[name].append(column)

    def own(self, name: str, physical: Array, default: float) -> Array:
        """Values (n,) of one of the task's own parameters from physical (n, P)."""
        columns = self._own[name]
        if columns:
            return np.asarray(physical[:, columns[0]])
        return np.full(len(physical), self._held.get(name, default))

    def write(self, sims: batch.Batch, physical: Array) -> None:
        """Write physical (n, P) into the models of n simulations."""
        values = physical[:, self._columns]
        context = np.empty((len(values), 0))
        for cells in self._binding.cells:
            field = sims.expand(cells.field).reshape(len(values), -1)
            field[:, cells.flat] = self._binding.values(cells, values, context)
        if self._binding.needs_set_const:
            sims.set_const()


def _is_own(parameter: Parameter) -> bool:
    return all(t.field.startswith(PREFIX) for t in parameter.targets)
