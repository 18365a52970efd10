"""The problems of the estimator's benchmark: model folders under build/problems, and their gap models.

    .venv/bin/python benchmarks/problems.py                  write all, train what has no bundle
    .venv/bin/python benchmarks/problems.py arm7_10 hoist    only these

A folder that is there and was written from the same sources is reused with its bundle. Training is that of
`gaptrain fit`, on 2 cores 3 to 8 minutes each; servo_pendulum and arm7 come with theirs.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from problem_texts import frozen_but, hoist, motor_scales, pair_of_arms, pair_robot, strongest, torque_driven

from gapd.errors import ConfigError, GapdError, nearest
from gapd.gap_model.bundle import open_active, open_bundle
from gapd.gap_model.learned import Learned
from gapd.model.robot import Robot
from gaptrain.enumeration.enumerate import enumerate_parameters

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "models"
FOLDER = ROOT / "build" / "problems"
STAMP = "sources.sha256"
Texts = Mapping[str, str]

# Sizes that two cores train in minutes.
TRAIN = "windows = {windows}\nheld_out = 512\nhidden = {hidden}\nepochs = {epochs}\nbatch = 64\nseed = 1\n\n"
ARM_HOME = "home = [0.0, -0.4, 0.0, -2.0, 0.0, 1.7, 0.6]\namplitude = [0.6, 0.5, 0.6, 0.5, 0.7, 0.6, 0.8]\n"
SPEED = "low_hz = 0.2\nhigh_hz = 1.2\n"
POSITION = '[excitation]\nkind = "position"\n' + ARM_HOME + SPEED
# Stiff enough to hold the arm within 0.3 rad of the reference, soft enough for the light wrist at this time step.
TRACKING = '[excitation]\nkind = "tracking"\n' + ARM_HOME + SPEED + "gain = 300.0\ndamping = 15.0\n"

# Three joints that carry different loads, and the payload.
TEN = ("joint/joint[246]/damping", "joint/joint[246]/frictionloss", "actuator/joint[246]/torque_scale", "*payload*")
FIFTEEN = (*TEN, "joint/joint[246]/armature", "joint/joint1/damping", "joint/joint1/frictionloss")


def train_text(windows: int, hidden: int, epochs: int, excitation: str) -> str:
    """train.toml with these sizes."""
    return TRAIN.format(windows=windows, hidden=hidden, epochs=epochs) + excitation


@dataclass(frozen=True)
class Spec:
    """One problem: what it is, the texts of its folder, and what fits it."""

    title: str
    texts: Callable[[], Texts]  # of the files in its folder
    base: Path | None = None  # a model that it is a copy of, bundle included
    free: tuple[str, ...] = ()  # names of parameters in an ambiguous group
    keep: int = 0  # of an enumeration, the parameters with the largest effects


def _arm(patterns: tuple[str, ...], robot: str) -> Callable[[], Texts]:
    def texts() -> Texts:
        base = _read(MODELS / "arm7")
        return base | {
            "parameters.toml": frozen_but(base["parameters.toml"], patterns),
            "robot.toml": _unpinned(base["robot.toml"], "arm7", robot),
            "train.toml": train_text(4096, 160, 20, POSITION),
        }

    return texts


def _torque_arm() -> Texts:
    base = _arm(TEN, "torque_10")()
    return base | {
        "model.xml": torque_driven(base["model.xml"]),
        "parameters.toml": motor_scales(base["parameters.toml"]),
        "train.toml": train_text(4096, 160, 20, TRACKING),
    }


def _enumerated(robot: str, pair: bool) -> Callable[[], Texts]:
    def texts() -> Texts:
        base = _read(MODELS / "arm7")
        model = pair_of_arms(base["model.xml"]) if pair else base["model.xml"]
        toml = _unpinned(base["robot.toml"], "arm7", robot)
        motion = POSITION
        if pair:
            toml = pair_robot(toml)
            motion = "".join(_doubled(line) for line in POSITION.splitlines(keepends=True))
        return {
            "model.xml": model, "robot.toml": toml, "parameters.toml": _all_of(model),
            "train.toml": train_text(4096, 160, 20, motion),
        }  # fmt: skip

    return texts


def _doubled(line: str) -> str:
    """A list in train.toml twice as long, for two arms."""
    return line.replace("]", ", " + line[line.index("[") + 1 :].strip()) if "= [" in line else line


def _all_of(model: str) -> str:
    """Every tunable number of an MJCF, as `gaptrain enumerate` gives them."""
    scratch = FOLDER / ".enumerate"
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "model.xml").write_text(model, encoding="utf-8")
    enumerate_parameters(scratch / "model.xml", scratch / "parameters.toml", (), force=True)
    text = (scratch / "parameters.toml").read_text(encoding="utf-8")
    shutil.rmtree(scratch)
    return text


SPECS: dict[str, Spec] = {
    "servo_pendulum": Spec("servo pendulum, 6 parameters", lambda: _read(MODELS / "servo_pendulum"),
                           base=MODELS / "servo_pendulum"),
    "arm7_10": Spec("arm7, position servos, 10 parameters", _arm(TEN, "arm7_10")),
    "arm7_15": Spec("arm7, position servos, 15 parameters", _arm(FIFTEEN, "arm7_15")),
    "arm7": Spec("arm7, position servos, 29 parameters", lambda: _read(MODELS / "arm7"), base=MODELS / "arm7"),
    "torque_10": Spec("arm7 driven by torques, 10 parameters", _torque_arm),
    "hoist": Spec("hoist: mass and gear cannot be told apart, 10 parameters", hoist,
                  free=("body/carriage/mass", "actuator/lift/gear")),
    "arm7_100": Spec("arm7, 100 of all numbers of the model", _enumerated("arm7_100", pair=False), keep=100),
    "pair_400": Spec("two arm7, 400 of all numbers of the model", _enumerated("pair_400", pair=True), keep=400),
}  # fmt: skip
LARGE = ("arm7_100", "pair_400")


def spec_of(name: str) -> Spec:
    """The problem of this name; ConfigError with the nearest one if there is none."""
    if name not in SPECS:
        raise ConfigError(f"--problem {name}: no such problem{nearest(name, list(SPECS))}; known: {', '.join(SPECS)}")
    return SPECS[name]


def folder_of(name: str, root: Path = FOLDER) -> Path:
    """Model folder of a problem, written anew where its sources are others than those it was written from."""
    spec, folder = spec_of(name), root / name
    texts = spec.texts()
    told = (spec.keep, sorted(texts.items()), _bundle_digest(spec))
    stamp = hashlib.sha256(repr(told).encode()).hexdigest()
    if (folder / STAMP).is_file() and (folder / STAMP).read_text(encoding="utf-8") == stamp:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    if spec.base is not None:
        shutil.copytree(spec.base / "bundle", folder / "bundle")
    if spec.keep:
        chosen = strongest(folder, spec.keep)
        (folder / "parameters.toml").write_text(frozen_but(texts["parameters.toml"], chosen), encoding="utf-8")
    (folder / STAMP).write_text(stamp, encoding="utf-8")
    return folder


def open_problem(name: str, train: bool = True, root: Path = FOLDER) -> tuple[Robot, Learned | None]:
    """The problem's robot and its gap model, trained if there is none; None where `gaptrain fit` refuses."""
    folder = folder_of(name, root)
    if train and not (folder / "bundle").is_dir():
        try:
            _train(folder)
        except GapdError as error:
            print(f"{name}: no gap model: {error}", flush=True)
    robot = open_active(folder / "robot.toml")
    return robot, Learned(open_bundle(robot), robot) if (folder / "bundle").is_dir() else None


