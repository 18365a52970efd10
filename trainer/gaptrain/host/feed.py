"""Parameter feed: the newest accepted values of a robot, into a simulation that runs."""

from __future__ import annotations

import importlib
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import mujoco
import numpy as np
from numpy.typing import NDArray

from gapd.fit.mjcf_text import corrected_mjcf
from gapd.model.binding import Binding
from gapd.model.parameters import ParameterSet
from gaptrain.host.database import HostError, read_state, reading, transaction
from gaptrain.host.registry import Definitions, the_robot
from gaptrain.host.values import Values
from gaptrain.host.versions import NOMINAL, Version, newest

Array = NDArray[np.float64]

# Draws outside the bounds are made again this often; what is still outside is moved onto them.
REDRAWS = 20


@dataclass(frozen=True)
class _Snapshot:
    """One consistent reading; `state` tells readings apart, also where the parameters' nominals changed."""

    state: tuple[int, float]
    space: ParameterSet
    context: Mapping[str, float]
    current: Version | None

    @property
    def values(self) -> Values:
        if self.current is not None:
            return self.current.values
        nominal = self.space.z_nominal
        return Values.independent(nominal, np.zeros_like(nominal))

    @property
    def physical(self) -> Array:
        return self.space.to_physical(self.values.z)


class ParameterFeed:
    """Reads one robot's values from the host's state folder, while the host runs or not.

    Everything here tells the newest values: each call and each property looks for newer ones first, which costs
    microseconds while there are none. Two of them in a row may thus belong to two versions. HostError where the file
    has become unreadable: the values that were seen last stay in the models that have them.

    All of it may be used from any thread. `apply` writes into the model: call it from the thread that steps this model,
    between two steps; other threads may apply to their own models at the same time.
    """

    def __init__(self, state: Path, robot: str) -> None:
        """Open the state for reading; HostError if there is none, no such robot, or the file is damaged."""
        self._robot, self._folder = robot, state
        self._database = read_state(state)
        self._lock = threading.Lock()
        self._bindings: weakref.WeakKeyDictionary[mujoco.MjModel, tuple[ParameterSet, Binding]]
        self._bindings = weakref.WeakKeyDictionary()
        self._written: weakref.WeakKeyDictionary[mujoco.MjModel, tuple[int, float]] = weakref.WeakKeyDictionary()
        try:
            with reading(state):
                self._changes = self._data_version()
                self._snapshot = self._read()
        except BaseException:
            self._database.close()
            raise

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Close the state."""
        with self._lock:
            self._database.close()

    @property
    def version(self) -> int:
        """Number of the newest version; 0 before the first correction."""
        return self._newest().state[0]

    @property
    def parameters(self) -> ParameterSet:
        """Names, units and bounds of the P values."""
        return self._newest().space

    @property
    def physical(self) -> Array:
        """The values (P,) in SI units: nominal before the first correction."""
        return self._newest().physical

    def refresh(self) -> bool:
        """Whether there are newer values than those that were seen last."""
        before = self._snapshot
        return self._newest().state != before.state

    def apply(self, model: mujoco.MjModel) -> bool:
        """Write the newest values into a live model in place if it does not have them yet; whether it wrote.

        Context values, such as a supply voltage, are at their nominal. Constants that MuJoCo derives are renewed
        (mj_setConst), MjData stays valid. ConfigError if the parameters do not fit this model.
        """
        snapshot = self._newest()
        if self._written.get(model) == snapshot.state:
            return False
        context = np.array([*snapshot.context.values()], float)
        self._binding(model, snapshot).write(model, snapshot.physical, context)
        self._written[model] = snapshot.state
        return True

    def sample(self, rng: np.random.Generator, n: int) -> Array:
        """Draw n physical vectors (n, P) of the newest values within the bounds, from N(mean, covariance), scaled.

        Before the first correction: uniform in scaled coordinates within the bounds, as training data are.
        """
        snapshot = self._newest()
        space, current = snapshot.space, snapshot.values
        if snapshot.current is None:
            return space.draw(rng, n)
        root = _root(current)
        z = current.z + rng.normal(size=(n, len(space))) @ root.T
        for _ in range(REDRAWS):
            outside = ((z < space.z_min) | (z > space.z_max)).any(axis=1)
            if not outside.any():
                break
            z[outside] = current.z + rng.normal(size=(int(outside.sum()), len(space))) @ root.T
        return np.clip(space.to_physical(np.clip(z, space.z_min, space.z_max)), space.min, space.max)

    def mjcf(self, path: Path) -> str:
        """The MJCF at `path` with the newest values written into it; HostError for values that MJCF cannot hold.

        Files of meshes and textures are named by their full path, so that the text can be compiled from anywhere.
        """
        snapshot = self._newest()
        text, fault = corrected_mjcf(path, snapshot.space, snapshot.physical, snapshot.context)
        if fault:
            raise HostError(f"{path}: {fault}; use ParameterFeed.apply on the model")
        return text

    def to_sysid_yaml(self, path: Path) -> None:
        """Write values and bounds in SI units for `mujoco.sysid.ParameterDict.load_from_disk`."""
        sysid: Any = importlib.import_module("mujoco.sysid")
        snapshot = self._newest()
        space = snapshot.space
        rows = zip(space.names, snapshot.physical, space.min, space.max, strict=True)
        parameters = {name: sysid.Parameter(name, *map(float, numbers)) for name, *numbers in rows}
        sysid.ParameterDict(parameters).save_to_disk(path)

    def _binding(self, model: mujoco.MjModel, snapshot: _Snapshot) -> Binding:
        known = self._bindings.get(model)
        if known is None or known[0] is not snapshot.space:
            known = snapshot.space, Binding(model, snapshot.space, tuple(snapshot.context))
            self._bindings[model] = known
        return known[1]

    def _newest(self) -> _Snapshot:
        """The newest reading; made again only if the state has changed since the last one."""
        with self._lock, reading(self._folder):
            changes = self._data_version()
            if changes != self._changes:
                self._snapshot, self._changes = self._read(), changes
            return self._snapshot

    def _read(self) -> _Snapshot:
        """One reading in one transaction: robot, definition and values belong together."""
        with transaction(self._database, "DEFERRED"):
            robot = the_robot(self._database, self._robot)
            space = Definitions(self._database).space(robot.name, robot.fingerprint)
            current = newest(self._database, self._robot)
        number = current.number if current else NOMINAL
        return _Snapshot((number, robot.enrolled), space, robot.context, current)

    def _data_version(self) -> int:
        return int(self._database.execute("PRAGMA data_version").fetchone()[0])


def _root(values: Values) -> Array:
    """Square root (P, P) of the covariance: of the active parameters as given, of the others without correlation."""
    root = np.diag(values.z_sd)
    if len(values.active):
        eigenvalues, vectors = np.linalg.eigh(values.covariance)
        block = np.ix_(values.active, values.active)
        root[block] = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))
    return root
