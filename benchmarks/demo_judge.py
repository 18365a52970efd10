"""Was the live demo right? Against the truth of the stand-in robot, which neither daemon nor host has seen."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from gapd.fit.report import table
from gapd.gap.replay import Replay, gap
from gapd.measured.windows import Windows, cut, window_starts
from gapd.model.robot import Robot, open_robot
from gaptrain.host.database import read_state
from gaptrain.host.versions import Version, history
from gaptrain.settings import load_training
from gaptrain.simulate import record

Array = NDArray[np.float64]

MODEL = Path(__file__).parents[1] / "models" / "arm7"
ROBOT = "arm7-01"
# A correction must take away this share of the excess squared gap,
GONE = 0.95
# and put the changed parameters within this many standard deviations and this share of the truth.
NEAR_SD, NEAR = 4.0, 0.15


@dataclass
class Watched:
    """What the stream said: times (s of the robot's clock), gaps in floors, and estimates by name."""

    gaps: list[tuple[float, float]] = field(default_factory=list)
    estimates: list[tuple[float, dict[str, float]]] = field(default_factory=list)

    def take(self, topic: bytes, raw: bytes) -> None:
        """One message."""
        values = msgpack.unpackb(raw)
        if topic == b"gaps":
            numbers = [v for k, v in values.items() if k not in ("timestamp", "floors")]
            self.gaps.append((values["timestamp"], float(np.sqrt(np.mean(np.square(numbers))))))
        elif topic == b"estimates":
            self.estimates.append((values["timestamp"], values))


def judge(folder: Path, config: Path, events: list[dict[str, Any]], watched: Watched) -> bool:
    """Print the tables, draw the picture; whether everything was as it should be."""
    robot = open_robot(config)
    truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    database = read_state(folder / "host")
    versions = history(database, ROBOT)
    escalated = [
        (row[0], json.loads(row[1]))
        for row in database.execute("SELECT timestamp, terms FROM escalations ORDER BY sequence")
    ]
    database.close()
    hidden, changed, stopped = truth["scenes"]
    space = robot.parameters
    z = [space.to_scaled(np.array([s["parameters"][n] for n in space.names])) for s in (hidden, changed)]
    first = next((v for v in versions if v.source == "correction"), None)
    second = versions[-1] if len(versions) > 1 else None
    print()
    print(parameters(robot, z, [first, second], changed["changed"]))
    joint = stopped["stops"][0]["joint"]
    named = [t["joint"] for at, terms in escalated if at >= stopped["start_s"] for t in terms]
    early = sum(at < stopped["start_s"] for at, _ in escalated)
    before = space.z_nominal if first is None else np.array(first.z)
    checks = [
        correction("start", robot, z[0], space.z_nominal, first),
        correction("change", robot, z[1], before, second),
        *changed_values(robot, z[1], second, changed["changed"]),
        ("stop", f"on {joint}, escalated: {', '.join(dict.fromkeys(named)) or 'nothing'}", named[:1] == [joint]),
        ("stop", f"{early} escalations before it", not early),
    ]
    print()
    print(table(["scene", "result", "right"], [[a, b, "yes" if right else "NO"] for a, b, right in checks]))
    (folder / "result.json").write_text(json.dumps(checks, indent=1), encoding="utf-8")
    draw(folder / "demo.png", robot, watched, truth)
    print(f"\npicture    {folder / 'demo.png'}\nlog        {folder / 'gapd.log'}")
    return all(right for _, _, right in checks)


def correction(scene: str, robot: Robot, truth: Array, before: Array, version: Version | None) -> tuple[str, str, bool]:
    """Share of the excess squared gap that a correction took away, on a clean motion of the true robot."""
    if version is None:
        return scene, "no correction", False
    windows = clean(robot, truth)
    was, now = (excess(robot, windows, z) for z in (before, np.array(version.z)))
    gone = 1.0 - now / was
    return (
        scene,
        f"version {version.number}: excess squared gap {was:.3g} -> {now:.3g}, {100 * gone:.1f} % gone",
        gone >= GONE,
    )


def changed_values(
    robot: Robot, truth: Array, version: Version | None, names: list[str]
) -> list[tuple[str, str, bool]]:
    """Each changed parameter against its truth."""
    if version is None:
        return [("change", f"{name}: no correction", False) for name in names]
    space, found = robot.parameters, []
    physical, wanted = space.to_physical(np.array(version.z)), space.to_physical(truth)
    for name in names:
        p = space.names.index(name)
        sds = abs(version.z[p] - truth[p]) / version.values.z_sd[p]
        off = abs(physical[p] / wanted[p] - 1)
        text = f"{name} {physical[p]:.4g}, true {wanted[p]:.4g}: {sds:.1f} sd, {100 * off:.1f} % off"
        found.append(("change", text, bool(sds <= NEAR_SD and off <= NEAR)))
    return found


def clean(robot: Robot, truth: Array) -> Windows:
    """Noise-free windows of a motion of its own."""
    excitation = load_training(MODEL / "train.toml").excitation
    silent = np.zeros(len(robot.layout.noise))
    frames = record(robot, excitation, robot.parameters.to_physical(truth), 6.0, 99, noise=silent).frames
    return cut(frames, robot.layout, window_starts(frames, robot.layout))


def excess(robot: Robot, windows: Windows, z: Array) -> float:
    """Mean squared gap (floors²) of a replay without noise: what the parameters alone get wrong."""
    rollouts = Replay(robot, 2).run(windows, robot.parameters.to_physical(z))
    return float(np.mean(gap(windows, rollouts, robot.layout.noise) ** 2))


def parameters(robot: Robot, truth: list[Array], versions: list[Version | None], changed: list[str]) -> str:
    """True and corrected values of both scenes."""
    space, columns = robot.parameters, []
    for wanted, version in zip(truth, versions, strict=True):
        columns.append([f"{v:.4g}" for v in space.to_physical(wanted)])
        values = ["-"] * len(space) if version is None else [f"{v:.4g}" for v in space.to_physical(np.array(version.z))]
        columns.append(values)
    nominal = [f"{v:.4g}" for v in space.nominal]
    marks = ["changed" if n in changed else "" for n in space.names]
    head = ["parameter", "nominal", "true", "corrected", "true, later", "corrected", "unit", ""]
    return table(head, [list(row) for row in zip(space.names, nominal, *columns, space.units, marks, strict=True)])


def draw(path: Path, robot: Robot, watched: Watched, truth: dict[str, Any]) -> None:
    """Gap over time, and the changed parameters against the truth."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = truth["scenes"][1]["changed"]
    figure, axes = plt.subplots(1 + len(names), 1, sharex=True, figsize=(10, 3 + 2 * len(names)), layout="constrained")
    time_s, gaps = np.array(watched.gaps or [(0.0, np.nan)]).T
    axes[0].semilogy(time_s, gaps, linewidth=1)
    axes[0].set_ylabel("gap, noise sd")
    ends = [*(s["start_s"] for s in truth["scenes"][1:]), float(time_s[-1])]
    for axis, name in zip(axes[1:], names, strict=True):
        for scene, end in zip(truth["scenes"], ends, strict=True):
            axis.hlines(scene["parameters"][name], scene["start_s"], end, colors="black", linestyles="dashed")
        at = [0.0, *(t for t, _ in watched.estimates), float(time_s[-1])]
        nominal = float(robot.parameters.nominal[robot.parameters.names.index(name)])
        values = [nominal, *(v[name] for _, v in watched.estimates)]
        axis.step(at, [*values, values[-1]], where="post")
        axis.set_ylabel(f"{name.split('/', 1)[1]}\n{truth['units'][name]}")
    for scene, label in zip(truth["scenes"][1:], ("friction and payload change", "a soft stop"), strict=True):
        axes[0].text(scene["start_s"], np.nanmax(gaps, initial=1.0), f" {label}", color="tab:red", va="top")
        for axis in axes:
            axis.axvline(scene["start_s"], color="tab:red", linewidth=1)
    axes[-1].set_xlabel("s of the robot's clock; dashed: truth")
    figure.savefig(path, dpi=100)
    plt.close(figure)
