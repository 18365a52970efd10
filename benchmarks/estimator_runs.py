"""Single results of a long benchmark, kept line by line: an interrupted run goes on, a bigger one adds to it."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from problems import FOLDER, STAMP, open_problem
from tables import RESULTS

from gapd.gap_model.learned import Learned
from gapd.model.robot import Robot

ROOT = Path(__file__).parents[1]
THREADS = 2
# What decides the result of a fit, of a peer, and the windows that both see.
FITTED_BY = ("daemon/gapd/fit", "daemon/gapd/gap", "daemon/gapd/gap_model")
PEERS_BY = ("benchmarks/peers.py",)
WINDOWS_BY = ("benchmarks/trial.py", "daemon/gapd/measured/windows.py", "trainer/gaptrain/simulate.py")
Row = Mapping[str, Any]


def code_digest(paths: Sequence[str]) -> str:
    """Hash of what the Python files and folders under ROOT say; comments and layout do not count."""
    found = [file for path in paths for file in (sorted((ROOT / path).rglob("*.py")) or [ROOT / path])]
    trees = [ast.dump(ast.parse(file.read_text(encoding="utf-8"))) for file in found]
    return hashlib.sha256("\n".join(trees).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Plan:
    """What to run."""

    problems: tuple[str, ...]
    truths: int  # of each table but those two
    far: int  # truths of the far starts
    coverage: int  # truths of the coverage
    sysid: int  # truths on which mujoco.sysid runs too
    first: int = 0  # seed of the first truth
    windows: int = 32

    def seeds(self, count: int) -> range:
        """Seeds of the first `count` truths."""
        return range(self.first, self.first + count)


@dataclass(frozen=True)
class Bar:
    """One bar: what was asked and what came out."""

    problem: str
    what: str
    wanted: str
    measured: str
    met: bool


@dataclass
class Runs:
    """Results by key, in a JSON-lines file. `root` holds the problems' model folders, `tables` gets what is written."""

    path: Path
    root: Path = FOLDER
    tables: Path = RESULTS
    known: dict[str, Row] = field(default_factory=dict)
    _opened: dict[str, tuple[Robot, Learned | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read what is there; a line cut off by an interruption is skipped."""
        if not self.path.exists():
            return
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
                self.known[_text(entry["key"])] = entry["row"]
            except (ValueError, TypeError, KeyError):
                print(f"{self.path}: a line that is no result is skipped", flush=True)

    def problem(self, name: str) -> tuple[Path, Robot, Learned | None]:
        """Model folder, robot and gap model of a problem; made and trained once."""
        if name not in self._opened:
            self._opened[name] = open_problem(name, root=self.root)
        return self.root / name, *self._opened[name]

    def once(self, key: Mapping[str, Any], problem: str, compute: Callable[[], Row], by: Sequence[str]) -> Row:
        """The result of this key, from the file or computed and added to it.

        A result counts as long as the problem's folder and the code in `by` are what they were.
        """
        folder, _, learned = self.problem(problem)
        stamp = (folder / STAMP).read_text(encoding="utf-8")[:12]
        bundle = learned.bundle.sha256[:12] if learned is not None else ""
        full = {**key, "problem": problem, "sources": stamp, "bundle": bundle, "code": code_digest((*by, *WINDOWS_BY))}
        text = _text(full)
        if text not in self.known:
            row = compute()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": full, "row": row}) + "\n")
            self.known[text] = row
            print(f"{text}: {json.dumps(row)[:300]}", flush=True)
        return self.known[text]


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)
