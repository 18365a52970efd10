"""Recordings of real hardware: gapd beside scipy and mujoco.sysid, judged on data that none of them was fitted to.

    make bench && .venv/bin/python benchmarks/real_logs.py            about 10 minutes on 2 cores
    .venv/bin/python benchmarks/real_logs.py --quick                  2 minutes: fewer starts and settings

The recordings are looked for in $GAPD_DATA, else in ../shared/data. One table for each set of recordings goes to
docs/results, one picture for each recording to out/real_logs. Every method starts from the nominal values.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from load_friction import fit_load_friction, with_load_friction
from numpy.typing import NDArray
from peers import PeerFit, multistart, scipy_fit, sysid_fit
from recordings import ROOT, SETS, THREADS, Cut, LogSet, cut_usable, data_folder
from tables import RESULTS, write_table

from gapd.fit.identify import Identification, identify
from gapd.gap.replay import Replay
from gapd.model.robot import Robot

Array = NDArray[np.float64]

# gapd may be this much worse than the better of scipy's two fits.
BAR = 1.05
# How the fitted recordings are cut.
FORMS = ("whole recordings", "windows")
# Settings of mujoco.sysid that are tried; the last is how it works if nothing is said.
SYSID: tuple[dict[str, Any], ...] = (
    {"scale": "log"},
    {"scale": "linear", "x_scale": "jac"},
    {"scale": "linear", "knots_only": False, "weighting": "signal"},
)


@dataclass(frozen=True)
class Row:
    """One line of a table; `z` (P,) scaled, errors in SI."""

    method: str
    z: Array
    errors: Array  # (W,) RMS error of each held-out window
    rollouts: int = 0
    rollout_s: float = 0.0
    seconds: float = 0.0
    notes: str = ""

    @property
    def rmse(self) -> float:
        """RMS error over all held-out windows."""
        return float(np.sqrt(np.mean(self.errors**2)))


def fixed(logs: LogSet) -> list[Row]:
    """Nominal and published values."""
    space = logs.robot.parameters
    points = {"nominal": space.z_nominal, "published": space.to_scaled(logs.published)}
    return [Row(name, z, logs.judged(z)) for name, z in points.items()]


def scipy_rows(logs: LogSet, starts: int) -> list[Row]:
    """Conventional replay fits; the best of the starts by its own cost."""
    rows = []
    for form in FORMS:
        data = logs.fitted(form)
        fit = scipy_fit(data.robot, data.windows, multistart(logs.robot, starts, seed=1), threads=THREADS)
        ends = [logs.factor * Row("", z, logs.judged(z)).rmse for z in fit.ends]
        notes = f"best of {starts} starts by its own cost; they end between {min(ends):.3g} and {max(ends):.3g}"
        rows.append(_peer_row(logs, f"scipy, {form}", fit, data, notes))
    return rows


def sysid_row(logs: LogSet, settings: Sequence[Mapping[str, Any]]) -> Row:
    """mujoco.sysid with all settings, on windows and whole recordings: the best on the held-out data counts."""
    fits: list[Row] = []
    for form, setting in itertools.product(FORMS, settings):
        data = logs.fitted(form, all_samples=not setting.get("knots_only", True))
        fit = sysid_fit(data.robot, data.windows, logs.robot.parameters.z_nominal, threads=THREADS, **setting)
        label = ", ".join([form, *(f"{key} {value}" for key, value in setting.items())])
        fits.append(_peer_row(logs, "mujoco.sysid", fit, data, label))
    best = min(fits, key=lambda row: row.rmse)
    worst = logs.factor * max(row.rmse for row in fits)
    notes = f"best on the held-out data of {len(fits)} settings, worst {worst:.3g}: {best.notes}"
    return replace(best, notes=notes)


def _peer_row(logs: LogSet, method: str, fit: PeerFit, data: Cut, notes: str) -> Row:
    layout = data.robot.layout
    row = Row(method, fit.z, logs.judged(fit.z), fit.rollouts, layout.knots * layout.knot_s, fit.seconds, notes)
    print(f"{logs.name}: {method}: {logs.factor * row.rmse:.3g} {logs.unit}, {fit.seconds:.0f} s, {notes}", flush=True)
    return row


def gapd_row(logs: LogSet) -> tuple[Row, Identification]:
    """The product as it is: windows that pass the gates, from nominal, finite differences, structure tests."""
    data = logs.fitted("windows")
    began = time.perf_counter()
    found = identify(Replay(data.robot, THREADS), data.windows, logs.robot.parameters.z_nominal)
    seconds = time.perf_counter() - began
    verdict = "structural: values are effective" if found.findings else "no finding"
    length = logs.robot.config.timing.window_s
    return Row("gapd", found.z, logs.judged(found.z), found.rollouts, length, seconds, verdict), found


def finding_row(logs: LogSet, found: Identification, starts: int) -> list[Row]:
    """What scipy reaches with the load friction that gapd found as one more parameter, which MuJoCo does not have."""
    if all(f.regressor != "load friction" for f in found.findings):
        return []
    data, began = logs.fitted("whole recordings"), time.perf_counter()
    best = fit_load_friction(data.robot, data.windows, multistart(logs.robot, starts, seed=1), THREADS)
    z, share = best.x[:-1], float(best.x[-1])

    def errors(data: Cut) -> Array:
        return data.errors(with_load_friction(data.robot, data.windows, best.x[None], THREADS)[0])

    def shown(errors: Array) -> str:
        return f"{logs.factor * Row('', z, errors).rmse:.3g}"

    notes = (
        f"whole recordings, friction loss + {share:.2g} x absolute actuator force in each step, best of {starts}; on "
        f"the fitted recordings {shown(errors(data))} {logs.unit}, gapd {shown(data.errors(data.predicted(found.z)))}"
    )
    layout, seconds = data.robot.layout, time.perf_counter() - began
    length = layout.knots * layout.knot_s
    return [Row("scipy with gapd's finding", z, errors(logs.held_out), best.rollouts, length, seconds, notes)]


def disagreement(logs: LogSet) -> list[str]:
    """One sentence for each parameter: how far the fits of the parts are apart, in combined standard deviations."""
    if len(logs.parts) != 2:
        return []
    fits = []
    for recordings in logs.parts.values():
        windows = cut_usable(logs.robot, logs.robot, recordings)
        start = logs.robot.parameters.z_nominal
        fits.append(identify(Replay(logs.robot, THREADS), windows, start, test_structure=False))
    first, second = fits
    sentences = []
    for p, name in enumerate(logs.robot.parameters.names):
        values = " and ".join(
            f"{_interval(logs.robot, fit, p)} at {part}" for part, fit in zip(logs.parts, fits, strict=True)
        )
        combined = float(np.hypot(first.uncertainty.sd[p], second.uncertainty.sd[p]))
        known = "unidentifiable" not in (first.uncertainty.status[p], second.uncertainty.status[p])
        apart = f"{abs(first.z[p] - second.z[p]) / combined:.1f} combined standard deviations apart"
        sentences.append(f"`{name}`: {values}: {apart if known else 'not identified'}.")
    return sentences


def _interval(robot: Robot, fit: Identification, p: int) -> str:
    """Value with its 90 % interval."""
    half = fit.uncertainty.half_width(0.9)
    space = robot.parameters
    ends = [space.to_physical(np.clip(fit.z + sign * half, space.z_min, space.z_max))[p] for sign in (-1, 1)]
    return f"{space.to_physical(fit.z)[p]:.3g} ({ends[0]:.3g} to {ends[1]:.3g})"


def best_scipy(rows: Sequence[Row]) -> Row:
    """The better of scipy's two fits on the held-out data."""
    return min((row for row in rows if row.method.startswith("scipy")), key=lambda row: row.rmse)


