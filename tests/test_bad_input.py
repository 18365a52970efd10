"""Whatever is wrong with the input: one line that names it, its value and the remedy; the right exit code; no more."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gapd.model.robot import Robot
from gapd.sources.log_files import write_csv

ARM = Path(__file__).parents[1] / "models" / "arm7"
Rows = list[list[str]]
Change = Callable[[Path], object]


@pytest.fixture(scope="session")
def healthy(tiny: Robot, tiny_folder: Path, recorded: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny robot and a recording of it that a cycle accepts."""
    folder = tmp_path_factory.mktemp("healthy") / "robot"
    shutil.copytree(tiny_folder, folder)
    truth = tiny.parameters.nominal * np.array([1.5, 2.0, 1.5, 2.0])
    write_csv(recorded(tiny, truth, 20.0, seed=1).frames, folder / "log.csv", tiny)
    return folder


@pytest.fixture
def folder(healthy: Path, tmp_path: Path) -> Path:
    shutil.copytree(healthy, tmp_path / "robot")
    return tmp_path / "robot"


@pytest.fixture
def arm(tmp_path: Path) -> Path:
    shutil.copytree(ARM, tmp_path / "arm", ignore=shutil.ignore_patterns(".data", ".train"))
    return tmp_path / "arm"


def named(value: object) -> str | None:
    """Name of a case: the first words that its line must have."""
    return ", ".join(value[:2]) if isinstance(value, list) else None


def the_line(done: Any, code: int, silent: bool = True) -> str:
    """The only line on stderr, without the program's name; `silent`: nothing was printed before it."""
    assert done.returncode == code, done.stderr
    lines: list[str] = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("gapd: ")
    assert not (silent and done.stdout)
    assert not done.stdout.endswith("ok\n")
    return lines[0].removeprefix("gapd: ")


def edit(name: str, old: str, new: str) -> Change:
    def change(folder: Path) -> None:
        path = folder / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    return change


def write(name: str, raw: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(raw)


def remove(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def link(name: str, target: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return change


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (edit("robot.toml", "knots = 20", "knotts = 20"), 2, ["robot.toml", "'knotts'", "[timing]", "'knots'?"]),
        (remove("robot.toml"), 2, ["robot.toml", "no such file", "correct the path"]),
        (write("robot.toml", b"robot = tiny\n"), 2, ["robot.toml", "not valid TOML", "line 1"]),
        (write("robot.toml", b"\x89PNG\r\n\x1a\n\xff\xfe"), 2, ["robot.toml", "cannot be read", "check path"]),
        (edit("robot.toml", "knots = 20", 'knots = "20"'), 2, ["timing.knots", "int", "str"]),
        (edit("robot.toml", "noise = 0.001", "noise = nan"), 2, ["j/position", "noise", "nan", "a standard deviation"]),
        (edit("robot.toml", "knot_s = 0.01", "knot_s = 0.012"), 2, ["knot_s", "0.012", "0.005", "use 0.01"]),
        (edit("robot.toml", '"model.xml"', '"modell.xml"'), 2, ["modell.xml", "no such file", "`model`"]),
        (edit("model.xml", 'joint="j" kp', 'joint="k" kp'), 2,
         ["model.xml", "does not compile", "k", "mend the MJCF"]),
        (edit("model.xml", "</worldbody>", '<body><freejoint/><geom size="1"/></body></worldbody>'), 2,
         ["free or ball joints", "only hinge and slide"]),
        (edit("parameters.toml", 'field = "dof_damping", element = "j"', 'field = "dof_damping", element = "jj"'), 2,
         ["joint/j/damping", "'jj'", "not in the model", "'j'?"]),
        (remove("parameters.toml"), 2, ["parameters.toml", "no such file"]),
        (edit("robot.toml", 'robot = "tiny"', 'robot = "tiny"\nbundle = "bundle"'), 1,
         ["bundle", "no such folder", "gaptrain fit"]),
    ],
    ids=named,
)  # fmt: skip
def test_a_configuration_that_cannot_be_used(
    gapd: Any, folder: Path, change: Change, code: int, words: list[str]
) -> None:
    change(folder)
    line = the_line(gapd("check", "--config", folder / "robot.toml"), code, silent="bundle" not in words)
    for word in words:
        assert word in line


def flip_a_bit(name: str) -> Change:
    def change(folder: Path) -> None:
        raw = bytearray((folder / "bundle" / name).read_bytes())
        raw[len(raw) // 2] ^= 1
        (folder / "bundle" / name).write_bytes(raw)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (flip_a_bit("gap.onnx"), ["gap.onnx", "sha256", "the manifest says", "copy the bundle again"]),
        (flip_a_bit("manifest.json"), ["manifest.json", "sha256", "robot.toml pins", "restore the pinned bundle"]),
        (edit("parameters.toml", "max = 40", "max = 41"), ["joint/joint1/damping", "max = 40.0, the robot has 41.0"]),
        (edit("robot.toml", 'robot = "arm7"', 'robot = "arm6"'), ["'arm7'", "'arm6'", "install the bundle of this"]),
    ],
    ids=named,
)  # fmt: skip
def test_a_bundle_that_is_altered_or_made_for_another_robot(
    gapd: Any, arm: Path, change: Change, words: list[str]
) -> None:
    change(arm)
    line = the_line(gapd("check", "--config", arm / "robot.toml"), 1, silent=False)
    for word in words:
        assert word in line


