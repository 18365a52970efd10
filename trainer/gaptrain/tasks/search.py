"""What methods that search parameters share: how far they look, who acts, and what an iteration gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gapd.model.parameters import Parameter, ParameterSet
from gaptrain.tasks.simulator import Simulator

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

# Half-widths of the published perturbation, in physical units, by what a parameter writes; the others get half of
# their value.
FRICTION, LAG, CAMERA_M, DAMPING = 0.02, 0.1, 0.03, 10.0
# Damping of contacts that are far above the nominal 10 of the published tasks.
STRONG_DAMPING, WIDE_DAMPING = 20.0, 30.0


class Policy(Protocol):
    """Chooses what the robot does."""

    def act(self, rng: np.random.Generator, n: int) -> Array:
        """Return n actions (n, A)."""
        ...


# Trains a policy in the simulator with parameters (P,), from a seed.
Trainer = Callable[[Simulator, Array, int], Policy]


@dataclass(frozen=True)
class Uniform:
    """Random actions: open-loop replay without any policy."""

    task: Simulator

    def act(self, rng: np.random.Generator, n: int) -> Array:
        """See `Policy.act`."""
        return self.task.draw(rng, n)


def without_policy(task: Simulator, _physical: Array, _seed: int) -> Policy:
    """See `Trainer`."""
    return Uniform(task)


@dataclass(frozen=True)
class Iteration:
    """Where a method is after an iteration, and what that has cost since it began."""

    physical: Array  # (P,)
    kept: Flags  # (P,) parameters that it takes to matter
    edge_probability: Array  # (P, M) by object, or (P, C) by channel; nan where the method has no graph
    sd: Array  # (P,) standard deviation of the scaled values; nan where the method states none
    real_rollouts: int
    simulated: int  # rollouts


def published_half_width(space: ParameterSet, physical: Array) -> Array:
    """Half-widths (P,) of the published perturbation around physical (P,), SI units."""
    return np.array([_half_width(p, float(v)) for p, v in zip(space.free, physical, strict=True)])


def _half_width(parameter: Parameter, value: float) -> float:
    target = parameter.targets[0]
    if target.field == "geom_friction" and target.index == 0:
        return FRICTION
    if target.field == "geom_solref" and target.index == 1:
        return WIDE_DAMPING if abs(parameter.nominal) > STRONG_DAMPING else DAMPING
    if target.field == "task.velocity_lag":
        return LAG
    return CAMERA_M if target.field.startswith("task.camera") else 0.5 * abs(value)


def perturb(space: ParameterSet, physical: Array, half_width: Array, rng: np.random.Generator, n: int) -> Array:
    """Vectors (n, P), uniform around physical (P,) and within the bounds."""
    drawn = physical + half_width * rng.uniform(-1, 1, (n, len(physical)))
    return np.asarray(np.clip(drawn, space.min, space.max))
