"""What the enumeration finds: parameters in families, and what it leaves out with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import mujoco

from gapd.errors import ConfigError
from gapd.limits import text_fault
from gapd.model.model_fields import count
from gapd.model.parameters import Parameter, Target
from gaptrain.enumeration.ranges import Range

KINDS = {
    "joint": mujoco.mjtObj.mjOBJ_JOINT,
    "body": mujoco.mjtObj.mjOBJ_BODY,
    "actuator": mujoco.mjtObj.mjOBJ_ACTUATOR,
    "geom": mujoco.mjtObj.mjOBJ_GEOM,
    "pair": mujoco.mjtObj.mjOBJ_PAIR,
    "tendon": mujoco.mjtObj.mjOBJ_TENDON,
    "equality": mujoco.mjtObj.mjOBJ_EQUALITY,
    "sensor": mujoco.mjtObj.mjOBJ_SENSOR,
}


@dataclass(frozen=True)
class Family:
    """Parameters of one kind: a comment of theirs in the file says where the bounds come from."""

    title: str
    bounds: str
    off: int = 0  # bits of mjtDisableBit that leave these parameters without effect


@dataclass(frozen=True)
class Found:
    """One parameter of a family."""

    family: Family
    parameter: Parameter


@dataclass(frozen=True)
class Omission:
    """What is no parameter, and why."""

    what: str
    reason: str


Item = Found | Omission


@dataclass(frozen=True)
class Element:
    """One joint, body, ... of a model: its number, and how names and targets call it."""

    kind: str
    number: int
    label: str

    def name(self, attribute: str) -> str:
        """Name of a parameter, as joint/elbow/damping."""
        return f"{self.kind}/{self.label}/{attribute}"

    def target(self, field: str, index: int = 0, *factor: float) -> Target:
        """A cell of it."""
        return Target(field, self.label, index, factor)

    def omitted(self, attribute: str, reason: str) -> Omission:
        """One of its attributes that is no parameter."""
        return Omission(self.name(attribute), reason)

    def item(self, family: Family, attribute: str, unit: str, span: Range, *targets: Target) -> Item:
        """A parameter, or an omission where these bounds make none."""
        return item(family, self.name(attribute), unit, span, *targets)


def item(family: Family, name: str, unit: str, span: Range, *targets: Target) -> Item:
    """A parameter, or an omission where these bounds make none."""
    nominal, low, high = (float(x) for x in (span.nominal, span.min, span.max))
    parameter = Parameter(name, nominal, low, high, targets, unit, span.scale)
    try:
        parameter.check()
    except ConfigError as fault:
        return Omission(name, str(fault).removeprefix(f"parameter {name}: "))
    return Found(family, parameter)


def elements(model: mujoco.MjModel, kind: str) -> Iterator[Element]:
    """All elements of a kind that a target can address."""
    for number in range(count(model, KINDS[kind])):
        label = _label(model, kind, number)
        if not text_fault(label):
            yield Element(kind, number, label)


def unaddressable(model: mujoco.MjModel) -> Iterator[Omission]:
    """Elements whose name no configuration may contain."""
    for kind, objects in KINDS.items():
        for number in range(count(model, objects)):
            fault = text_fault(_label(model, kind, number))
            if fault:
                yield Omission(f"{kind}/#{number}/*", f"its name {fault}")


def doubled_label(model: mujoco.MjModel) -> str:
    """What is wrong where an element is named as another of its kind is called by its number; empty if none is."""
    for kind, objects in KINDS.items():
        labels = Counter(_label(model, kind, number) for number in range(count(model, objects)))
        for label, times in labels.items():
            if times > 1:
                return (
                    f"a {kind} is named '{label}', which is what the {kind} without a name there is called; rename it"
                )
    return ""


def _label(model: mujoco.MjModel, kind: str, number: int) -> str:
    """Name of an element, or #number if it has none."""
    return mujoco.mj_id2name(model, KINDS[kind], number) or f"#{number}"
