"""What the benchmark's problems change in the files of models/arm7, and the hoist, which is no model of the project."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

import msgspec
import numpy as np

from gapd.model.robot import open_robot
from gaptrain.graph import measure_graph
from gaptrain.settings import load_training

# Windows on which the effects of an enumeration are measured, to choose from it.
GRAPH_WINDOWS = 32
_BLOCK = re.compile(r"^\[\[parameter\]\]$", re.MULTILINE)
_NAME = re.compile(r'^name = "(.*)"$', re.MULTILINE)
_POSITION = re.compile(r'<position (name="\w+" joint="\w+").*?(forcerange="[^"]*")/>')
_BIAS = re.compile(r'^ *\{ field = "actuator_biasprm".*\n', re.MULTILINE)
_GAIN = re.compile(r'("actuator_gainprm".*factor = )\[[^]]*\]')

HOIST_MODEL = """<mujoco model="hoist">
  <!-- A motor lifts a carriage without friction: force and mass only count by their ratio. Beside it, two rods. -->
  <compiler angle="radian" autolimits="true"/>
  <option timestep="0.002" integrator="implicitfast">
    <flag contact="disable"/>
  </option>

  <worldbody>
    <body name="carriage" pos="0 1 0">
      <inertial mass="5" pos="0 0 0" diaginertia="0.02 0.02 0.02"/>
      <joint name="lift" type="slide" axis="0 0 1"/>
    </body>
    <body name="upper" pos="0 0 1">
      <inertial mass="1.5" pos="0 0 -0.15" diaginertia="0.01 0.01 0.001"/>
      <joint name="shoulder" axis="0 1 0" damping="0.5" frictionloss="0.3" armature="0.05"
             solreffriction="0.004 1" solimpfriction="0.99 0.99 0.001"/>
      <body name="lower" pos="0 0 -0.3">
        <inertial mass="1" pos="0 0 -0.12" diaginertia="0.006 0.006 0.001"/>
        <joint name="elbow" axis="0 1 0" damping="0.3" frictionloss="0.2" armature="0.03"
               solreffriction="0.004 1" solimpfriction="0.99 0.99 0.001"/>
      </body>
    </body>
  </worldbody>

  <actuator>
    <motor name="lift" joint="lift"/>
    <motor name="shoulder" joint="shoulder"/>
    <motor name="elbow" joint="elbow"/>
  </actuator>

  <sensor>
    <jointpos name="lift/position" joint="lift"/>
    <jointpos name="shoulder/position" joint="shoulder"/>
    <jointpos name="elbow/position" joint="elbow"/>
    <jointvel name="lift/velocity" joint="lift"/>
    <jointvel name="shoulder/velocity" joint="shoulder"/>
    <jointvel name="elbow/velocity" joint="elbow"/>
  </sensor>
</mujoco>
"""
HOIST_TRAIN = """windows = 2048
held_out = 512
hidden = 128
epochs = 20
batch = 64
seed = 1

