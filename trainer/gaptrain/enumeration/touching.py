"""Which geoms can touch anything in a way that their own numbers count."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.intp]


def touching(model: mujoco.MjModel) -> Index:
    """Largest dimension (ngeom,) of the contacts that use a geom's friction and solver parameters; 0 if there are none.

    MuJoCo's rules: types and affinities match; bodies are neither the same (or welded) nor parent and child, unless
    the parent is the world; pairs that are declared or excluded have no contact of this kind; of two geoms that of
    higher priority gives all numbers.
    """
    apart = _declared(model)
    result = np.zeros(model.ngeom, np.intp)
    for geom in range(model.ngeom):
        others = _affine(model, geom) & _bodies_collide(model, geom)
        others[list(apart.get(geom, ()))] = False
        others &= model.geom_priority <= model.geom_priority[geom]
        same = model.geom_priority == model.geom_priority[geom]
        own = int(model.geom_condim[geom])
        dimension = np.where(same, np.maximum(model.geom_condim, own), own)
        result[geom] = dimension[others].max(initial=_with_flexes(model, geom))
    return result


def _affine(model: mujoco.MjModel, geom: int) -> NDArray[np.bool_]:
    """Geoms (ngeom,) whose contact type meets the affinity of this one, or the other way round."""
    there = model.geom_contype & model.geom_conaffinity[geom]
    here = model.geom_contype[geom] & model.geom_conaffinity
    return np.asarray((there | here) != 0)


def _bodies_collide(model: mujoco.MjModel, geom: int) -> NDArray[np.bool_]:
    """Geoms (ngeom,) on bodies that may collide with this one's."""
    body = int(model.geom_bodyid[geom])
    weld, other = int(model.body_weldid[body]), model.body_weldid[model.geom_bodyid]
    allowed = other != weld
    if not model.opt.disableflags & int(mujoco.mjtDisableBit.mjDSBL_FILTERPARENT):
        parent = model.body_weldid[model.body_parentid]
        kin = (parent[weld] == other) | (parent[other] == weld)
        allowed &= ~(kin & (weld != 0) & (other != 0))
    low, high = np.minimum(body, model.geom_bodyid), np.maximum(body, model.geom_bodyid)
    return np.asarray(allowed & ~np.isin((low << 16) + high, model.exclude_signature))


def _declared(model: mujoco.MjModel) -> dict[int, set[int]]:
    """Geoms with which each has a declared pair."""
    apart: dict[int, set[int]] = {}
    for one, two in zip(model.pair_geom1.tolist(), model.pair_geom2.tolist(), strict=True):
        apart.setdefault(one, set()).add(two)
        apart.setdefault(two, set()).add(one)
    return apart


def _with_flexes(model: mujoco.MjModel, geom: int) -> int:
    """Largest dimension of contacts with flexes."""
    there = model.flex_contype & model.geom_conaffinity[geom]
    here = model.geom_contype[geom] & model.flex_conaffinity
    met = (there | here) != 0
    return int(np.maximum(model.flex_condim, model.geom_condim[geom])[met].max(initial=0))
