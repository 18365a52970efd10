"""What a structure test found, in words: what it means at the joint, how large it is, and what to do. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

# What can only resist: a negative one would drive, which is another story (wrong sign, unit or time).
RESISTS = ("load friction", "stiction", "upper stop", "lower stop", "backlash")
# Where a stop begins, and what it absorbs, is not fitted: its stiffness holds beside that only, and no interval for it.
_ROUGH = ("upper stop", "lower stop")


class Meaning(NamedTuple):
    """What a regressor says: unit of its coefficient on a hinge and on a slide, sentence, and what to do."""

    hinge: str
    slide: str
    sentence: str
    remedy: str


MEANING = {
    "load friction": Meaning(
        "", "", "friction grows with load",
        "no MuJoCo parameter does that: use the effective values, and randomise the friction of {} in training",
    ),
    "stiction": Meaning(
        "N·m", "N", "sticks at low speed",
        "let a parameter write dof_frictionloss of {0}; if one does, give {0} a dcmotor actuator with LuGre friction",
    ),
    "direction": Meaning(
        "N·m", "N", "friction depends on direction of motion", "look for a constant force or an uneven gear at {}"
    ),
    "spring": Meaning("N·m/rad", "N/m", "a force grows with position", "let a parameter write jnt_stiffness of {}"),
    "upper stop": Meaning("N·m/rad", "N/m", "is pushed back from above", "look for contact or a cable at {}"),
    "lower stop": Meaning("N·m/rad", "N/m", "is pushed back from below", "look for contact or a cable at {}"),
    "backlash": Meaning(
        "rad", "m", "has play between motor and joint, to either side",
        "check gears, belt and coupling of {0} for play; no MuJoCo parameter has it: while it is there randomise it in "
        "training, and take friction, damping and armature of {0} for effective values only",
    ),
    "bent link": Meaning(
        "rad", "rad", "its link or axis is not where the MJCF has it",
        "check mounting and link of {0} and the zero of its encoder, and correct the quat of its body in the MJCF: no "
        "mass, friction or gain makes up for it in other poses",
    ),
    "drift": Meaning("N·m/s", "N/s", "a force drifts with time", "record {} warm, and at constant supply voltage"),
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """A hypothesis that holds: `share` of the squared gap it takes away, `z` coefficient over deviation."""

    regressor: str
    joint: str
    z: float
    share: float
    coefficient: float
    coefficient_sd: float
    unit: str
    direction: tuple[float, ...] = ()  # unit vector of a coefficient that has several parts

    @property
    def sentence(self) -> str:
        """One line for the journal."""
        unit = f" {self.unit}" if self.unit else ""
        size = f"{self.coefficient:.3g} ± {self.coefficient_sd:.2g}{unit}"
        if self.regressor in _ROUGH:
            size = f"about {self.coefficient:.2g}{unit}"
        explains = f"explains {100 * self.share:.0f} % of the squared gap (z {self.z:.0f})"
        if self.direction:
            size += f" about ({', '.join(f'{round(d, 2) + 0.0:g}' for d in self.direction)}) of its body"
        return f"{self.joint}: {MEANING[self.regressor].sentence}: {self.regressor} {size} {explains}"

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return MEANING[self.regressor].remedy.format(self.joint)
