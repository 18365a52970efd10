"""The command as a user runs it: a process of its own, its output, and its exit code."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gapd import __version__
from gapd.keys import write_keys
from gapd.live.recorder import Recorder
from gapd.messages.frames import Frame
from gapd.model.mjcf import load_model
from gapd.model.robot import Robot
from gapd.sources.log_files import write_csv

MODELS = Path(__file__).parents[2] / "models"
TRUTH = np.array([1.5, 2.0, 0.6, 1.8])


@pytest.fixture(scope="module")
def log(tiny: Robot, recorded: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "swing.csv"
    write_csv(recorded(tiny, tiny.parameters.nominal * TRUTH, 20.0, seed=2).frames, path, tiny)
    return path


@pytest.fixture(scope="module")
def long_log(tiny: Robot, recorded: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording whose fit takes several seconds on any machine."""
    path = tmp_path_factory.mktemp("logs") / "long.csv"
    write_csv(recorded(tiny, tiny.parameters.nominal * TRUTH, 200.0, seed=2).frames, path, tiny)
    return path


@pytest.fixture
def config(tiny_folder: Path) -> Path:
    return tiny_folder / "robot.toml"


def test_replay_prints_tables_and_the_decision(gapd: Any, config: Path, log: Path, tmp_path: Path) -> None:
    picture = tmp_path / "gap.png"
    done = gapd("replay", "--config", config, "--picture", picture, log)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["parameter", "before", "fitted", "90", "%", "interval", "unit", "status", "use"]
    for name in ("actuator/servo/kp", "joint/j/damping", "joint/j/frictionloss", "joint/j/armature"):
        assert any(line.startswith(name) and line.split()[-2:] == ["estimated", "sent"] for line in lines)
    assert re.search(r"^windows    \d+ ok.*; \d+ fitted, \d+ held out$", done.stdout, re.MULTILINE)
    assert re.search(r"^decision   OK correct: .* accepted", done.stdout, re.MULTILINE)
    assert lines[-1].startswith("remedy     nothing to do")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_replay_gives_the_same_json_each_time_whatever_the_threads(
    gapd: Any, config: Path, log: Path, tiny: Robot
) -> None:
    first, again, threaded = (
        gapd("replay", "--config", config, "--json", *more, log) for more in ([], [], ["--threads", "2"])
    )
    assert (first.returncode, first.stderr) == (0, "")
    assert again.stdout == first.stdout
    assert threaded.stdout == first.stdout
    values = json.loads(first.stdout)
    assert sum(values["windows"]["verdicts"].values()) == 100
    assert values["action"] == "correct"
    assert values["gap"]["before"] > 5
    assert values["gap"]["after"] < 1.1
    truth = dict(zip(tiny.parameters.names, tiny.parameters.nominal * TRUTH, strict=True))
    assert set(values["corrections"]) == set(truth)
    for parameter in values["parameters"]:
        assert values["corrections"][parameter["name"]] == parameter["after"]
        assert abs(parameter["after"] - truth[parameter["name"]]) < 4 * parameter["sd"]


def test_replay_from_the_present_values_holds(gapd: Any, config: Path, log: Path, tiny: Robot) -> None:
    present = [
        f"--set={name}={value!r}"
        for name, value in zip(tiny.parameters.names, (tiny.parameters.nominal * TRUTH).tolist(), strict=True)
    ]
    done = gapd("replay", "--config", config, "--json", *present, log)
    values = json.loads(done.stdout)
    assert values["action"] == "hold"
    assert values["corrections"] == {}
    assert [p["before"] for p in values["parameters"]] == pytest.approx(tiny.parameters.nominal * TRUTH)


@pytest.fixture(scope="module")
def recording(commissioning: list[Frame], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("recordings"), commissioning)


def record(folder: Path, frames: list[Frame]) -> Path:
    """A recording of frames that arrive when they are sent."""
    recorder = Recorder(folder, "tiny")
    for frame in frames:
        recorder.frame(frame, frame.timestamp)
    recorder.close()
    return recorder.finished[-1]


@pytest.mark.parametrize("more", [[], ["--threads", "2"]])
def test_the_model_at_the_end_of_a_recording(
    gapd: Any, config: Path, recording: Path, tiny: Robot, tmp_path: Path, more: list[str]
) -> None:
    path = tmp_path / "corrected.xml"
    done = gapd("replay", "--config", config, "--json", "--write-model", path, *more, recording)
    assert (done.returncode, done.stderr) == (0, "")
    (decision,) = json.loads(done.stdout)
    assert decision["what"] == "correct"
    written = load_model(path)
    assert written.dof_damping[0] == pytest.approx(decision["values"]["joint/j/damping"], rel=1e-5)
    assert written.dof_damping[0] == pytest.approx(0.1, rel=0.1)
    assert written.actuator_gainprm[0, 0] == pytest.approx(decision["values"]["actuator/servo/kp"], rel=1e-5)


