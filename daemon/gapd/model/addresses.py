"""Where a target lies in an MjModel: field, element and index, or a line that says what does not exist."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

import mujoco
import numpy as np
from mujoco import batch

from gapd.errors import ConfigError, nearest
from gapd.model.inertia import PARTS
from gapd.model.model_fields import (
    OPTIONS,
    count,
    derived,
    element_names,
    object_of,
    rows_of,
    tunable,
    values,
)
from gapd.model.parameters import Target

_NUMBER = re.compile(r"#(\d{1,9})")


class Addresses:
    """The cells of one model that targets may write."""

    def __init__(self, model: mujoco.MjModel) -> None:
        """Keep the model, and the names of its fields that hold numbers of robots."""
        self._model = model
        self._tunable = tunable(model)

    def cell(self, parameter: str, target: Target) -> int:
        """Place in the flattened field; ConfigError for what is no field, element or index to write."""
        _require_tunable(parameter, target.field, self._tunable)
        array = values(self._model, target.field)
        kind = object_of(target.field)
        if kind is None:  # an option
            first, size = 0, array.size
        else:
            row, rows = rows_of(self._model, target.field, element_number(self._model, parameter, target, kind))
            inner = int(np.prod(array.shape[1:]))
            first, size = row * inner, rows * inner
        return first + _index(parameter, target, size)

    def number(self, parameter: str, target: Target) -> tuple[int, int]:
        """Body of an inertia target, and its place among the body's ten numbers; ConfigError as in `cell`."""
        if target.field not in PARTS:
            hint = nearest(target.field, PARTS)
            raise ConfigError(f"parameter {parameter}: field '{target.field}' is no part of an inertia{hint}")
        body = element_number(self._model, parameter, target, mujoco.mjtObj.mjOBJ_BODY)
        first, size = PARTS[target.field]
        return body, first + _index(parameter, target, size)


def element_number(model: mujoco.MjModel, parameter: str, target: Target, kind: mujoco.mjtObj) -> int:
    """Number of the target's element by its name, or by #number if it has none; ConfigError if there is no such."""
    number = int(mujoco.mj_name2id(model, kind, target.element))
    if number >= 0:
        return number
    label, written = kind.name[6:].lower(), _NUMBER.fullmatch(target.element)
    if written is None:
        known = element_names(model, kind)
        hint = nearest(target.element, known) if known else "; address one without a name by its number, as in '#0'"
        raise ConfigError(f"parameter {parameter}: {label} '{target.element}' is not in the model{hint}")
    number, size = int(written[1]), count(model, kind)
    if number >= size:
        raise ConfigError(f"parameter {parameter}: {label} '{target.element}' is not in the model, which has {size}")
    name = mujoco.mj_id2name(model, kind, number)
    if name:
        raise ConfigError(f"parameter {parameter}: {label} '{target.element}' has a name; write element = '{name}'")
    return number


def _index(parameter: str, target: Target, size: int) -> int:
    if not 0 <= target.index < size:
        raise ConfigError(f"parameter {parameter}: index {target.index} of {target.field} is outside 0 .. {size - 1}")
    return target.index


def _require_tunable(parameter: str, field: str, known: Sequence[str]) -> None:
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
