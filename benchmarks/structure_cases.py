"""What benchmarks/structure.py hides in a stand-in robot, and in which sizes."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gapd.model.robot import Robot
from gaptrain.simulate import Structure
from gaptrain.structures import backlash, bent_link, load_dependent_friction

Array = NDArray[np.float64]

MODELS = Path(__file__).parents[1] / "models"
PAYLOAD = "body/payload/mass"
DELAYED = "joint2"


@dataclass(frozen=True)
class Kind:
    """Sizes by robot, in turn over the truths. A robot without sizes has no such case."""

    unit: str
    sizes: dict[str, tuple[float, ...]]
    hidden: bool = True
    most: int = 1000  # truths

    @property
    def models(self) -> tuple[str, ...]:
        """Robots on which this kind makes sense."""
        return tuple(self.sizes)


# A bent link of the pendulum is an offset of its joint, which is a parameter, or does not show at all.
KINDS = {
    "load friction": Kind("of load", {"arm7": (0.02, 0.05, 0.1, 0.3), "servo_pendulum": (0.05, 0.1, 0.2, 0.4)}),
    "backlash": Kind("rad", {"arm7": (0.0005, 0.002, 0.006, 0.02), "servo_pendulum": (0.003, 0.01, 0.03, 0.06)}),
    "bent link": Kind("°", {"arm7": (0.25, 1.0, 3.0, 8.0)}),
    "none": Kind("", {"arm7": (0.0,), "servo_pendulum": (0.0,)}, hidden=False),
    "payload": Kind("times", {"arm7": (0.5, 2.0)}, hidden=False, most=4),
    "delay": Kind("s", {"arm7": (0.006, 0.014)}, hidden=False, most=4),
}


@dataclass(frozen=True)
class Case:
    """One stand-in: its parameters (P,), where the fit starts (P,), scaled, and what is hidden at which joint."""

    kind: str
    size: float
    seed: int
    joint: str
    physical: Array
    before: Array
    structure: Structure | None
    parameter: str = ""  # that changed, of a control that is a parameter


def draw(robot: Robot, model: str, kind: str, seed: int, number: int) -> Case:
    """The case of a seed; number goes through the sizes."""
    sizes, space = KINDS[kind].sizes[model], robot.parameters
    size = sizes[number % len(sizes)]
    physical = space.draw(np.random.default_rng(seed), 1)[0]
    rng = np.random.default_rng([seed, 1])
    joint = str(rng.choice(robot.layout.joints))
    if kind in ("payload", "delay"):
        name = PAYLOAD if kind == "payload" else f"actuator/{DELAYED}/delay"
        p = space.names.index(name)
        usual = physical.copy()
        usual[p] = space.min[p] if kind == "delay" else np.sqrt(space.min[p] * space.max[p])
        physical[p] = size if kind == "delay" else size * usual[p]
        return Case(kind, size, seed, "", physical, space.to_scaled(usual), None, name)
    structure = _structure(robot, kind, joint, size, float(rng.uniform(0, 2 * np.pi)))
    return Case(kind, size, seed, joint if structure else "", physical, space.z_nominal, structure)


def _structure(robot: Robot, kind: str, joint: str, size: float, around: float) -> Structure | None:
    if kind == "load friction":
        return load_dependent_friction(robot, joint, size)
    if kind == "backlash":
        return backlash(robot, joint, size)
    if kind == "bent link":
        # Across the joint's own axis, which is z in arm7: about it the angle would be an offset of the joint.
        body = robot.model.body(int(robot.model.dof_bodyid[robot.layout.joints.index(joint)])).name
        return bent_link(robot, body, float(np.radians(size)), (np.cos(around), np.sin(around), 0.0))
    return None


def delayed_arm(folder: Path) -> Path:
    """robot.toml of an arm7 in which the command of one joint may be late, with a parameter for it and no bundle."""
    arm = folder / "delayed"
    if not arm.exists():
        shutil.copytree(MODELS / "arm7", arm, ignore=shutil.ignore_patterns("bundle"))
        model, parameters, robot = (arm / name for name in ("model.xml", "parameters.toml", "robot.toml"))
        servo = f'<position name="{DELAYED}"'
        late = f'<position delay="0" nsample="16" interp="linear" name="{DELAYED}"'
        model.write_text(model.read_text(encoding="utf-8").replace(servo, late), encoding="utf-8")
        # MuJoCo delays by one step at least.
        step = 0.002
        entry = (
            f'\n[[parameter]]\nname = "actuator/{DELAYED}/delay"\nunit = "s"\nnominal = {step}\n'
            f'min = {step}\nmax = 0.03\nscale = "linear"\n'
            f'targets = [{{ field = "actuator_delay", element = "{DELAYED}" }}]\n'
        )
        parameters.write_text(parameters.read_text(encoding="utf-8") + entry, encoding="utf-8")
        kept = [t for t in robot.read_text(encoding="utf-8").splitlines() if not t.startswith("bundle")]
        robot.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return arm / "robot.toml"