def test_a_recording_that_ends_too_soon_says_so_last(
    gapd: Any, config: Path, commissioning: list[Frame], recording: Path, tmp_path: Path
) -> None:
    short = gapd("replay", "--config", config, record(tmp_path, commissioning[:1000]))
    assert (short.returncode, short.stderr) == (0, "")
    lines = short.stdout.splitlines()
    assert lines[0] == "level     OK"
    assert re.fullmatch(r"the recording ends before the robot is commissioned: at most \d+ s of .*", lines[-1])
    whole = gapd("replay", "--config", config, recording)
    assert "the recording ends" not in whole.stdout
    assert whole.stdout.splitlines()[-1].startswith("joint/j/armature")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--picture", "gap.png"], "--picture gap.png: is for CSV logs only; leave it out for recordings (.mcap)"),
        (["--set", "a=1"], "--set a=1: is for CSV logs only; leave it out for recordings (.mcap)"),
        (["log.csv"], "log.csv: recordings (.mcap) take no CSV logs beside them; replay one kind at a time"),
        (["--write-model", "a.txt"], "model a.txt: does not end in .xml; name such a file"),
    ],
)
def test_what_does_not_go_with_recordings_is_refused(
    gapd: Any, config: Path, recording: Path, arguments: list[str], told: str
) -> None:
    done = gapd("replay", "--config", config, recording, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"gapd: {told}\n")


def test_check_looks_at_the_keys_of_the_live_tables(gapd: Any, make_robot: Any, tiny_toml: str, tmp_path: Path) -> None:
    link = '[live.link]\nname = "r1"\nendpoint = "tcp://127.0.0.1:5590"\n'
    make_robot(tmp_path, robot=tiny_toml + link + 'server_public_key = "host.pub"\nsecret_key = "r1.key"\n')
    done = gapd("check", "--config", tmp_path / "robot.toml")
    assert done.returncode == 2
    assert "r1.key: no such key file; write one with gapd keygen" in done.stderr
    write_keys(tmp_path, "r1")
    write_keys(tmp_path, "host")
    done = gapd("check", "--config", tmp_path / "robot.toml")
    assert (done.returncode, done.stderr) == (0, "")
    assert "live        frames from tcp://127.0.0.1:5571" in done.stdout
    assert "live        host tcp://127.0.0.1:5590" in done.stdout


def test_check_says_what_is_there(gapd: Any, config: Path, tmp_path: Path) -> None:
    done = gapd("check", "--config", config)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "robot       tiny",
        f"model       {config.parent / 'model.xml'}: 1 joints, 1 actuators",
        "parameters  4 free, 0 frozen",
        "channels    3; window 20 knots of 0.01 s",
        "bundle      none: fits use finite differences",
        "ok",
    ]


def test_check_of_a_robot_with_a_bundle(gapd: Any) -> None:
    folder = Path(__file__).parents[2] / "models" / "arm7"
    done = gapd("check", "--config", folder / "robot.toml")
    assert done.returncode == 0
    assert f"bundle      {folder / 'bundle'}: verified, sha256 " in done.stdout
    assert done.stdout.endswith("ok\n")


@pytest.mark.parametrize("how", ["version", "--version"])
def test_version_names_what_decides_about_results(gapd: Any, how: str) -> None:
    done = gapd(how)
    assert done.returncode == 0
    assert re.fullmatch(r"gapd \S+, mujoco 4\.\S+, onnxruntime \S+, numpy \S+\n", done.stdout)
    assert done.stdout.startswith(f"gapd {__version__},")


