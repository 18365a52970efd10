"""Targets that together give bodies an inertia which can exist: `inertia.mass`, `.com`, `.spread` and `.axes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from gapd.errors import ConfigError
from gapd.model.addresses import Addresses
from gapd.model.inertia import DECIDES, FIELDS, InertiaCells, numbers_of
from gapd.model.parameters import Parameter, Target

Array = NDArray[np.float64]


@dataclass
class _Body:
    """One body with such targets."""

    owner: NDArray[np.intp]  # (10,) parameter that gives the number, -1 where it is constant
    constant: Array  # (10,) factor of the parameter, or the constant itself
    writer: dict[int, tuple[str, str]]  # parameter and field by place among the ten numbers

    def decides(self, field: str) -> bool:
        """Whether any of its targets decides the field."""
        return any(part in DECIDES[field] for _, part in self.writer.values())


class InertiaTargets:
    """The inertia targets of one set of parameters, by body."""

    def __init__(self, model: mujoco.MjModel) -> None:
        """Keep the model: numbers of a body that no parameter gives are constant at its values."""
        self._model = model
        self._bodies: dict[int, _Body] = {}

    def add(self, addresses: Addresses, parameter: Parameter, target: Target, owner: int) -> None:
        """Take one target of a free (owner >= 0) or frozen parameter; ConfigError if it cannot be."""
        number, place = addresses.number(parameter.name, target)
        self._require_possible(number, parameter, target)
        body = self._bodies.setdefault(
            number, _Body(np.full(10, -1, np.intp), numbers_of(self._model, number), {})
        )  # fmt: skip
        if place in body.writer:
            raise ConfigError(
                f"parameters {body.writer[place][0]} and {parameter.name} both write {target.field} of "
                f"{target.element}; make them one parameter with two targets, or freeze and remove one"
            )
        body.writer[place] = (parameter.name, target.field)
        body.owner[place] = owner
        body.constant[place] = target.constant * (parameter.nominal if owner < 0 else 1.0)

    def _require_possible(self, body: int, parameter: Parameter, target: Target) -> None:
        what = f"parameter {parameter.name}: {target.field} of {target.element}"
        if target.context:
            raise ConfigError(f"{what} takes numbers as factors, not '{target.context[0]}'; write body_mass for that")
        if self._model.body_mass[body] <= 0:
            raise ConfigError(f"{what} scales a mass of 0; give the body a mass in the MJCF")
        lowest = min(parameter.min * target.constant, parameter.max * target.constant)
        if target.field == "inertia.mass" and lowest <= 0:
            raise ConfigError(f"{what} must stay above 0, not go down to {lowest:g}; correct its bounds")
        if target.field == "inertia.spread" and lowest < 0:
            raise ConfigError(f"{what} must not be negative, as {lowest:g} is; correct its bounds")

    def require_alone(self, ordinary: Mapping[str, Mapping[int, str]]) -> None:
        """ConfigError where an ordinary target, by field and flat index, writes the same body's mass or inertia."""
        for field, (_, size) in FIELDS.items():
            for flat, parameter in ordinary.get(field, {}).items():
                body = flat // size
                if body in self._bodies:
                    other, part = next(iter(self._bodies[body].writer.values()))
                    name = self._model.body(body).name or f"#{body}"
                    raise ConfigError(
                        f"parameters {parameter} and {other}: {field} and {part} of {name} both write its inertia; "
                        f"use body_* or inertia.* for one body, not both"
                    )

    def writes(self, field: str) -> bool:
        """Whether some body decides the field."""
        return any(body.decides(field) for body in self._bodies.values())

    def cells(self, field: str, first: int) -> InertiaCells | None:
        """Cells of the field, of which the first lies in column `first` of the binding's; None if there are none."""
        bodies = {number: body for number, body in self._bodies.items() if field in FIELDS and body.decides(field)}
        if not bodies:
            return None
        start, size = FIELDS[field]
        inner, count = np.arange(size), len(bodies)
        return InertiaCells(
            column=first + np.arange(count * size),
            flat=np.repeat([*bodies], size) * size + np.tile(inner, count),
            body=np.repeat(np.arange(count), size),
            place=np.tile(start + inner, count),
            owner=np.stack([body.owner for body in bodies.values()]),
            constant=np.stack([body.constant for body in bodies.values()]),
        )
