"""Ctrl-C ends every command of gaptrain with one line and code 130, from the moment on at which its main runs."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

LINE = "gaptrain: interrupted; the same command goes on where it was\n"
# A shell gives its background jobs an ignored SIGINT, and they pass it on.
START = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
{}
from gaptrain.cli import main
make = main.make_context
main.make_context = lambda *a, **k: (print("begun", flush=True), make(*a, **k))[1]
main()
"""
# An import that takes its time, and makes of an exception what the C code of numpy makes of it.
SLOW = """
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == {!r}:
            print("importing", flush=True)
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                raise ImportError("numpy.core.multiarray failed to import")
sys.meta_path.insert(0, Slow())
"""
TRAIN = "windows = 4096\nheld_out = 512\nbatch = 16\n[excitation]\nhome = [0.0]\namplitude = [1.2]\n"
COMMANDS = {
    "gaptrain.enumeration.enumerate": ("enumerate", "model.xml"),
    "gaptrain.fit": ("fit", "."),
    "torch": ("export", "."),
    "gaptrain.graph": ("graph", "."),
    "gaptrain.host.program": ("host", "--state", "state"),
    "gaptrain.host.enrolment": ("enrol", "--state", "state", "--list"),
    "gaptrain.host.job_list": ("jobs", "--state", "state"),
    "gaptrain.standin": ("standin", "--config", "robot.toml"),
    "mujoco": ("--version",),
}


@pytest.fixture
def folder(make_robot: Callable[[Path], object], tmp_path: Path) -> Path:
    """The tiny robot, with nothing made yet."""
    make_robot(tmp_path)
    (tmp_path / "train.toml").write_text(TRAIN)
    return tmp_path


def started(folder: Path, code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", START.format(code), *arguments]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def interrupted(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    return process.returncode, out, error


@pytest.mark.parametrize("module", sorted(COMMANDS))
def test_while_a_command_imports(folder: Path, module: str) -> None:
    process = started(folder, SLOW.format(module), *COMMANDS[module])
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    assert interrupted(process) == (130, "", LINE)


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6])
def test_at_any_moment_of_a_fit(folder: Path, delay_s: float) -> None:
    """Python, C code and what it calls: click, msgspec, numpy, mujoco and torch as they are."""
    process = started(folder, "", "fit", ".", "--threads", "1")
    time.sleep(delay_s)
    code, _, error = interrupted(process)
    assert (code, error) == (130, LINE)


def test_while_data_are_made(folder: Path) -> None:
    process = started(folder, "", "fit", ".", "--threads", "1")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("tiny: seed")
    time.sleep(0.5)
    code, _, error = interrupted(process)
    assert (code, error) == (130, LINE)
    assert not list(folder.glob("bundle/*"))