def test_help_is_no_failure(gapd: Any) -> None:
    done = gapd("--help")
    assert done.returncode == 0
    for verb in ("check", "replay", "version"):
        assert f"  {verb} " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "log.csv"], "Missing option '--config'"),
        (["replay", "--config", "robot.toml", "--thread", "2", "log.csv"], "No such option '--thread'"),
        (["reply"], "No such command 'reply'"),
    ],
)
def test_a_call_that_is_no_command_is_a_usage_error(gapd: Any, arguments: list[str], message: str) -> None:
    done = gapd(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def run_python(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, **options
    )


GAPD = Path(sys.executable).with_name("gapd")


@pytest.mark.parametrize("command", [["version"], ["--version"], ["--help"], ["check", "--config", "{}"]])
def test_output_that_cannot_be_written_is_one_line(config: Path, command: list[str]) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [GAPD, *(c.format(config) for c in command)], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "gapd: standard output: No space left on device; free space, or name another place\n"


def test_a_report_that_cannot_be_written_is_one_line(config: Path, log: Path) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        command = [GAPD, "replay", "--config", config, log]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("gapd: standard output: No space left")


def test_a_reader_that_goes_away_is_no_fault() -> None:
    read, wrote = os.pipe()
    os.close(read)
    done = subprocess.run([GAPD, "version"], stdout=wrote, stderr=subprocess.PIPE, text=True, check=False)
    os.close(wrote)
    assert (done.returncode, done.stderr) == (1, "")


def test_nothing_slow_is_imported_before_an_interrupt_is_taken() -> None:
    slow = "('numpy', 'mujoco', 'onnxruntime', 'msgspec', 'gapd.model.robot')"
    done = run_python(f"import sys, gapd.cli; print([n for n in {slow} if n in sys.modules])")
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("command", ["['version']", "['check', '--config', 'robot.toml']"])
def test_an_interrupt_while_importing_is_quiet(tmp_path: Path, command: str) -> None:
    (tmp_path / "mujoco.py").write_text("raise KeyboardInterrupt")
    code = f"import sys; sys.argv = ['gapd', *{command}]; from gapd.cli import main; main()"
    done = run_python(code, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.2, 0.3, 0.5, 0.8])
def test_an_interrupt_ends_a_command_quietly(config: Path, long_log: Path, delay_s: float) -> None:
    """From the moment on at which main runs, in Python and in C code."""
    # A shell gives its background jobs an ignored SIGINT, and they pass it on.
    code = f"""import signal; signal.signal(signal.SIGINT, signal.default_int_handler)
import sys; sys.argv = ["gapd", "replay", "--config", "{config}", "{long_log}"]
import gapd.cli
gapd.cli.cli = lambda *a, cli=gapd.cli.cli, **k: (print("begun", flush=True), cli(*a, **k))
gapd.cli.main()"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=20)
    assert (process.returncode, out, error) == (-signal.SIGINT, "", "")


def without_command(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target)
    text = (target / "robot.toml").read_text()
    (target / "robot.toml").write_text(text.replace('[log.commands]\nservo = "command_j"\n', ""))
    return target / "robot.toml"


def test_an_actuator_without_a_command_column_is_said(gapd: Any, config: Path, log: Path, tmp_path: Path) -> None:
    changed = without_command(config.parent, tmp_path / "robot")
    done = gapd("check", "--config", changed)
    assert (done.returncode, done.stderr) == (0, "")
    assert "actuator    WARN servo: no command column, its command stays 0" in done.stdout.splitlines()
    done = gapd("replay", "--config", changed, log)
    assert "gapd: WARN actuator servo: no command column, its command stays 0" in done.stderr.splitlines()


def test_check_looks_at_the_columns_of_recordings(gapd: Any, config: Path, log: Path, tmp_path: Path) -> None:
    done = gapd("check", "--config", config, log)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-2:] == [f"log         {log}: 5 columns found", "ok"]
    (tmp_path / "other.csv").write_text("timestamp,position_j,velocity_j,effort_j,comand_j\n")
    done = gapd("check", "--config", config, log, tmp_path / "other.csv")
    assert done.returncode == 1
    assert done.stderr.startswith(f"gapd: {tmp_path / 'other.csv'}: no column 'command_j'; did you mean 'comand_j'?")
    assert not done.stdout.endswith("ok\n")


def test_check_says_which_bundle_leads(gapd: Any) -> None:
    done = gapd("check", "--config", MODELS / "servo_pendulum" / "robot.toml")
    assert f"bundle      {MODELS / 'servo_pendulum' / 'bundle'}: verified, sha256 " in done.stdout
    assert "actuator    " not in done.stdout  # its back-EMF takes no command


def test_a_value_set_twice_is_a_usage_error(gapd: Any, config: Path, log: Path) -> None:
    done = gapd("replay", "--config", config, "--set", "joint/j/damping=0.1", "--set", "joint/j/damping=0.2", log)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gapd: --set joint/j/damping=0.2: joint/j/damping is set twice; leave one out\n"


def test_names_with_control_characters_are_escaped(gapd: Any, config: Path, tmp_path: Path) -> None:
    done = gapd("replay", "--config", config, tmp_path / "a\n\x1b[2Jb.csv")
    assert done.returncode == 1
    assert done.stderr == f"gapd: {tmp_path}/a\\n\\x1b[2Jb.csv: no such file; check the path\n"