[excitation]
kind = "tracking"
home = [0.0, 0.3, -0.4]
amplitude = [0.2, 0.8, 0.8]
low_hz = 0.2
high_hz = 1.5
gain = 150.0
damping = 6.0
"""


def _parameter(name: str, unit: str, nominal: float, factor: float, targets: str) -> str:
    return (
        f'[[parameter]]\nname = "{name}"\nunit = "{unit}"\nnominal = {nominal:g}\nmin = {nominal / factor:g}\n'
        f'max = {nominal * factor:g}\nscale = "log"\ntargets = [ {{ {targets} }} ]\n'
    )


def _hoist_parameters() -> str:
    rows = [
        _parameter("body/carriage/mass", "kg", 5, 4, 'field = "body_mass", element = "carriage"'),
        _parameter("actuator/lift/gear", "1", 1, 4, 'field = "actuator_gear", element = "lift", index = 0'),
    ]
    sizes = (("shoulder", (0.5, 0.3, 0.05)), ("elbow", (0.3, 0.2, 0.03)))
    kinds = (("damping", "N·m·s/rad", 10), ("frictionloss", "N·m", 10), ("armature", "kg·m²", 5))
    for joint, values in sizes:
        for (kind, unit, factor), value in zip(kinds, values, strict=True):
            target = f'field = "dof_{kind}", element = "{joint}"'
            rows.append(_parameter(f"joint/{joint}/{kind}", unit, value, factor, target))
        target = f'field = "actuator_gear", element = "{joint}", index = 0'
        rows.append(_parameter(f"actuator/{joint}/gear", "1", 1, 2, target))
    return "\n".join(rows)


def _hoist_robot() -> str:
    head = 'robot = "hoist"\nmodel = "model.xml"\nparameters = "parameters.toml"\nseed = 1\n\n[timing]\n'
    rows = [head + "knot_s = 0.01\nknots = 30\n"]
    for kind, angle, slide, noise in (("position", "rad", "m", 2e-4), ("velocity", "rad/s", "m/s", 5e-3)):
        for joint in ("lift", "shoulder", "elbow"):
            unit = slide if joint == "lift" else angle
            rows.append(f'[[channel]]\nname = "{joint}/{kind}"\nunit = "{unit}"\nnoise = {noise:g}\n')
    return "\n".join(rows)


def hoist() -> Mapping[str, str]:
    """Files of the hoist."""
    return {
        "model.xml": HOIST_MODEL, "parameters.toml": _hoist_parameters(), "robot.toml": _hoist_robot(),
        "train.toml": HOIST_TRAIN,
    }  # fmt: skip


def frozen_but(parameters: str, patterns: Sequence[str]) -> str:
    """parameters.toml with all parameters frozen but those whose name matches a shell pattern."""
    head, *blocks = _BLOCK.split(parameters)
    kept = [head]
    for block in blocks:
        found = _NAME.search(block)
        free = found is not None and any(fnmatch(found[1], pattern) for pattern in patterns)
        kept.append("[[parameter]]" + (block if free else "\nfrozen = true" + block.replace("frozen = true\n", "")))
    return "".join(kept)


def strongest(folder: Path, count: int) -> tuple[str, ...]:
    """Names of the `count` parameters with the largest effects in training motions, each on the channel it moves most.

    All that move anything are among them if there are no more than that.
    """
    robot = open_robot(folder / "robot.toml")
    training = msgspec.structs.replace(load_training(folder / "train.toml"), graph_windows=GRAPH_WINDOWS)
    effect = measure_graph(robot, training).effect
    order = np.argsort(-effect.max(axis=1), kind="stable")[:count]
    # '[' is special in a pattern.
    return tuple(robot.parameters.names[p].replace("[", "[[]") for p in order)


def torque_driven(model: str) -> str:
    """arm7 with motors in the place of its position servos."""
    return re.sub(r" +<keyframe>.*</keyframe>\n", "", _POSITION.sub(r"<motor \1 \2/>", model), flags=re.DOTALL)


def motor_scales(parameters: str) -> str:
    """The torque scales of position servos as those of motors: a gain, and no bias."""
    return _GAIN.sub(r"\1[1]", _BIAS.sub("", parameters))


def pair_of_arms(model: str) -> str:
    """Two arm7 side by side; the names of the second begin with `right_`."""

    def second(text: str) -> str:
        return re.sub(r'\b(name|joint)="', r'\1="right_', text)

    body = model[model.index('    <body name="base">') : model.index("  </worldbody>")]
    other = second(body).replace('name="right_base"', 'name="right_base" pos="0 -1 0"')
    model = re.sub(r" +<keyframe>.*</keyframe>\n", "", model.replace(body, body + other), flags=re.DOTALL)
    for section in ("actuator", "sensor"):
        found = re.search(rf"<{section}>\n(.*?)  </{section}>", model, re.DOTALL)
        if found:
            model = model.replace(found[1], found[1] + second(found[1]))
    return model


def pair_robot(robot: str) -> str:
    """robot.toml of arm7 for two of them; recordings are not read from files."""
    head = robot[: robot.index("[log]")]
    channels = head[head.index("[[channel]]") :]
    return head + channels.replace('name = "', 'name = "right_')