def bar_sentence(ours: Row, best: Row) -> str:
    """Whether gapd is good enough."""
    ratio = ours.rmse / best.rmse
    verdict = "met" if ratio <= BAR else "MISSED"
    return f"Bar: gapd at most {BAR} times the better of scipy ({best.method}): {ratio:.3f}, {verdict}."


def minimum_sentence(logs: LogSet, ours: Row, best: Row) -> str:
    """Whether the better of scipy's fits is the minimum of its own cost: the same fit, started at gapd's values."""
    data = logs.fitted(best.method.removeprefix("scipy, "))
    again = scipy_fit(data.robot, data.windows, np.stack([ours.z, best.z]), threads=THREADS)
    costs = [float(np.sum(data.errors(data.predicted(z)) ** 2)) for z in again.ends]
    error = logs.factor * Row("", again.ends[0], logs.judged(again.ends[0])).rmse
    return (
        f"Started at gapd's values, {best.method} ends at {costs[0] / costs[1]:.3f} of its cost and "
        f"{error:.3g} {logs.unit} on the held-out data."
    )


def by_recording(logs: LogSet, rows: Sequence[Row]) -> list[str]:
    """Held-out errors of each recording, where there are several."""
    shown = [f"{row.method} {', '.join(f'{logs.factor * e:.0f}' for e in row.errors)}" for row in rows]
    return [f"{logs.unit} in {', '.join(logs.held_out_names)}: {'; '.join(shown)}."] if logs.held_out_names else []


