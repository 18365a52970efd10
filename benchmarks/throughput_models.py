"""arm7 with as many parameters as asked for, in a folder of its own: its own 29, or some of those enumerated."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np

from gaptrain.enumeration.enumerate import enumerate_parameters

ARM = Path(__file__).parents[1] / "models" / "arm7"
OWN = 29
# A body without a joint brings eleven parameters: mass, centre of mass, spread, axes, gravity compensation.
PARTS = 11
PART = (
    '<body name="part{0}" pos="0.01 0 {1:.3f}"><inertial mass="0.05" pos="0 0 0" diaginertia="2e-5 2e-5 2e-5"/></body>'
)
PAYLOAD = '<body name="payload" pos="0 0 0.107">'
MARK = "[[parameter]]"


def arm_with(parameters: int, folder: Path) -> Path:
    """A folder of arm7 with so many parameters; with more than its 285, of an arm with parts on its payload."""
    model = folder / f"arm7-{parameters}"
    shutil.copytree(ARM, model, ignore=shutil.ignore_patterns(".data", "bundle"))
    robot = model / "robot.toml"
    robot.write_text(re.sub(r"(?m)^bundle.*\n", "", robot.read_text()))
    if parameters == OWN:
        return model
    if parameters > 285:
        mjcf = model / "model.xml"
        parts = "".join(PART.format(i, 0.01 * i) for i in range(PARTS))
        mjcf.write_text(mjcf.read_text().replace(PAYLOAD, PAYLOAD + parts))
    listed = model / "parameters.toml"
    enumerate_parameters(model / "model.xml", listed, force=True)
    head, *entries = listed.read_text().split(MARK)
    free = [entry for entry in entries if "frozen = true" not in entry]
    chosen = np.linspace(0, len(free) - 1, parameters).round().astype(int)
    listed.write_text(MARK.join([head, *(free[i] for i in chosen)]))
    return model


def shards(model: Path, windows: int, count: int) -> None:
    """Let train.toml ask for `count` shards of so many windows, the first of them held out."""
    train = model / "train.toml"
    kept = re.sub(r"(?m)^(windows|held_out|shard_windows|batch) = .*\n", "", train.read_text())
    sizes = f"windows = {windows * (count - 1)}\nheld_out = {windows}\nshard_windows = {windows}\nbatch = 1\n"
    train.write_text(sizes + kept)
