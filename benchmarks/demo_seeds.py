"""The live demo with ten seeds, one after the other: what each of its judgements says.

.venv/bin/python benchmarks/demo_seeds.py                 about 14 minutes on 2 cores
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from tables import write_table

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(1, 11)))
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "demo_seeds", help="a folder for each seed in here")
    arguments = parser.parse_args()
    codes = {seed: run(seed, arguments.out / str(seed)) for seed in arguments.seeds}
    rows = [row(seed, code, arguments.out / str(seed) / "result.json") for seed, code in codes.items()]
    head = ["seed", "start", "change", "changed parameters", "stop", "right"]
    write_table("demo", "The live demo", head, rows)
    sys.exit(any(codes.values()))


def run(seed: int, out: Path) -> int:
    """One demo; its exit code."""
    print(f"seed {seed}", flush=True)
    command = [sys.executable, ROOT / "benchmarks" / "demo.py", "--seed", str(seed), "--out", out]
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode


def row(seed: int, code: int, result: Path) -> list[str]:
    """What the demo said of itself."""
    told: list[tuple[str, str, bool]] = json.loads(result.read_text(encoding="utf-8")) if result.exists() else []
    start, change, stop = ([t for s, t, _ in told if s == scene] for scene in ("start", "change", "stop"))
    shown = ["; ".join(cell) for cell in (start, change[:1], change[1:], stop)]
    return [str(seed), *shown, "no" if code else "yes"]


if __name__ == "__main__":
    main()
