"""Tables of the benchmarks: printed, and written to docs/results with the command, the machine and the date."""

from __future__ import annotations

import datetime as dt
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import mujoco

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def write_table(
    name: str,
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    folder: Path = RESULTS,
) -> None:
    """Print a table and write it to docs/results/NAME.md, or to another folder; `notes` follow as paragraphs.

    A table without rows is none.
    """
    if not rows:
        return
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]
    text = "\n".join([f"# {title}", "", _origin(), "", *lines, *(f"\n{note}" for note in notes), ""])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    print(text, flush=True)


def _origin() -> str:
    command = " ".join(["benchmarks/" + Path(sys.argv[0]).name, *map(shlex.quote, sys.argv[1:])])
    versions = f"Python {platform.python_version()}, mujoco {mujoco.__version__}"
    machine = f"{os.cpu_count()} cores, {platform.machine()}, {versions}"
    today = dt.datetime.now(tz=dt.UTC).date()
    return f"`.venv/bin/python {command}`, {today}, {machine}."