def test_a_bundle_of_another_model(gapd: Any, folder: Path) -> None:
    shutil.copytree(ARM / "bundle", folder / "bundle")
    edit("robot.toml", 'robot = "tiny"', 'robot = "arm7"\nbundle = "bundle"')(folder)
    line = the_line(gapd("check", "--config", folder / "robot.toml"), 1, silent=False)
    assert "parameter count = 29, the robot has 4" in line
    assert "fit it again" in line


def rows_of(folder: Path) -> Rows:
    with (folder / "log.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def save(folder: Path, rows: Rows) -> None:
    with (folder / "log.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def column(name: str, value: str | Callable[[str], str], first: int = 1, last: int | None = None) -> Change:
    """Replace a column's cells in some lines of the recording."""

    def change(folder: Path) -> None:
        rows = rows_of(folder)
        place = rows[0].index(name)
        for row in rows[first:last]:
            row[place] = value if isinstance(value, str) else value(row[place])
        save(folder, rows)

    return change


def lines(change: Callable[[Rows], Rows]) -> Change:
    return lambda folder: save(folder, change(rows_of(folder)))


def shuffled(rows: Rows) -> Rows:
    order = np.random.default_rng(1).permutation(len(rows) - 1) + 1
    return [rows[0], *(rows[i] for i in order)]


TOO_FEW = "too few to hold 4.8 s out of the fit for its check"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (remove("log.csv"), ["log.csv", "no such file", "check the path"]),
        (write("log.csv", b""), ["log.csv", "empty, no header line", "check that the recorder ran"]),
        (lines(lambda rows: rows[:1]), ["log.csv", "only a header", "check that the recorder ran"]),
        (write("log.csv", bytes(range(1, 256)) * 40), ["log.csv", "not UTF-8 text", "export it as CSV"]),
        (write("log.csv", bytes(range(256)) * 40), ["log.csv", "contains NUL bytes", "export it as CSV"]),
        (link("log.csv", "/dev/zero"), ["log.csv", "contains NUL bytes", "export it as CSV"]),
        (link("log.csv", "/dev/random"), ["log.csv", "export it as CSV"]),
        (lines(lambda rows: [row[:-1] for row in rows]), ["no column 'command_j'", "the file has", "[log]"]),
        (lines(lambda rows: [*rows[:7], rows[7][:-1], *rows[8:]]), ["line 8", "4 cells", "5", "mend or remove it"]),
        (column("timestamp", "nan"), ["line 2", "'timestamp'", "'nan' is no finite time", "give seconds"]),
        (column("timestamp", lambda t: str(1e3 * float(t))), [TOO_FEW, "a frame each 5 s", "timestamps in seconds"]),
        (column("position_j", "nan"), ["0 usable windows", TOO_FEW, "j/position", "map its column in [log.channels]"]),
        (column("velocity_j", "nan", 5), ["0 usable", TOO_FEW, "not_finite: j/velocity: nan at", "mend the source"]),
        (column("command_j", "nan"), ["0 usable windows", TOO_FEW, "command servo", "nan", "mend the source"]),
        (column("position_j", "0.25"), ["0 usable windows", TOO_FEW, "stuck: j/position: stays at 0.25"]),
        (lines(shuffled), ["0 usable windows", TOO_FEW, "out_of_order", "sort the frames"]),
        (lines(lambda rows: rows[:30]), ["0 usable windows of 1", TOO_FEW, "0.14 s recorded", "record longer"]),
        (lines(lambda rows: rows[:300]), ["usable windows of 7", TOO_FEW, "more of motion"]),
    ],
    ids=named,
)  # fmt: skip
def test_a_recording_that_cannot_be_used(gapd: Any, folder: Path, change: Change, words: list[str]) -> None:
    change(folder)
    line = the_line(gapd("replay", "--config", folder / "robot.toml", folder / "log.csv"), 1)
    for word in words:
        assert word in line


