"""Speed and truth of the fit: gapd, plain finite differences, Broyden and mujoco.sysid on simulated robots.

    make bench && .venv/bin/python benchmarks/estimator.py            about 6 h on 2 cores, training included
    .venv/bin/python benchmarks/estimator.py --quick                  less than 10 minutes
    .venv/bin/python benchmarks/estimator.py --problem arm7 --tables far,coverage

Tables: speed (rollouts and time, all methods), far (far starts), coverage (intervals), groups (mass and gear),
x0 (noisy initial states), size (hundreds of parameters); then what was asked beside what came out. Problems are those
of benchmarks/problems.py, which trains their gap models when they are first used. Each single result is a line in the
file that --json names: an interrupted run goes on, one with more truths adds to it, and results of other code are not
used. Every method starts at nominal, on the same windows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import estimator_coverage
import estimator_far
import estimator_groups
import estimator_size
import estimator_speed
import estimator_x0
from estimator_runs import Bar, Plan, Runs
from problems import FOLDER, SPECS, spec_of
from tables import RESULTS, write_table

from gapd.errors import ConfigError, GapdError, nearest

TABLES: dict[str, Callable[[Runs, Plan], list[Bar]]] = {
    "speed": estimator_speed.run,
    "far": estimator_far.run,
    "coverage": estimator_coverage.run,
    "groups": estimator_groups.run,
    "x0": estimator_x0.run,
    "size": estimator_size.run,
}
DEFAULT_FILE = Path(__file__).parents[1] / "out" / "estimator.jsonl"
# Those that come with a gap model, and the hoist, which trains in a few minutes.
QUICK = ("servo_pendulum", "arm7", "hoist")


def main() -> None:
    arguments = _parser().parse_args()
    try:
        _run(arguments, _tables(arguments.tables), _plan(arguments))
    except GapdError as error:
        print(f"estimator.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _run(arguments: argparse.Namespace, tables: list[str], plan: Plan) -> None:
    runs = Runs(arguments.json, arguments.root, arguments.results)
    bars = [bar for name in tables for bar in TABLES[name](runs, plan)]
    if bars:
        lines = [[b.problem, b.what, b.wanted, b.measured, "yes" if b.met else "no"] for b in bars]
        head = ["problem", "what", "asked", "measured", "met"]
        write_table("estimator-bars", "What was asked of the estimator", head, lines, (), runs.tables)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few truths, three problems, no mujoco.sysid")
    parser.add_argument("--problem", nargs="+", metavar="NAME", help=f"of {', '.join(SPECS)}")
    parser.add_argument("--tables", default=",".join(TABLES), help="which, with commas between")
    parser.add_argument("--truths", type=int, help="truths of each table but these two; 20, with --quick 2")
    parser.add_argument("--far-truths", type=int, help="truths of the far starts; 40, with --quick 3")
    parser.add_argument("--coverage-truths", type=int, help="truths of the coverage; 200, with --quick 6")
    parser.add_argument("--sysid-truths", type=int, help="truths on which mujoco.sysid runs too; 4, with --quick 0")
    parser.add_argument("--first", type=int, default=0, help="seed of the first truth")
    parser.add_argument("--windows", type=int, default=32, help="windows of a fit")
    parser.add_argument("--json", type=Path, default=DEFAULT_FILE, help="file of single results, added to")
    parser.add_argument("--root", type=Path, default=FOLDER, help="where the problems' model folders are")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the tables go")
    return parser


def _plan(arguments: argparse.Namespace) -> Plan:
    problems = tuple(arguments.problem or (QUICK if arguments.quick else SPECS))
    for name in problems:
        spec_of(name)
    usual = {"truths": 2, "far_truths": 3, "coverage_truths": 6, "sysid_truths": 0}
    if not arguments.quick:
        usual = {"truths": 20, "far_truths": 40, "coverage_truths": 200, "sysid_truths": 4}
    counts = {name: getattr(arguments, name) if getattr(arguments, name) is not None else usual[name] for name in usual}
    for name, count in counts.items():
        least = 0 if name == "sysid_truths" else 1
        if count < least:
            raise ConfigError(f"--{name.replace('_', '-')} {count}: use at least {least}")
    truths, far, coverage, sysid = counts.values()
    return Plan(problems, truths, far, coverage, min(sysid, truths), arguments.first, arguments.windows)


def _tables(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in TABLES:
            raise ConfigError(
                f"--tables {name}: no such table{nearest(name, list(TABLES))}; known: {', '.join(TABLES)}"
            )
    return names


if __name__ == "__main__":
    main()
