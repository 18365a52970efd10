"""What the causal graph is measured on: every number of arm7, and every number of a task with contacts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from gapd.model.parameters import ParameterSet, Target
from gapd.model.robot import Robot, open_robot
from gaptrain.enumeration.enumerate import enumerate_parameters
from gaptrain.graph import Graph, graph_of, measure_graph
from gaptrain.settings import Training, load_training
from gaptrain.tasks.air_hockey import AirHockey

Array = NDArray[np.float64]
MODELS = Path(__file__).parents[1] / "models"
# The camera of the task: noise of a position, m.
CAMERA_M = 1e-3


class Subject(Protocol):
    """Something with parameters and channels, whose graph can be measured for some of the parameters."""

    name: str
    names: tuple[str, ...]  # of the parameters
    always: int  # the first so many are in every graph, whether they act or not; of the others, distractors
    per_window: int  # rollouts per window besides one for each parameter

    def graph(self, kept: Collection[str], windows: int, seed: int) -> Graph:
        """The graph of the parameters kept, in the order of `names`; the others stay at nominal."""
        ...


class Arm:
    """arm7 with all that `gaptrain enumerate` finds."""

    name = "arm7"
    per_window = 2  # a recording, and the replay that is differentiated

    def __init__(self, folder: Path, threads: int) -> None:
        """Enumerate into a folder."""
        self.folder = folder
        for file in ("model.xml", "train.toml"):
            shutil.copy(MODELS / "arm7" / file, folder / file)
        lines = (MODELS / "arm7" / "robot.toml").read_text().splitlines()
        (folder / "robot.toml").write_text("\n".join(line for line in lines if not line.startswith("bundle")))
        enumerate_parameters(folder / "model.xml", folder / "parameters.toml", ())
        self._robot: Robot = open_robot(folder / "robot.toml")
        self._training: Training = load_training(folder / "train.toml")
        self._threads = threads
        self.names = self._robot.parameters.names
        self.always = 0

    def graph(self, kept: Collection[str], windows: int, seed: int) -> Graph:
        """See `Subject`."""
        robot = self._robot.holding(set(self.names) - set(kept))
        training = msgspec.structs.replace(self._training, graph_windows=windows, seed=seed)
        return measure_graph(robot, training, self._threads)


class Hockey:
    """The task air_hockey: its 64 parameters, and as distractors what `gaptrain enumerate` finds besides.

    Effects are differences of whole rollouts, for a step of one prior standard deviation: what a contact does has no
    useful derivative.
    """

    name = "air_hockey"
    per_window = 1

    def __init__(self, folder: Path, threads: int) -> None:
        """Enumerate into a folder."""
        self._folder, self._threads, path = MODELS / "air_hockey", threads, folder / "parameters.toml"
        own = ParameterSet.from_toml(self._folder / "parameters.toml").free
        written = {_cell(t) for p in own for t in p.targets}
        enumerate_parameters(self._folder / "model.xml", path, ())
        others = ParameterSet.from_toml(path).free
        others = tuple(p for p in others if not written & {_cell(t) for t in p.targets})
        self._space = ParameterSet(own + others)
        self.names, self.always = self._space.names, len(own)

    def graph(self, kept: Collection[str], windows: int, seed: int) -> Graph:
        """See `Subject`. A window is one rollout."""
        space = self._space.holding(set(self.names) - set(kept))
        task, rng = AirHockey(self._folder, self._threads, space), np.random.default_rng(seed)
        actions, z = task.draw(rng, windows), rng.uniform(space.z_min, space.z_max, (windows, len(space)))
        here, squared = task.rollout(space.to_physical(z), actions), []
        for p, step in enumerate((space.z_max - space.z_min) / np.sqrt(12)):
            moved = z.copy()
            moved[:, p] += np.where(z[:, p] + step <= space.z_max[p], step, -step)
            there = task.rollout(space.to_physical(moved), actions)
            squared.append((((there.seen - here.seen) / CAMERA_M) ** 2).mean(axis=1))
        return graph_of(np.stack(squared, axis=1), np.arange(windows), rng)


def _cell(target: Target) -> tuple[str, str]:
    """What no two parameters may write: a field of an element, and all of a body's inertia."""
    inertia = target.field in ("body_mass", "body_inertia", "body_ipos") or target.field.startswith("inertia.")
    return "inertia" if inertia else target.field, target.element


def subjects(threads: int) -> tuple[Subject, ...]:
    """Both, in folders of their own that the system clears away."""
    return tuple(make(Path(tempfile.mkdtemp(prefix="graph-")), threads) for make in (Arm, Hockey))
