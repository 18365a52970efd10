"""An MJCF with values written into it, as text that compiles to what the values make of the compiled model."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import mujoco
import numpy as np
from numpy.typing import NDArray

from gapd.model.binding import Binding
from gapd.model.mjcf import collecting
from gapd.model.model_fields import physics
from gapd.model.parameters import Parameter, ParameterSet

Array = NDArray[np.float64]

# MuJoCo writes six digits.
TOLERANCE = 2e-5
# Sines of right angles and the like: what is 0 in one model may be this much in the other.
_ROUNDING = 1e-15
# Fields whose numbers the compiler makes of several: exact to the size of all of a row.
_TOGETHER = ("quat", "pos", "surfacevel", "eq_data")
_REFUSALS = (mujoco.FatalError, mujoco.UnexpectedError, ValueError)


def corrected_mjcf(
    source: Path, parameters: ParameterSet, physical: Array, context: Mapping[str, float], folder: Path | None = None
) -> tuple[str, str]:
    """The MJCF at `source` with the values (P,) in it, and why it is not the corrected model, which names a parameter.

    `folder` is where the text will stand: files of meshes are named from there, with None by their full path. Only a
    text without a fault compiles to the model with the values written in place, to 2e-5 in every field.
    """
    every = [*zip(parameters.free, np.asarray(physical).tolist(), strict=True)]
    every += [(msgspec.structs.replace(p, frozen=False), p.nominal) for p in parameters.frozen]
    writer = _Writer(source, context, folder)
    text, fault = writer.write(every)
    return text, writer.named(every, fault) if fault else ""


_Valued = tuple[Parameter, float]


@dataclass(frozen=True)
class _Writer:
    """Writes values into one MJCF."""

    source: Path
    context: Mapping[str, float]
    folder: Path | None

    def write(self, valued: Sequence[_Valued]) -> tuple[str, str]:
        """The MJCF with some values, and what is wrong with it."""
        try:
            with collecting([]):
                spec = mujoco.MjSpec.from_file(str(self.source))
                model = spec.compile()
                before = copy.copy(model)
                self._correct(model, valued)
                inheriting = [a for a in spec.actuators if a.inheritrange]
                spec.copy_back(model)
                _complete(spec, before, model)
                _keep_ranges(inheriting, model)
                own = _name_files(spec, self.source.resolve().parent)
                text = str(spec.to_xml())
                fault = difference(model, mujoco.MjModel.from_xml_string(text))
                if self.folder is not None and self.folder.resolve() == self.source.resolve().parent:
                    spec.meshdir, spec.texturedir = own
                    text = str(spec.to_xml())
                return text, fault
        except _REFUSALS as error:
            return "", "MuJoCo refuses it (" + " ".join(str(error).split()) + ")"

    def _correct(self, model: mujoco.MjModel, valued: Sequence[_Valued]) -> None:
        if valued:
            binding = Binding(model, ParameterSet([parameter for parameter, _ in valued]), tuple(self.context))
            binding.write(model, np.array([value for _, value in valued]), np.array([*self.context.values()], float))

    def named(self, valued: Sequence[_Valued], fault: str) -> str:
        """The fault, with the parameter that has it: halves are tried until one is alone."""
        fault_of_none = self.write([])[1]
        if fault_of_none:
            return f"without any correction, {fault_of_none}"
        while len(valued) > 1:
            middle = len(valued) // 2
            faults = ((half, self.write(half)[1]) for half in (valued[:middle], valued[middle:]))
            half, its_fault = next(((h, f) for h, f in faults if f), ([], ""))
            if not its_fault:
                return f"parameters {valued[0][0].name} to {valued[-1][0].name} together: {fault}"
            valued, fault = half, its_fault
        parameter, value = valued[0]
        return f"parameter {parameter.name} = {value:g}: {fault}"


def _name_files(spec: Any, folder: Path) -> tuple[str, str]:
    """Name the folders of meshes and textures by their full path; returns what the MJCF calls them."""
    own = str(spec.meshdir), str(spec.texturedir)
    if any(len(files) for files in (spec.meshes, spec.hfields, spec.skins)):
        spec.meshdir = str(folder / own[0])
    if len(spec.textures):
        spec.texturedir = str(folder / own[1])
    return own


def _complete(spec: Any, before: mujoco.MjModel, model: mujoco.MjModel) -> None:
    """Write to the spec what `MjSpec.copy_back` of MuJoCo 4.0 leaves out."""
    for elements, field, attribute in (
        (spec.bodies, "body_gravcomp", "gravcomp"),
        (spec.joints, "jnt_actfrcrange", "actfrcrange"),
        (spec.actuators, "actuator_delay", "delay"),
        (spec.sensors, "sensor_delay", "delay"),
        (spec.sensors, "sensor_interval", "interval"),
    ):
        for element in _changed(elements, field, before, model):
            setattr(element, attribute, getattr(model, field)[element.id])
    for joint in _changed(spec.joints, "jnt_actfrcrange", before, model):
        joint.actfrclimited = int(model.jnt_actfrclimited[joint.id])  # a range alone would switch the limit on
    shapes = ("geom_pos", "geom_quat", "geom_size")
    for body in {
        geom.parent.id: geom.parent for f in shapes for geom in _changed(spec.geoms, f, before, model)
    }.values():
        _keep_inertia(body, model)


def _changed(elements: Any, field: str, before: mujoco.MjModel, model: mujoco.MjModel) -> list[Any]:
    """Elements of the spec, among those that are in the model, whose row of the field is not what it was."""
    old, new = getattr(before, field), getattr(model, field)
    return [e for e in elements if e.id >= 0 and np.any(old[e.id] != new[e.id])]


def _keep_ranges(inheriting: Sequence[Any], model: mujoco.MjModel) -> None:
    """Name ranges that the compiler takes from a joint or tendon: where its limits move, commands keep theirs."""
    for actuator in inheriting:
        number = actuator.id
        first = model.actuator_ctrladr[number]
        if model.actuator_ctrllimited[first]:
            actuator.ctrlrange = model.actuator_ctrlrange[first]
        if model.actuator_actlimited[number]:
            actuator.actrange = model.actuator_actrange[number]
        actuator.inheritrange = 0


def _keep_inertia(body: Any, model: mujoco.MjModel) -> None:
    """Name the inertia that the compiler takes from geoms: where those move, the mass stays."""
    if body.id > 0:
        body.explicitinertial, number = True, body.id
        body.mass, body.inertia = model.body_mass[number], model.body_inertia[number]
        body.ipos, body.iquat = model.body_ipos[number], model.body_iquat[number]


def difference(wanted: mujoco.MjModel, written: mujoco.MjModel) -> str:
    """The first field of one model that is not that of the other to TOLERANCE, with both values; empty if none."""
    for (field, a), (_, b) in zip(physics(wanted), physics(written), strict=True):
        if a.shape != b.shape:
            return f"{field} has {len(b)} rows in the MJCF, not {len(a)}"
        wrong = np.argwhere(_differs(field, a, b))
        if len(wrong):
            at = tuple(wrong[0].tolist())
            where = "".join(f"[{i}]" for i in at)
            return f"{field}{where} comes back from the MJCF as {b[at]:g}, not {a[at]:g}"
    return ""


def _differs(field: str, wanted: NDArray[Any], written: NDArray[Any]) -> NDArray[np.bool_]:
    """Where two arrays of one shape differ."""
    if wanted.dtype.kind != "f":
        return np.asarray(wanted != written)
    size = np.abs(wanted)
    if field.endswith(_TOGETHER):
        size = size.max(axis=-1, keepdims=True, initial=0.0)
    with np.errstate(invalid="ignore"):  # ranges may be infinite
        near = np.isfinite(wanted) & (np.abs(wanted - written) <= TOLERANCE * size + _ROUNDING)
    return np.asarray((wanted != written) & ~near)