def _train(folder: Path) -> None:
    from gaptrain.fit import fit  # torch takes seconds to import

    wall, cpu = time.perf_counter(), time.process_time()
    fit(folder)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{folder.name}: data, training and export took {wall:.0f} s, {cpu:.0f} s of CPU", flush=True)


def _bundle_digest(spec: Spec) -> str:
    if spec.base is None:
        return ""
    return hashlib.sha256((spec.base / "bundle" / "manifest.json").read_bytes()).hexdigest()


def _read(folder: Path) -> dict[str, str]:
    names = ("model.xml", "parameters.toml", "robot.toml", "train.toml")
    return {name: (folder / name).read_text(encoding="utf-8") for name in names}


def _unpinned(text: str, old: str, new: str) -> str:
    """robot.toml under another name and without a bundle."""
    lines = text.replace(f'robot = "{old}"', f'robot = "{new}"').splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("bundle"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", nargs="*", default=list(SPECS), help="which; all by default")
    for name in parser.parse_args().problem:
        robot, learned = open_problem(name)
        state = "no gap model" if learned is None else f"bundle {learned.bundle.sha256[:12]}"
        print(f"{folder_of(name)}: {len(robot.parameters)} free parameters, {state}", flush=True)


if __name__ == "__main__":
    main()
