"""Small MJCFs in which every tunable number stands as {name of its parameter=value}, so that it can be compiled anew.

{-name=value} is the negative of the value. <inertial of=.../> is mass, centre of mass and inertia of a body.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import mujoco
import numpy as np

_PLACE = re.compile(r"\{(-?)([^{}=]+)=([^{}=]+)\}")
_INERTIAL = re.compile(r'<inertial of="(\w+)" mass="(\S+)"(?: com="(.+?)")? spread="(.+?)"(?: axes="(.+?)")?/>')


def filled(template: str, values: Mapping[str, float]) -> str:
    """The MJCF with these values in the places of their names, and the template's own elsewhere."""
    text = _INERTIAL.sub(lambda match: _inertial(match, values), template)
    return _PLACE.sub(lambda match: match[1] + repr(float(values.get(match[2], match[3]))), text)


def places(template: str) -> set[str]:
    """Names of all parameters that have a place in the template."""
    names = {match[2] for match in _PLACE.finditer(template)}
    for match in _INERTIAL.finditer(template):
        names |= set(_numbers(match))
    return names


def _numbers(match: re.Match[str]) -> dict[str, float]:
    body, mass = match[1], float(match[2])
    numbers = {f"body/{body}/mass": mass}
    for part, letters, text in (("com", "xyz", match[3]), ("spread", "123", match[4]), ("axes", "xyz", match[5])):
        for letter, value in zip(letters, (text or "").split(), strict=False):
            numbers[f"body/{body}/{part}_{letter}"] = float(value)
    return numbers


def _inertial(match: re.Match[str], values: Mapping[str, float]) -> str:
    """Mass, centre of mass and inertia as an MJCF has them: a sum over point masses that have the spread."""
    numbers = {name: values.get(name, value) for name, value in _numbers(match).items()}
    mass = numbers[f"body/{match[1]}/mass"]
    com, spread, axes = (
        np.array([numbers.get(f"body/{match[1]}/{part}_{letter}", 0.0) for letter in letters])
        for part, letters in (("com", "xyz"), ("spread", "123"), ("axes", "xyz"))
    )
    # Six points, each of a sixth of the mass, at +-sqrt(3) spreads on the principal axes.
    points = np.sqrt(3) * np.concatenate([np.diag(spread), -np.diag(spread)])
    inertia = mass / 6 * sum((p @ p) * np.eye(3) - np.outer(p, p) for p in points)
    quaternion = np.empty(4)
    angle = float(np.linalg.norm(axes))
    mujoco.mju_axisAngle2Quat(quaternion, axes / angle if angle else np.eye(3)[0], angle)
    attributes = {"pos": com, "quat": quaternion, "diaginertia": np.diag(inertia)}
    text = " ".join(f'{key}="{" ".join(repr(float(x)) for x in value)}"' for key, value in attributes.items())
    return f'<inertial mass="{mass!r}" {text}/>'


def cells(name: str, **values: float | str) -> str:
    """Places of several parameters of one element, as the value of one attribute; a key that ends in _ is negative."""
    parts = (f"{{{'-' if key.endswith('_') else ''}{name}/{key.rstrip('_')}={value}}}" for key, value in values.items())
    return " ".join(parts)


def powers(name: str, attribute: str, *values: float) -> str:
    """An attribute whose numbers belong to the first, second and third power of a motion."""
    keys = (attribute, f"{attribute}_quadratic", f"{attribute}_cubic")
    return f'{attribute}="{cells(name, **dict(zip(keys, values, strict=True)))}"'


def moved(
    name: str, damping: tuple[float, ...], stiffness: tuple[float, ...], armature: float = 0, frictionloss: float = 0
) -> str:
    """Damping, stiffness, armature and dry friction of a joint or tendon."""
    rest = f'armature="{cells(name, armature=armature)}" frictionloss="{cells(name, frictionloss=frictionloss)}"'
    return f"{powers(name, 'damping', *damping)} {powers(name, 'stiffness', *stiffness)} {rest}"


def hinge(name: str, more: str = "") -> str:
    """A hinge with all its numbers; `more` for what it has besides."""
    joint = f"joint/{name}"
    return f"""<joint name="{name}" axis="0.2 1 0.1" ref="{cells(joint, offset=0)}"
      springref="{cells(joint, springref=0.1)}" {moved(joint, (0.1, 0, 0.01), (0.2, 0, 0), 0.02)} {more}/>"""


def passive(name: str, more: str = "") -> str:
    """Numbers of a joint that is neither hinge nor slide: it has no offset and no spring reference."""
    joint = f"joint/{name}"
    return f'name="{name}" {moved(joint, (0.02, 0, 0), (1, 0, 0), 0.01, 0.01)} {friction_solver(joint)} {more}'


IMPEDANCE = tuple(f"impedance_{key}" for key in ("start", "end", "width", "midpoint", "power"))


def solver(name: str, prefix: str, suffix: str = "", values: str = "0.02 1 0.9 0.95 0.001 0.5 2") -> str:
    """The attributes solref and solimp, which end in `suffix`, with all their numbers."""
    numbers = dict(
        zip((f"{prefix}{key}" for key in ("timeconst", "dampratio", *IMPEDANCE)), values.split(), strict=True)
    )
    solref, solimp = dict(list(numbers.items())[:2]), dict(list(numbers.items())[2:])
    return f'solref{suffix}="{cells(name, **solref)}" solimp{suffix}="{cells(name, **solimp)}"'


def friction_solver(name: str) -> str:
    """Solver attributes of dry friction, of which only these numbers count."""
    ends = cells(name, friction_impedance_start=0.9, friction_impedance_end=0.95)
    time = cells(name, friction_timeconst=0.02)
    return f'solreffriction="{time} 1" solimpfriction="{ends} 0.001 0.5 2"'


def friction(name: str, slide: float, spin: float, roll: float) -> str:
    """The attribute friction of a geom."""
    return f'friction="{cells(name, friction_slide=slide, friction_spin=spin, friction_roll=roll)}"'


def body(name: str, where: str, inertial: str, inside: str, gravcomp: float = 0) -> str:
    """A body with a consistent inertia and gravity compensation."""
    return f"""<body name="{name}" pos="{where}" gravcomp="{cells(f"body/{name}", gravcomp=gravcomp)}">
      <inertial of="{name}" {inertial}/> {inside} </body>"""
