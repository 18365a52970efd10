"""From a recording: a simulated arm with hidden parameters is recorded, and gapd corrects the simulator from that.

    make demo-recording                        or      .venv/bin/python benchmarks/demo_recording.py --seed 7

Needs no torch. Writes the recording, the report and a picture to out/demo_recording/.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from gapd.fit.cycle import prepare, run
from gapd.fit.picture import draw
from gapd.fit.report import plain, text
from gapd.gap_model.bundle import open_active, open_bundle
from gapd.gap_model.learned import Learned
from gapd.sources.log_files import frames, write_csv
from gaptrain.settings import load_training
from gaptrain.simulate import record

MODEL = Path(__file__).parents[1] / "models" / "arm7"
# Hidden values lie within a factor exp(1.2) = 3.3 of nominal, and this share of the range inside the bounds.
SPREAD = 1.2
MARGIN = 0.1
SECONDS = 15.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="hidden parameters, motion and noise")
    parser.add_argument("--out", type=Path, default=MODEL.parents[1] / "out" / "demo_recording")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    robot = open_active(MODEL / "robot.toml")
    space = robot.parameters
    rng = np.random.default_rng(arguments.seed)
    margin = MARGIN * (space.z_max - space.z_min)
    hidden = space.z_nominal + rng.uniform(-SPREAD, SPREAD, len(space))
    hidden = np.clip(hidden, space.z_min + margin, space.z_max - margin)
    truth = space.to_physical(hidden)
    log = arguments.out / "recording.csv"
    excitation = load_training(MODEL / "train.toml").excitation
    write_csv(record(robot, excitation, truth, SECONDS, arguments.seed).frames, log, robot)
    print(f"recorded {SECONDS:g} s of a simulated arm7 with hidden parameters, seed {arguments.seed}: {log}\n")

    learned = Learned(open_bundle(robot), robot)
    report = run(robot, prepare(robot, frames([log], robot)), learned=learned, threads=2)
    print(text(report, robot, dict(zip(space.names, truth.tolist(), strict=True))))
    (arguments.out / "report.json").write_text(json.dumps(plain(report, robot), indent=2), encoding="utf-8")
    draw(report, robot, arguments.out / "demo.png")
    print(f"\npicture    {arguments.out / 'demo.png'}\nseconds    {time.monotonic() - began:.1f}")


if __name__ == "__main__":
    main()
