"""Recordings of real hardware as sets: what is fitted, in short windows and whole, and what is held out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from trial import MODELS, every_step

from gapd.gap.replay import Replay
from gapd.measured.gates import usable_starts
from gapd.measured.windows import Frames, Windows, cut, window_starts
from gapd.model.robot import Robot, open_robot
from gapd.sources.log_files import read_csv

Array = NDArray[np.float64]

ROOT = Path(__file__).parents[1]
THREADS = 2


@dataclass(frozen=True)
class Cut:
    """Windows with the robot, and so the time grid, that they were cut for."""

    robot: Robot
    windows: Windows

    def predicted(self, z: Array) -> Array:
        """Replay (W, K+1, C) from the measured initial states with scaled values (P,)."""
        return Replay(self.robot, THREADS).run(self.windows, self.robot.parameters.to_physical(z)).predicted

    def errors(self, predicted: Array) -> Array:
        """RMS error (W,) of the first channel in each window, the initial knot left out."""
        squared = (self.windows.measured - predicted)[:, 1:, 0] ** 2
        return np.asarray(np.sqrt(np.nanmean(squared, axis=1)))


@dataclass(frozen=True)
class LogSet:
    """One machine: what is fitted, in short windows and in whole recordings, and what is held out."""

    name: str
    title: str
    robot: Robot
    recordings: tuple[Frames, ...]  # for the fit
    held_out: Cut
    parts: Mapping[str, tuple[Frames, ...]]  # subsets of the recordings whose fits should agree
    published: Array  # (P,) physical
    unit: str
    factor: float  # from SI to the unit of the table
    drawn: tuple[tuple[str, Cut], ...]  # name of a recording and what its picture shows
    held_out_names: tuple[str, ...] = ()  # of the held-out windows, where each is a whole recording

    def fitted(self, form: str, all_samples: bool = False) -> Cut:
        """The fitted recordings in the form asked for, at the knots of the robot or with all samples."""
        grid = every_step(self.robot) if all_samples else self.robot
        if form == "whole recordings":
            return whole(grid, self.recordings)
        return Cut(grid, cut_usable(self.robot, grid, self.recordings))

    def judged(self, z: Array) -> Array:
        """RMS error (W,) in each held-out window of the replay with scaled values (P,)."""
        return self.held_out.errors(self.held_out.predicted(z))


def cut_usable(robot: Robot, grid: Robot, recordings: Sequence[Frames]) -> Windows:
    """All windows that pass the gates, cut on the time grid of `grid`."""
    runs = [(i, run) for i, frames in enumerate(recordings) for run in usable_starts(frames, robot)]
    return Windows.concatenate([cut(r.frames, grid.layout, r.usable, source=i) for i, r in runs if len(r.usable)])


def whole(robot: Robot, recordings: Sequence[Frames]) -> Cut:
    """One window for each recording, as long as the shortest of them."""
    shortest = min(frames.timestamp[-1] - frames.timestamp[0] for frames in recordings)
    knots = int((shortest + robot.layout.step_s / 10) / robot.layout.knot_s)
    long = replace(robot, layout=replace(robot.layout, knots=knots))
    windows = [cut(frames, long.layout, frames.timestamp[:1], source=i) for i, frames in enumerate(recordings)]
    return Cut(long, Windows.concatenate(windows))


def servo(data: Path, motions: str = "*") -> LogSet:
    """XL330 with a pendulum: fitted on firmware gains 100 and 200, judged on 800 over 6 s of closed loop."""
    robot = open_robot(MODELS / "servo_pendulum" / "robot.toml")
    by_gain = {
        gain: tuple(read_csv(path, robot) for path in sorted((data / "servo_xl330").glob(f"{motions}_kp{gain}.csv")))
        for gain in (100, 200, 800)
    }
    every = [frames for recordings in by_gain.values() for frames in recordings]
    return LogSet(
        "real-servo-xl330", "XL330 servo: fitted at firmware gains 100 and 200, closed loop of 6 s at 800", robot,
        by_gain[100] + by_gain[200], whole(robot, by_gain[800]), {f"gain {g}": by_gain[g] for g in (100, 200)},
        np.array([0.0963, 0.0372, 0.00181, 0.0128, 0.0037, -0.031]), "mrad", 1e3,
        tuple((frames.name.removesuffix(".csv"), whole(robot, [frames])) for frames in every),
        tuple(frames.name.removesuffix(".csv") for frames in by_gain[800]),
    )  # fmt: skip


def ballscrew(data: Path) -> LogSet:
    """EMPS: fitted on the first half, judged on the second in open-loop windows of 0.5 s."""
    robot = open_robot(MODELS / "ballscrew" / "robot.toml")
    frames = read_csv(data / "emps" / "train.csv", robot)
    middle = float(frames.timestamp[len(frames) // 2])
    first, second = frames.between(-np.inf, middle), frames.between(middle, np.inf)
    held_out = Cut(robot, cut(second, robot.layout, window_starts(second, robot.layout)))
    return LogSet(
        "real-emps", "EMPS ball screw: fitted on the first half, open-loop windows of 0.5 s of the second", robot,
        (first,), held_out, {}, np.array([95.109, 203.503, 20.394, -3.165]), "mm", 1e3, (("emps", held_out),),
    )  # fmt: skip


SETS = {"servo": servo, "ballscrew": ballscrew}


def data_folder() -> Path:
    """Folder of the recordings."""
    return Path(os.environ.get("GAPD_DATA", ROOT.parent / "shared" / "data"))
