"""Fields of MjModel: which hold numbers that a robot may have otherwise, and which make two models the same."""

from __future__ import annotations

from collections.abc import Iterator

import mujoco
import numpy as np
from mujoco import batch
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Fields over joint coordinates that no prefix tells.
JOINT_COORDINATES = ("qpos0", "qpos_spring")
# Fields over outputs and controls of actuators: an orientation servo has three outputs, a pid up to three controls.
OF_OUTPUTS = ("actuator_gear", "actuator_length0", "actuator_lengthrange", "actuator_acc0")
OF_CONTROLS = ("actuator_ctrlrange", "actuator_ctrllimited")
_FREE, _BALL, _SLIDE, _HINGE = (
    int(getattr(mujoco.mjtJoint, f"mjJNT_{name}")) for name in ("FREE", "BALL", "SLIDE", "HINGE")
)
_DOFS = {_FREE: 6, _BALL: 3, _SLIDE: 1, _HINGE: 1}
_COORDINATES = {_FREE: 7, _BALL: 4, _SLIDE: 1, _HINGE: 1}
# Options that belong to the world. The others belong to the method: step, solver, tolerances.
OPTIONS = ("opt.gravity", "opt.wind", "opt.magnetic", "opt.density", "opt.viscosity")
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
# The compiler and mj_setConst compute these from other fields: what is written there is lost or contradicts them.
_DERIVED = (
    "actuator_lengthrange", "body_margin", "body_subtreemass", "dof_length", "geom_aabb", "geom_rbound",
    "B_", "D_", "M_", "map", "efm", "bvh_", "ten_J", "flexedge_J",
)  # fmt: skip
_DERIVED_ENDINGS = ("_invweight0", "_acc0", "_M0", "_length0")
# Nothing moves otherwise for these.
_LOOKS = ("cam_", "light_", "mat_", "name", "text_", "key_", "numeric_", "tuple_")
_LOOKS_ENDINGS = ("_user", "_rgba", "_group", "_matid", "_width", "_castshadow", "_texcoord", "sensor_noise")


def derived(field: str) -> bool:
    """Whether MuJoCo computes the field from others."""
    return field.startswith(_DERIVED) or field.endswith(_DERIVED_ENDINGS)


def _looks(field: str) -> bool:
    return field.startswith(_LOOKS) or field.endswith(_LOOKS_ENDINGS)


def values(model: mujoco.MjModel, field: str) -> NDArray[np.generic]:
    """The field's array, or the number of an option as one without axes."""
    holder = model.opt if field.startswith("opt.") else model
    return np.asarray(getattr(holder, field.removeprefix("opt.")))


def assign(model: mujoco.MjModel, field: str, flat: NDArray[np.intp], value: Array) -> None:
    """Write cells (T,) of the flattened field in place."""
    array = values(model, field)
    if array.ndim:
        array.reshape(-1)[flat] = value
    else:
        setattr(model.opt, field.removeprefix("opt."), float(value[-1]))


def tunable(model: mujoco.MjModel) -> list[str]:
    """Fields that a parameter may write: physical numbers of named elements, and OPTIONS."""
    found = [
        field
        for field in batch.MODEL_FIELDS
        if (object_of(field) is not None)
        and not derived(field)
        and not _looks(field)
        and values(model, field).dtype.kind == "f"
    ]
    return sorted([*found, *OPTIONS])


def object_of(field: str) -> mujoco.mjtObj | None:
    """Kind of element that a row of the field belongs to."""
    kind = "jnt" if field in JOINT_COORDINATES else field.split("_", maxsplit=1)[0]
    return _OBJECT_OF_PREFIX.get(kind)


def physics(model: mujoco.MjModel) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """All given fields, options and flags that a motion or measurement may depend on, in order of name."""
    for field in sorted(batch.MODEL_FIELDS):
        if not derived(field) and not _looks(field):
            yield field, values(model, field)


def rows_of(model: mujoco.MjModel, field: str, element: int) -> tuple[int, int]:
    """First row of an element in the field, and how many it has: free and ball joints, some actuators have several."""
    if field.startswith("dof_"):
        return int(model.jnt_dofadr[element]), _DOFS[int(model.jnt_type[element])]
    if field in JOINT_COORDINATES:
        return int(model.jnt_qposadr[element]), _COORDINATES[int(model.jnt_type[element])]
    if field in OF_OUTPUTS:
        return int(model.actuator_outadr[element]), int(model.actuator_outnum[element])
    if field in OF_CONTROLS:
        return int(model.actuator_ctrladr[element]), int(model.actuator_ctrlnum[element])
    return element, 1


def count(model: mujoco.MjModel, kind: mujoco.mjtObj) -> int:
    """How many elements of a kind the model has."""
    counts = {"joint": model.njnt, "actuator": model.nactuator, "equality": model.neq}
    label = kind.name[6:].lower()
    return int(counts[label] if label in counts else getattr(model, f"n{label}"))


def element_names(model: mujoco.MjModel, kind: mujoco.mjtObj) -> list[str]:
    """Names of the model's elements of a kind; those without a name are left out."""
    names = (mujoco.mj_id2name(model, kind, i) for i in range(count(model, kind)))
    return [n for n in names if n]
