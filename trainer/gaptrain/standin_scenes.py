"""What happens to a stand-in robot and when: scripts in TOML, the script of the demo, and the truth behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from gapd.errors import ConfigError, nearest
from gapd.gap.replay import Replay, gap
from gapd.limits import number_fault
from gapd.measured.windows import Frames, cut, window_starts
from gapd.model.robot import Robot
from gapd.typed_toml import decode_toml
from gaptrain.simulate import driven_joints
from gaptrain.standin_plant import Array, Plant, Scene, Setup, Stop

# Hidden values lie within this share of the scaled range around nominal, and keep a margin from the bounds.
SPREAD = 0.4
MARGIN = 0.1
# How much of a motion is looked at to place a stop: some periods of an arm's slowest sine.
PLAN_S = 15.0
# The demo: friction and payload change by this factor; the stop stands at this quantile of the joint's motion and
# shows as so many standard deviations of the noise in the median window that touches it.
FACTOR = 2.0
STOP_QUANTILE = 0.75
FELT = 5.0
# Damping of the demo's stop per stiffness, s: an arm leaves it without bouncing.
STOP_DAMPING_S = 0.01
# Friction below this share of nominal is lost in noise, doubled or not.
LEAST_FRICTION = 0.5


class StopSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A soft stop at a position, or at a quantile of the joint's motion without it. Units as in Stop."""

    joint: str
    stiffness: float
    damping: float = 0.0
    at_rad: float | None = None
    quantile: float | None = None
    side: Literal["upper", "lower"] = "upper"


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At `at_s`, parameters are multiplied by factors, a payload's mass like any other, and stops appear."""

    at_s: float
    factor: dict[str, float] = {}
    stop: tuple[StopSpec, ...] = ()


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All changes in order of time; times are those of the frames."""

    change: tuple[Change, ...] = ()


def load_script(path: Path, robot: Robot) -> Script:
    """Read a script; ConfigError names file, key, value and limits."""
    script = decode_toml(path, Script)
    for key, value, fault in _faults(script, robot):
        if fault:
            raise ConfigError(f"{path}: {key} = {value!r}: {fault}")
    return script


def _faults(script: Script, robot: Robot) -> Iterator[tuple[str, object, str]]:
    """Key, value and fault (empty if fine) of everything that the types cannot tell."""
    before_s = 0.0
    for number, change in enumerate(script.change):
        place = f"change[{number}]"
        early = number_fault(change.at_s, before_s, 1e9, "a time in seconds, in order,")
        empty = "" if change.factor or change.stop else "nothing changes then; give a factor or a stop"
        yield f"{place}.at_s", change.at_s, early or empty
        for name, factor in change.factor.items():
            unknown = name not in robot.parameters.names
            yield f"{place}.factor", name, f"no such parameter{nearest(name, robot.parameters.names)}" * unknown
            yield f"{place}.factor {name!r}", factor, number_fault(factor, 1e-3, 1e3, "a factor")
        for stop in change.stop:
            yield from _stop_faults(f"{place}.stop", stop, robot)
        before_s = change.at_s


def _stop_faults(place: str, stop: StopSpec, robot: Robot) -> Iterator[tuple[str, object, str]]:
    joints = robot.layout.joints
    yield f"{place}.joint", stop.joint, f"no such joint{nearest(stop.joint, joints)}" * (stop.joint not in joints)
    yield f"{place}.stiffness", stop.stiffness, number_fault(stop.stiffness, 1e-9, 1e9)
    yield f"{place}.damping", stop.damping, number_fault(stop.damping, 0, 1e9)
    one = (stop.at_rad is None) != (stop.quantile is None)
    yield place, stop.joint, "" if one else "give either at_rad or quantile"
    if stop.quantile is not None:
        yield f"{place}.quantile", stop.quantile, number_fault(stop.quantile, 0, 1)
    if stop.at_rad is not None:
        yield f"{place}.at_rad", stop.at_rad, number_fault(stop.at_rad, -1e6, 1e6)


def hidden_parameters(robot: Robot, rng: np.random.Generator) -> Array:
    """Draw parameters (P,) around nominal, uniform in the scaled coordinates."""
    space = robot.parameters
    span = space.z_max - space.z_min
    low = np.maximum(space.z_nominal - SPREAD * span, space.z_min + MARGIN * span)
    high = np.minimum(space.z_nominal + SPREAD * span, space.z_max - MARGIN * span)
    return space.to_physical(rng.uniform(low, high))


def resolve(setup: Setup, hidden: Array, script: Script) -> tuple[Scene, ...]:
    """The scenes of a script for a robot with hidden parameters (P,)."""
    scenes, names = [Scene(0.0, hidden)], setup.robot.parameters.names
    for change in script.change:
        last = scenes[-1]
        factor = np.array([change.factor.get(name, 1.0) for name in names])
        changed = tuple(n for n, f in zip(names, factor, strict=True) if f != 1.0)
        now = Scene(change.at_s, last.physical * factor, last.stops, changed)
        stops = tuple(_placed(setup, now, spec) for spec in change.stop)
        scenes.append(replace(now, stops=last.stops + stops))
    return tuple(scenes)


def _placed(setup: Setup, scene: Scene, spec: StopSpec) -> Stop:
    at = spec.at_rad
    if at is None:
        qpos = plan(setup, scene).qpos[:, setup.robot.layout.joints.index(spec.joint)]
        at = float(np.quantile(qpos, spec.quantile or 0.0))
    return Stop(spec.joint, at, spec.stiffness, spec.damping, spec.side)


@dataclass(frozen=True)
class Plan:
    """A stretch of a scene as it will be without noise, each simulation step: T rows as in Sample."""

    qpos: Array  # (T, nv)
    load: Array  # (T, nv)
    frames: Frames


def plan(setup: Setup, scene: Scene) -> Plan:
    """Simulate a scene from its start."""
    setup = replace(setup, substeps=1)
    steps = round(PLAN_S / setup.period_s)
    plant = Plant(setup, [scene], scene.start_s)
    rows = [plant.sample() for _ in range(steps)]
    time, qpos, load, command, measured = (np.array(column) for column in zip(*rows, strict=True))
    context = np.repeat(setup.robot.context_nominal[None], steps, axis=0)
    return Plan(qpos, load, Frames(time, measured, command, context))


def stop_gap(setup: Setup, scene: Scene, stop: Stop) -> float:
    """Gap that a stop leaves in the simulator of a scene, in noise standard deviations of a channel of its joint.

    The largest within a window, and of those the median over the windows that touch the stop; 0 if none does.
    """
    robot, dof = setup.robot, setup.robot.layout.joints.index(stop.joint)
    stopped = plan(setup, replace(scene, stops=(*scene.stops, stop)))
    starts = window_starts(stopped.frames, robot.layout)
    windows = cut(stopped.frames, robot.layout, starts)
    rollouts = Replay(robot).run(windows, scene.physical)
    gaps = np.abs(gap(windows, rollouts, robot.layout.noise))[:, :, robot.layout.joint_of == dof].max(axis=(1, 2))
    times, deep = stopped.frames.timestamp, stop.depth(stopped.qpos[:, dof]) > 0
    touched = [deep[(times >= s) & (times < s + robot.config.timing.window_s)].any() for s in starts]
    return float(np.median(gaps[touched])) if any(touched) else 0.0


def demo_script(setup: Setup, hidden: Array, rng: np.random.Generator, change_s: float, stop_s: float) -> Script:
    """At change_s a joint's friction doubles and the payload changes; at stop_s another joint meets a soft stop."""
    friction = _friction(setup.robot, hidden, rng)
    payload = _writers(setup.robot, "body_mass")[-1:]  # bodies are listed from the base outwards
    factor = {name: _factor(setup.robot, hidden, name) for name in (friction, *payload)}
    change = Change(change_s, factor)
    scene = resolve(setup, hidden, Script((change,)))[-1]
    joint = _joint_for_stop(setup, friction, rng)
    stop = _felt_stop(setup, replace(scene, start_s=stop_s), joint)
    spec = StopSpec(joint, stop.stiffness, stop.damping, at_rad=stop.at_rad)
    return Script((change, Change(stop_s, stop=(spec,))))