def test_a_recording_given_twice(gapd: Any, folder: Path) -> None:
    """Its copy would be held out, and confirm whatever was fitted to it."""
    shutil.copy(folder / "log.csv", folder / "copy.csv")
    line = the_line(gapd("replay", "--config", folder / "robot.toml", folder / "log.csv", folder / "copy.csv"), 1)
    assert line == f"{folder / 'log.csv'} and {folder / 'copy.csv'}: hold the same frames; give each recording once"


def test_a_directory_as_recording(gapd: Any, folder: Path) -> None:
    line = the_line(gapd("replay", "--config", folder / "robot.toml", folder), 1)
    assert str(folder) in line
    assert "directory" in line
    assert "check path and permissions" in line


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (lines(lambda rows: rows[:900] + rows[800:]), "out_of_order"),
        (column("velocity_j", "inf", 501, 502), "not_finite"),
        (column("effort_j", "1e300", 501, 502), "not_finite"),
        (column("position_j", "1e11", 501, 502), "spike"),
        (column("command_j", "1e11", 501, 502), "spike"),
    ],
)
def test_a_fault_in_one_place_costs_its_windows_and_is_counted(
    gapd: Any, folder: Path, change: Change, verdict: str
) -> None:
    change(folder)
    done = gapd("replay", "--config", folder / "robot.toml", folder / "log.csv")
    assert (done.returncode, done.stderr) == (0, "")
    assert f" {verdict}" in next(line for line in done.stdout.splitlines() if line.startswith("windows"))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("joint/j/dampin=1", ["joint/j/dampin", "did you mean 'joint/j/damping'?"]),
        ("joint/j/damping=much", ["joint/j/damping=much", "expected NAME=NUMBER", "for example"]),
        ("joint/j/damping=nan", ["=nan", "outside 0.005 .. 0.5 N·m·s/rad", "parameters.toml"]),
        ("joint/j/damping=-1", ["=-1", "outside 0.005 .. 0.5 N·m·s/rad", "parameters.toml"]),
    ],
)
def test_a_present_value_that_cannot_be(gapd: Any, folder: Path, value: str, words: list[str]) -> None:
    line = the_line(gapd("replay", "--config", folder / "robot.toml", "--set", value, folder / "log.csv"), 2)
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere/gap.png", ["no folder", "nowhere", "make it, or name another"]),
        ("gap.jpeg2", ["ends in none of .png, .pdf, .svg"]),
        ("taken.png", ["taken.png", "cannot be written there"]),
    ],
)
def test_a_picture_that_cannot_be_written_is_refused_before_the_fit(
    gapd: Any, folder: Path, name: str, words: list[str]
) -> None:
    """Nothing was printed, so nothing was fitted."""
    (folder / "taken.png").mkdir()
    picture = folder / name
    line = the_line(gapd("replay", "--config", folder / "robot.toml", "--picture", picture, folder / "log.csv"), 2)
    for word in words:
        assert word in line


def test_a_picture_on_a_read_only_file_system_fails_in_one_line_and_keeps_the_report(gapd: Any, folder: Path) -> None:
    """No permission bit tells, not even to root: only writing does."""
    done = gapd("replay", "--config", folder / "robot.toml", "--picture", "/proc/gap.png", folder / "log.csv")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "/proc/gap.png: cannot be written" in done.stderr
    assert "decision" in done.stdout or done.stdout == ""
