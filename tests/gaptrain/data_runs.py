"""`gaptrain data` as a user runs it, on a tiny model folder, and what is there then."""

from __future__ import annotations

import hashlib
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

TRAIN = """
windows = {windows}
held_out = 16
shard_windows = 16
graph_windows = 32
batch = 16
[excitation]
home = [0.0]
amplitude = [1.2]
"""
# Shards, not the graph.
SHARD = "*/*-????.npz"


def ask_for(model: Path, windows: int) -> None:
    (model / "train.toml").write_text(TRAIN.format(windows=windows))


def start(model: Path, *options: str, file_bytes: int | None = None) -> subprocess.Popen[str]:
    def limit() -> None:
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    return subprocess.Popen(
        [Path(sys.executable).with_name("gaptrain"), "data", model, *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=limit,  # noqa: PLW1509 - no threads here
        env=os.environ | {"COLUMNS": "500"},
    )  # fmt: skip


def made(model: Path, *options: str, file_bytes: int | None = None) -> tuple[int, str]:
    """Exit code and stderr."""
    process = start(model, *options, file_bytes=file_bytes)
    _, said = process.communicate(timeout=100)
    return process.returncode, said


def hashes(model: Path) -> dict[str, str]:
    """Of all files that count as shards."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in (model / ".data").glob(SHARD)}


def wait_for_shards(model: Path, count: int) -> None:
    end = time.monotonic() + 60
    while len(hashes(model)) < count:
        assert time.monotonic() < end, "no shards come"
        time.sleep(0.02)
