"""`gaptrain enumerate`: an MJCF in, a parameters.toml with all its tunable numbers out.

Left out on purpose: geometry (places, sizes and axes of bodies, joints, geoms, sites; moment arms of tendons), limits
of commands, flexes, and numbers of the method such as step and solver: those are measured or designed, not identified.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import mujoco
import numpy as np

from gapd.errors import ConfigError, printable
from gapd.model.binding import Binding
from gapd.model.mjcf import collecting, compile_file
from gapd.model.parameters import ParameterSet
from gapd.typed_toml import MAX_BYTES
from gaptrain.enumeration.actuators import actuators
from gaptrain.enumeration.bodies import bodies
from gaptrain.enumeration.contacts import contacts
from gaptrain.enumeration.entries import Found, Item, Omission, doubled_label, unaddressable
from gaptrain.enumeration.equalities import equalities
from gaptrain.enumeration.joints import joints
from gaptrain.enumeration.magnitudes import magnitudes
from gaptrain.enumeration.tendons import tendons
from gaptrain.enumeration.ties import tie
from gaptrain.enumeration.toml_text import by_family, toml_text
from gaptrain.enumeration.world import sensors, world


def enumerate_parameters(path: Path, out: Path, ties: Sequence[str] = (), *, force: bool = False) -> str:
    """Write all parameters of the MJCF at `path` to `out`; returns a summary. ConfigError says what is in the way."""
    _require_free(out, path, force)
    found, omitted = find(path, ties)
    text = toml_text(printable(path.name), found, omitted)
    if len(text.encode()) > MAX_BYTES:
        raise ConfigError(f"{path}: {len(found)} parameters fill more than {MAX_BYTES} bytes; tie some with --tie")
    part = out.with_name(f"{out.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(out)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(out)) from None
    finally:
        if part.is_file():
            part.unlink()
    return _summary(out, found, omitted)


def _require_free(out: Path, model: Path, force: bool) -> None:
    """ConfigError where `out` must not or cannot be written."""
    if out.exists() and not out.is_file():
        raise ConfigError(f"{out}: is no file; name one with --out")
    if out.exists() and model.exists() and out.samefile(model):
        raise ConfigError(f"{out}: is the model itself; name another file with --out")
    if out.exists() and not force:
        raise ConfigError(f"{out}: exists; name another file with --out, or replace it with --force")
    if not out.parent.is_dir():
        raise ConfigError(f"{out}: no folder {out.parent}; make it, or name another")


def find(path: Path, ties: Sequence[str] = ()) -> tuple[list[Found], list[Omission]]:
    """Parameters of an MJCF, tied as asked for, and what was left out; ConfigError if it has none."""
    model = compile_file(path)
    if model.nv == 0:
        raise ConfigError(f"model {path}: has no joints, so that nothing moves and no number matters; add joints")
    double = doubled_label(model)
    if double:
        raise ConfigError(f"model {path}: {double}")
    with collecting([]):
        items = list(_items(model))
        found, refused = _accepted(model, [i for i in items if isinstance(i, Found)])
    omitted = [i for i in items if isinstance(i, Omission)]
    if not found:
        raise ConfigError(f"model {path}: has no tunable number; enable in <option> what is disabled there")
    return tie(found, ties), [*omitted, *refused]


def _items(model: mujoco.MjModel) -> Iterator[Item]:
    """All parameters and omissions; what a flag of the MJCF switches off is left out."""
    sizes = magnitudes(model)
    parts = (
        joints(model, sizes.dof), bodies(model), actuators(model, sizes.actuator), tendons(model, sizes.tendon),
        equalities(model, sizes), contacts(model), world(model), sensors(model), unaddressable(model),
    )  # fmt: skip
    for item in chain(*parts):
        if isinstance(item, Found) and model.opt.disableflags & item.family.off:
            yield Omission(item.parameter.name, "is disabled by a flag of the MJCF")
        else:
            yield item


def _accepted(model: mujoco.MjModel, found: list[Found]) -> tuple[list[Found], list[Omission]]:
    """Those whose bounds MuJoCo takes, and those it refuses: halves are tried until the ones at fault are alone."""
    reason = _refusal(model, found)
    if not reason:
        return found, []
    if len(found) == 1:
        return [], [Omission(found[0].parameter.name, f"is refused by MuJoCo ({reason})")]
    middle = len(found) // 2
    one, other = _accepted(model, found[:middle]), _accepted(model, found[middle:])
    return one[0] + other[0], one[1] + other[1]


def _refusal(model: mujoco.MjModel, found: Sequence[Found]) -> str:
    """Why MuJoCo does not take the model with these parameters at their bounds; empty if it does."""
    if not found:
        return ""
    space = ParameterSet([f.parameter for f in found])
    binding = Binding(model, space, ())
    try:
        for bound in (space.min, space.max):
            binding.write(copy.copy(model), bound, np.empty(0))
    except (mujoco.FatalError, mujoco.UnexpectedError, ValueError) as error:
        return " ".join(str(error).split())
    return ""


def _summary(out: Path, found: Sequence[Found], omitted: Sequence[Omission]) -> str:
    families = by_family(found)
    width = max(len(family.title) for family in families)
    rows = [f"  {family.title:{width}}  {len(parameters):5}" for family, parameters in families.items()]
    return "\n".join([f"{out}: {len(found)} parameters, {len(omitted)} left out with the reason in the file", *rows])