def run(logs: LogSet, quick: bool, out: Path, results: Path) -> dict[str, object]:
    """All methods on one set: table, pictures; returns what goes into the JSON file."""
    rows = fixed(logs) + scipy_rows(logs, 2 if quick else 6)
    rows.append(sysid_row(logs, SYSID[:1] if quick else SYSID))
    ours, found = gapd_row(logs)
    best, simulated = best_scipy(rows), finding_row(logs, found, 2 if quick else 4)
    rows += [ours, *simulated]
    notes = [bar_sentence(ours, best), minimum_sentence(logs, ours, best)]
    notes += by_recording(logs, [best, ours, *simulated])
    notes += [f"Finding: {f.sentence}." for f in found.findings]
    if found.findings:
        kept = [n for n, ok in zip(logs.robot.parameters.names, found.survives, strict=True) if ok]
        notes.append(f"Changes that survive the finding: {', '.join(kept) or 'none'}.")
    notes += disagreement(logs)
    write_table(logs.name, logs.title, *_table(logs, rows), notes, results)
    pictures(logs, [rows[0], best, ours], out)
    as_json = [{**asdict(row), "z": row.z.tolist(), "errors": row.errors.tolist(), "rmse": row.rmse} for row in rows]
    return {"set": logs.name, "ratio": ours.rmse / best.rmse, "rows": as_json, "notes": notes}


def _table(logs: LogSet, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    space = logs.robot.parameters
    names = [f"{name.split('/')[-1]}, {unit}" for name, unit in zip(space.names, space.units, strict=True)]
    head = ["method", f"held-out RMSE, {logs.unit}", "rollouts", "seconds", *names, "notes"]
    lines = []
    for row in rows:
        rollouts = f"{row.rollouts} of {row.rollout_s:.3g} s" if row.rollouts else "-"
        seconds = f"{row.seconds:.0f}" if row.rollouts else "-"
        values = [f"{value:.3g}" for value in space.to_physical(row.z)]
        lines.append([row.method, f"{logs.factor * row.rmse:.3g}", rollouts, seconds, *values, row.notes])
    return head, lines


def pictures(logs: LogSet, rows: Sequence[Row], out: Path) -> None:
    """One picture for each recording: position above, error of the replays below."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    out.mkdir(parents=True, exist_ok=True)
    for name, data in logs.drawn:
        figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(10, 6), layout="constrained")
        layout, measured = data.robot.layout, _joined(data.windows.measured)
        time_s = _joined(data.windows.start_s[:, None, None] + np.arange(layout.knots + 1)[:, None] * layout.knot_s)
        above.plot(time_s, measured, color="black", linewidth=1.5, label="measured")
        for row in rows:
            predicted = _joined(data.predicted(row.z))
            above.plot(time_s, predicted, linewidth=1, label=row.method)
            below.plot(time_s, logs.factor * (measured - predicted), linewidth=1)
        above.set(title=name, ylabel=f"{layout.channels[0]}, {data.robot.config.channel[0].unit}")
        below.set(xlabel="s", ylabel=f"measured - replay, {logs.unit}")
        above.legend()
        figure.savefig(out / f"{name}.png", dpi=100)
        plt.close(figure)


def _joined(values: Array) -> Array:
    """First channel of windows (W, K+1, C) in one row, with a gap after each window."""
    return np.concatenate([np.append(row, np.nan) for row in values[:, :, 0]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 starts, 1 setting of mujoco.sysid; docs stay as is")
    parser.add_argument("--only", choices=sorted(SETS), help="one set of recordings")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "real_logs", help="folder of the pictures")
    arguments = parser.parse_args()
    data = data_folder()
    if not data.is_dir():
        sys.exit(f"{data}: no such folder; set GAPD_DATA to the folder of the recordings")
    chosen = [arguments.only] if arguments.only else list(SETS)
    results = arguments.out if arguments.quick else RESULTS
    done = [run(SETS[name](data), arguments.quick, arguments.out, results) for name in chosen]
    if arguments.json:
        arguments.json.write_text(json.dumps(done, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