def _writers(robot: Robot, field: str) -> list[str]:
    """Names of the free parameters that write a field."""
    return [p.name for p in robot.parameters.free if any(t.field == field for t in p.targets)]


def _friction(robot: Robot, hidden: Array, rng: np.random.Generator) -> str:
    """A friction that can double within its bounds and is large enough to be seen."""
    space = robot.parameters
    able = [n for n in _writers(robot, "dof_frictionloss") if _factor(robot, hidden, n) == FACTOR]
    if not able:
        raise ConfigError(
            "--demo: no free parameter on dof_frictionloss can double within its bounds; use another --seed, or --scene"
        )
    large = hidden >= LEAST_FRICTION * space.nominal
    seen = [n for n in able if large[space.names.index(n)]]
    return str(rng.choice(seen or able))


def _factor(robot: Robot, hidden: Array, name: str) -> float:
    """FACTOR, or its inverse where that would come close to the upper bound."""
    space, number = robot.parameters, robot.parameters.names.index(name)
    values = hidden.copy()
    values[number] *= FACTOR
    room = (space.z_max - space.to_scaled(values)) / (space.z_max - space.z_min)
    return FACTOR if room[number] >= MARGIN else 1.0 / FACTOR


def _joint_for_stop(setup: Setup, friction: str, rng: np.random.Generator) -> str:
    """A driven joint, not the one whose friction changed if there is another."""
    driven = [setup.robot.layout.joints[j] for j in driven_joints(setup.robot, setup.excitation)]
    rubbing = {t.element for p in setup.robot.parameters.free if p.name == friction for t in p.targets}
    return str(rng.choice([j for j in driven if j not in rubbing] or driven))


def _felt_stop(setup: Setup, scene: Scene, joint: str) -> Stop:
    """A stop that is reached: its force grows to what the joint's actuator gives, and further until it is felt."""
    dof = setup.robot.layout.joints.index(joint)
    free = plan(setup, scene)
    at = float(np.quantile(free.qpos[:, dof], STOP_QUANTILE))
    load = float(np.sqrt(np.mean(free.load[:, dof] ** 2)))
    stiffness = load / max(float(free.qpos[:, dof].max()) - at, 1e-9)
    for _ in range(10):
        stop = Stop(joint, at, stiffness, STOP_DAMPING_S * stiffness)
        if stop_gap(setup, scene, stop) >= FELT:
            return stop
        stiffness *= 2.0
    raise ConfigError(f"--demo: a stop on {joint} does not show in its channels; use another --seed, or --scene")


def truth(robot: Robot, seed: int, period_s: float, scenes: Sequence[Scene]) -> dict[str, Any]:
    """What is hidden, as plain values for JSON."""
    space = robot.parameters
    return {
        "robot": robot.config.robot,
        "seed": seed,
        "period_s": period_s,
        "units": dict(zip(space.names, space.units, strict=True)),
        "scenes": [
            {
                "start_s": scene.start_s,
                "parameters": dict(zip(space.names, scene.physical.tolist(), strict=True)),
                "changed": list(scene.changed),
                "stops": [vars(stop) for stop in scene.stops],
            }
            for scene in scenes
        ],
    }
