"""Parameters of contacts: friction, stiffness and adhesion of geoms that can touch, and of pairs that are declared."""

from __future__ import annotations

from collections.abc import Iterator

import mujoco

from gaptrain.enumeration.entries import Element, Family, Item, elements
from gaptrain.enumeration.ranges import ratio
from gaptrain.enumeration.solver import NO_CONTACT, Solver, impedance, impedance_family, reference, reference_family
from gaptrain.enumeration.touching import touching

_FRICTION = (
    "a quarter to four times the model's value; a sliding friction of 0 up to 1, spinning and rolling friction of 0 up "
    "to 0.01 m"
)
FRICTION = Family("geom friction", _FRICTION, NO_CONTACT)
SOLREF, SOLIMP = (make("geom contact", NO_CONTACT) for make in (reference_family, impedance_family))
PAIR_FRICTION = Family("pair friction", _FRICTION, NO_CONTACT)
PAIR_SOLREF, PAIR_SOLIMP = (make("pair contact", NO_CONTACT) for make in (reference_family, impedance_family))
PAIR_SOLREF_FRICTION = reference_family("pair friction", NO_CONTACT)

# Attribute, unit, value that one of 0 may reach, smallest dimension of a contact in which it acts.
_GEOM = (("slide", "1", 1.0, 3), ("spin", "m", 0.01, 4), ("roll", "m", 0.01, 6))
# The same with the places in pair_friction: two tangents, spin, two rolls.
_PAIR = (("slide", "1", 1.0, 3, (0, 1)), ("spin", "m", 0.01, 4, (2,)), ("roll", "m", 0.01, 6, (3, 4)))


def contacts(model: mujoco.MjModel) -> Iterator[Item]:
    """All parameters of geoms and pairs."""
    if model.opt.enableflags & int(mujoco.mjtEnableBit.mjENBL_OVERRIDE):
        for kind in ("geom", "pair"):
            yield from (
                e.omitted("*", "<option> overrides contact parameters in the MJCF") for e in elements(model, kind)
            )
        return
    dimension = touching(model)
    for element in elements(model, "geom"):
        yield from _geom(model, element, int(dimension[element.number]))
    for element in elements(model, "pair"):
        yield from _pair(model, element)


def _geom(model: mujoco.MjModel, element: Element, dimension: int) -> Iterator[Item]:
    """Parameters of a geom whose contacts have at most so many dimensions."""
    number = element.number
    if not dimension:
        yield element.omitted("*", "touches nothing whose contact would use its numbers")
        return
    for index, (attribute, unit, most, least) in enumerate(_GEOM):
        if dimension >= least:
            span = ratio(float(model.geom_friction[number, index]), 4.0, most)
            yield element.item(FRICTION, f"friction_{attribute}", unit, span, element.target("geom_friction", index))
        else:
            yield element.omitted(f"friction_{attribute}", "acts in no contact of so few dimensions (condim)")
    solver = Solver(element, "contact_", "geom_solref", "geom_solimp", "m")
    yield from reference(SOLREF, solver, model.geom_solref[number])
    yield from impedance(SOLIMP, solver, model.geom_solimp[number])


def _pair(model: mujoco.MjModel, element: Element) -> Iterator[Item]:
    number = element.number
    for attribute, unit, most, least, places in _PAIR:
        if model.pair_dim[number] >= least:
            yield from _pair_friction(model, element, attribute, unit, most, places)
        else:
            yield element.omitted(f"friction_{attribute}", "acts in no contact of so few dimensions (condim)")
    solver = Solver(element, "contact_", "pair_solref", "pair_solimp", "m")
    yield from reference(PAIR_SOLREF, solver, model.pair_solref[number])
    yield from impedance(PAIR_SOLIMP, solver, model.pair_solimp[number])
    if model.opt.cone != int(mujoco.mjtCone.mjCONE_ELLIPTIC):
        return  # pyramids have no friction dimension of their own
    along = Solver(element, "contact_friction_", "pair_solreffriction", "pair_solimp", "m")
    yield from reference(PAIR_SOLREF_FRICTION, along, model.pair_solreffriction[number], friction=True)


def _pair_friction(
    model: mujoco.MjModel, element: Element, attribute: str, unit: str, most: float, places: tuple[int, ...]
) -> Iterator[Item]:
    """One parameter where both directions are alike, else one for each."""
    values = [float(model.pair_friction[element.number, place]) for place in places]
    targets = [element.target("pair_friction", place) for place in places]
    name = f"friction_{attribute}"
    if len(set(values)) == 1:
        yield element.item(PAIR_FRICTION, name, unit, ratio(values[0], 4.0, most), *targets)
        return
    for k, (value, target) in enumerate(zip(values, targets, strict=True)):
        yield element.item(PAIR_FRICTION, f"{name}_{k + 1}", unit, ratio(value, 4.0, most), target)
