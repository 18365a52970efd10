"""CSV recordings: what the mapping in robot.toml makes of a file, and one clear line for every bad one."""

from __future__ import annotations

import gzip
import os
from contextlib import suppress
from pathlib import Path
from threading import Thread

import msgspec
import numpy as np
import pytest

from gapd.config import Column, LogMapping, PerFile
from gapd.errors import InputError
from gapd.measured.windows import Frames
from gapd.model.robot import Robot, assemble, open_robot
from gapd.sources import csv_table
from gapd.sources.log_files import frames, read_csv, require_mapped, write_csv

HEADER = "timestamp,position_j,velocity_j,command_j,torque_enable,input_volts"


MODEL = """
<mujoco>
  <compiler angle="radian" autolimits="true"/>
  <option timestep="0.0025" integrator="implicitfast"/>
  <worldbody>
    <body><joint name="j" axis="0 1 0"/><geom size="0.05" pos="0 0 -0.1"/></body>
  </worldbody>
  <actuator>
    <position name="servo" joint="j" kp="1"/>
    <general name="backemf" joint="j" gainprm="0" biastype="affine" biasprm="0 0 -0.01"/>
  </actuator>
  <sensor><jointpos name="j/position" joint="j"/><jointvel name="j/velocity" joint="j"/></sensor>
</mujoco>
"""
PARAMETERS = """
[[parameter]]
name = "joint/j/damping"
nominal = 0.1
min = 0.01
max = 1.0
targets = [{ field = "dof_damping", element = "j" }]
"""
ROBOT = """
robot = "servo"
model = "model.xml"
parameters = "parameters.toml"
channel = [
    { name = "j/position", unit = "rad", noise = 0.001 },
    { name = "j/velocity", unit = "rad/s", noise = 0.1 },
]
context = [
    { name = "supply_voltage", unit = "V", nominal = 7.4 },
    { name = "firmware_gain", nominal = 200 },
    { name = "drive_enabled", nominal = 1 },
]
[log.channels]
"j/position" = "position_j"
"j/velocity" = "velocity_j"
[log.commands]
servo = "command_j"
[log.context]
drive_enabled = "torque_enable"
supply_voltage = "input_volts"
[[log.per_file]]
pattern = "*_kp100.csv"
context = { firmware_gain = 100 }
[[log.per_file]]
pattern = "*_kp800.csv"
context = { firmware_gain = 800 }
"""


@pytest.fixture(scope="module")
def servo(tmp_path_factory: pytest.TempPathFactory) -> Robot:
    folder = tmp_path_factory.mktemp("servo")
    for name, text in (("model.xml", MODEL), ("parameters.toml", PARAMETERS), ("robot.toml", ROBOT)):
        (folder / name).write_text(text, encoding="utf-8")
    return open_robot(folder / "robot.toml")


def with_log(robot: Robot, log: LogMapping) -> Robot:
    return assemble(msgspec.structs.replace(robot.config, log=log), robot.model, robot.parameters)


def write(folder: Path, text: str, name: str = "run_kp100.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(robot: Robot, path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_csv(path, robot)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_columns_become_channels_commands_and_context(tmp_path: Path, servo: Robot) -> None:
    path = write(tmp_path, f"{HEADER}\n0.0,0.1,1,0.2,1,7.1\n0.005,0.3,2,0.4,0,7.2\n")
    got = read_csv(path, servo)
    assert got.name == "run_kp100.csv"
    np.testing.assert_array_equal(got.timestamp, [0.0, 0.005])
    np.testing.assert_array_equal(got.measured, [[0.1, 1.0], [0.3, 2.0]])
    # The actuator without a column, `backemf`, gets the command 0.
    np.testing.assert_array_equal(got.command, [[0.2, 0.0], [0.4, 0.0]])
    # supply_voltage and drive_enabled from columns, firmware_gain from the file's name.
    np.testing.assert_array_equal(got.context, [[7.1, 100.0, 1.0], [7.2, 100.0, 0.0]])


def test_context_is_nominal_then_per_file_then_column(tmp_path: Path, servo: Robot) -> None:
    log = LogMapping(
        channels={"j/position": "position_j"},
        context={"drive_enabled": "torque_enable"},
        per_file=(
            PerFile("*.csv", {"firmware_gain": 300, "drive_enabled": 0.5}),
            PerFile("late*", {"firmware_gain": 400}),
        ),
    )
    robot = with_log(servo, log)
    text = f"{HEADER}\n0,0,0,0,1,6\n"
    np.testing.assert_array_equal(read_csv(write(tmp_path, text, "early.csv"), robot).context, [[7.4, 300, 1]])
    np.testing.assert_array_equal(read_csv(write(tmp_path, text, "late.csv"), robot).context, [[7.4, 400, 1]])
    np.testing.assert_array_equal(read_csv(write(tmp_path, text, "other.txt"), robot).context, [[7.4, 200, 1]])


def test_factor_and_offset_convert(tmp_path: Path, servo: Robot) -> None:
    log = LogMapping(
        timestamp="t",
        channels={"j/position": Column("deg", factor=0.5, offset=-1.0)},
        commands={"servo": Column("deg", factor=2.0)},
    )
    got = read_csv(write(tmp_path, "deg,t\n4,10\n6,11\n"), with_log(servo, log))
    np.testing.assert_array_equal(got.timestamp, [10, 11])
    np.testing.assert_array_equal(got.measured[:, 0], [1.0, 2.0])
    np.testing.assert_array_equal(got.command[:, 0], [8.0, 12.0])
    assert np.isnan(got.measured[:, 1]).all()  # no mapping: absent throughout


def test_nan_inf_and_empty_cells_are_data(tmp_path: Path, servo: Robot) -> None:
    text = f"{HEADER}\n0,,1,0,1,7\n1,nan,-inf,0,1,7\n2, 5 ,inf,,1,7\n\n"
    got = read_csv(write(tmp_path, text), servo)
    np.testing.assert_array_equal(got.measured, [[np.nan, 1], [np.nan, -np.inf], [5, np.inf]])
    np.testing.assert_array_equal(got.command[:, 0], [0, 0, np.nan])


def test_order_of_frames_is_kept(tmp_path: Path, servo: Robot) -> None:
    text = f"{HEADER}\n1,0,0,0,1,7\n0.5,0,0,0,1,7\n0.5,0,0,0,1,7\n"
    np.testing.assert_array_equal(read_csv(write(tmp_path, text), servo).timestamp, [1.0, 0.5, 0.5])


def test_byte_order_mark_quotes_and_spaces_in_header(tmp_path: Path, servo: Robot) -> None:
    header = '\ufefftimestamp, "position_j",velocity_j ,command_j,torque_enable,input_volts'
    path = write(tmp_path, f"{header}\n0,1, 2,3,1,7\n")
    np.testing.assert_array_equal(read_csv(path, servo).measured, [[1.0, 2.0]])


def test_missing_file(tmp_path: Path, servo: Robot) -> None:
    assert "no such file; check the path" in refusal(servo, tmp_path / "absent.csv")


def test_folder_instead_of_file(tmp_path: Path, servo: Robot) -> None:
    assert "cannot be read (Is a directory)" in refusal(servo, tmp_path)


@pytest.mark.parametrize("text", ["", "\n", " \n"])
def test_empty_file(tmp_path: Path, servo: Robot, text: str) -> None:
    assert "empty, no header line" in refusal(servo, write(tmp_path, text))


def test_only_header(tmp_path: Path, servo: Robot) -> None:
    assert "only a header, no frames" in refusal(servo, write(tmp_path, HEADER + "\n\n"))


def test_mapped_column_that_the_file_lacks(tmp_path: Path, servo: Robot) -> None:
    line = refusal(servo, write(tmp_path, HEADER.replace("velocity_j", "velocityj") + "\n0,0,0,0,1,7\n"))
    assert "no column 'velocity_j'; did you mean 'velocityj'?" in line
    assert "the file has timestamp, position_j, velocityj, command_j, torque_enable, input_volts" in line


def test_column_twice(tmp_path: Path, servo: Robot) -> None:
    line = refusal(servo, write(tmp_path, HEADER + ",position_j\n0,0,0,0,1,7,0\n"))
    assert "column 'position_j' appears 2 times" in line


@pytest.mark.parametrize(("row", "cells"), [("0,0,0,0,1", 5), ("0,0,0,0,1,7,9", 7)])
def test_row_with_wrong_number_of_cells(tmp_path: Path, servo: Robot, row: str, cells: int) -> None:
    line = refusal(servo, write(tmp_path, f"{HEADER}\n0,0,0,0,1,7\n\n{row}\n"))
    assert f"line 4: {cells} cells where the header has 6" in line


def test_cell_that_is_no_number(tmp_path: Path, servo: Robot) -> None:
    line = refusal(servo, write(tmp_path, f"{HEADER}\n0,0,0,0,1,7\n1,0,1.2.3,0,1,7\n"))
    assert "line 3, column 'velocity_j': '1.2.3' is no number" in line


@pytest.mark.parametrize("cell", ["", "nan", "inf"])
def test_time_that_is_not_finite(tmp_path: Path, servo: Robot, cell: str) -> None:
    line = refusal(servo, write(tmp_path, f"{HEADER}\n0,0,0,0,1,7\n{cell},0,0,0,1,7\n"))
    assert f"line 3, column 'timestamp': '{cell}' is no finite time" in line


def test_binary_file(tmp_path: Path, servo: Robot) -> None:
    path = tmp_path / "run.csv"
    path.write_bytes(b"\xff\xfe\x00\x01")
    assert "not UTF-8 text" in refusal(servo, path)


def test_robot_without_a_mapping(tmp_path: Path, servo: Robot) -> None:
    line = refusal(with_log(servo, LogMapping()), write(tmp_path, f"{HEADER}\n0,0,0,0,1,7\n"))
    assert "[log.channels]" in line


def test_line_numbers_beyond_a_chunk(tmp_path: Path, servo: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_table, "CHUNK_ROWS", 3)
    good = "".join(f"{i},{i},0,0,1,7\n" for i in range(10))
    got = read_csv(write(tmp_path, f"{HEADER}\n{good}"), servo)
    np.testing.assert_array_equal(got.measured[:, 0], np.arange(10))
    assert "line 12, column 'position_j': 'x'" in refusal(servo, write(tmp_path, f"{HEADER}\n{good}10,x,0,0,1,7\n"))


def test_several_files_in_order(tmp_path: Path, servo: Robot) -> None:
    paths = [write(tmp_path, f"{HEADER}\n{i},0,0,0,1,7\n", f"{i}_kp800.csv") for i in (2, 1)]
    got = list(frames(paths, servo))
    assert [f.name for f in got] == ["2_kp800.csv", "1_kp800.csv"]
    assert [f.timestamp[0] for f in got] == [2, 1]
    assert [f.context[0, 1] for f in got] == [800, 800]


def recording(robot: Robot, rows: int = 7) -> Frames:
    rng = np.random.default_rng(3)
    context = np.tile(robot.context_nominal, (rows, 1))
    return Frames(
        np.linspace(1 / 3, 1 / 3 + 0.005 * (rows - 1), rows),
        rng.normal(size=(rows, len(robot.layout.channels))),
        np.zeros((rows, len(robot.layout.actuators))),
        context,
    )


def test_written_file_reads_back_exactly(tmp_path: Path, servo: Robot) -> None:
    wanted = recording(servo)
    wanted.measured[2, 0] = np.nan
    wanted.command[:, 0] = np.linspace(-1, 1, 7)
    wanted.context[3:, 2] = 0.0
    wanted.context[:, 1] = 800
    path = tmp_path / "demo_kp800.csv"
    write_csv(wanted, path, servo)
    got = read_csv(path, servo)
    for name in ("timestamp", "measured", "command", "context"):
        np.testing.assert_array_equal(getattr(got, name), getattr(wanted, name))


def test_written_columns_are_converted_back(tmp_path: Path, servo: Robot) -> None:
    log = LogMapping(channels={"j/position": Column("deg", 0.25, -1.0), "j/velocity": "v"})
    robot = with_log(servo, log)
    wanted = recording(robot)
    wanted.measured[:, 0] = np.arange(7) / 4
    write_csv(wanted, tmp_path / "x.csv", robot)
    assert (tmp_path / "x.csv").read_text().splitlines()[1].split(",")[1] == "4.0"
    np.testing.assert_array_equal(read_csv(tmp_path / "x.csv", robot).measured, wanted.measured)


@pytest.mark.parametrize(
    ("part", "cell", "name", "table"),
    [
        ("measured", (0, 1), "j/velocity", "channels"),
        ("command", (0, 0), "servo", "commands"),
        ("context", (0, 0), "supply_voltage", "context"),
    ],
)
def test_write_refuses_what_the_mapping_would_lose(
    tmp_path: Path, servo: Robot, part: str, cell: tuple[int, int], name: str, table: str
) -> None:
    robot = with_log(servo, LogMapping(channels={"j/position": "position_j"}))
    bare = recording(robot)
    bare.measured[:, 1] = np.nan
    write_csv(bare, tmp_path / "fine.csv", robot)
    getattr(bare, part)[cell] = 5.0
    with pytest.raises(InputError, match=rf"'{name}' would be lost; .*\[log\.{table}\]"):
        write_csv(bare, tmp_path / "lossy.csv", robot)
    assert not (tmp_path / "lossy.csv").exists()


def moving(rows: int, seed: int = 5) -> str:
    values = np.random.default_rng(seed).normal(size=(rows, 3)).round(3).tolist()
    return "".join(f"{i / 100},{a},{b},{c},1,7\n" for i, (a, b, c) in enumerate(values))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (moving(40), moving(40)),
        (moving(40), moving(60)),
        (moving(60), moving(40)),
        (moving(60), "".join(moving(60).splitlines(keepends=True)[15:])),
        (moving(40), moving(40).replace("\n0.", "\n7.")),  # stamped anew
        (moving(40), moving(40).replace(",1,7\n", ",1,7.5\n")),  # other context
    ],
)
@pytest.mark.parametrize("between", [(), ("different",)])
def test_a_recording_that_holds_another_is_refused(
    tmp_path: Path, servo: Robot, one: str, other: str, between: tuple[str, ...]
) -> None:
    """Its copy would confirm, as held-out data, whatever was fitted to it."""
    first, second = (write(tmp_path, f"{HEADER}\n{t}", f"{n}.csv") for n, t in (("one", one), ("other", other)))
    others = [write(tmp_path, f"{HEADER}\n{moving(50, seed=6)}", f"{name}.csv") for name in between]
    with pytest.raises(InputError, match=rf"^{first} and {second}: hold the same frames; give each recording once$"):
        list(frames([first, *others, second], servo))


@pytest.mark.parametrize("seed", [6, 7])
def test_recordings_that_begin_alike_are_no_copies(tmp_path: Path, servo: Robot, seed: int) -> None:
    rest = "".join(f"{i / 100},0,0,0,1,7\n" for i in range(50))
    texts = (rest, rest, rest + moving(40), rest + moving(40, seed))
    paths = [write(tmp_path, f"{HEADER}\n{text}", f"{i}.csv") for i, text in enumerate(texts)]
    assert len(list(frames(paths, servo))) == 4


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (gzip.compress(HEADER.encode()), "compressed; gunzip it first"),
        (b"PK\x03\x04xl", "a zip archive or a spreadsheet; unpack it, or export it as CSV"),
        (f"{HEADER}\n".encode("utf-16"), "UTF-16 text, not UTF-8 text"),
        (f"{HEADER}\n".encode("utf-16-le"), "contains NUL bytes, so it is UTF-16 or no text at all"),
        (f"{HEADER}\n".encode("utf-16-be"), "contains NUL bytes, so it is UTF-16 or no text at all"),
        (b"0,0,0,0,1,7\n1,0,0,0,1,7\n", "the first line looks like numbers: no header?"),
        (b"x" * 1_100_000, "line 1 has more than 1000000 characters"),
        (f"{HEADER}\n".encode() + b"1," * 600_000, "line 2 has more than 1000000 characters"),
        (f"{HEADER}\n0,{'9' * 200}x,0,0,1,7\n".encode(), f"column 'position_j': '{'9' * 60}...' is no number"),
        (f'{HEADER}\n0,"{"9" * 200_000}\n'.encode(), "line 2: field larger than field limit"),
        (",".join(f"c{i}" for i in range(900)).encode(), "c59, ... (900 columns)"),
    ],
)
def test_what_is_no_table_of_numbers(tmp_path: Path, servo: Robot, raw: bytes, message: str) -> None:
    (tmp_path / "run.csv").write_bytes(raw)
    assert message in refusal(servo, tmp_path / "run.csv")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_has_an_end(servo: Robot, device: str) -> None:
    assert "contains NUL bytes" in refusal(servo, Path(device)) or device == "/dev/null"


def test_a_pipe_that_nobody_closes_has_an_end(servo: Robot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_table, "MAX_ROWS", 1000)
    os.mkfifo(tmp_path / "run.csv")
    writer = Thread(target=pour, args=(tmp_path / "run.csv",))
    writer.start()
    assert "has more than 1000 lines" in refusal(servo, tmp_path / "run.csv")
    writer.join()


def pour(path: Path) -> None:
    with suppress(BrokenPipeError), path.open("w", encoding="utf-8") as file:
        file.write(f"{HEADER}\n")
        while True:
            file.write("0,0,0,0,1,7\n")


def test_blank_lines_before_the_header(tmp_path: Path, servo: Robot) -> None:
    got = read_csv(write(tmp_path, f"\n \n,,\n{HEADER}\n\n0,1,2,3,1,7\n"), servo)
    np.testing.assert_array_equal(got.measured, [[1, 2]])


def test_only_the_header_is_looked_at(tmp_path: Path, servo: Robot) -> None:
    assert require_mapped(write(tmp_path, f"{HEADER}\nx,y,z\n"), servo) == 6
    with pytest.raises(InputError, match="no column 'velocity_j'"):
        require_mapped(write(tmp_path, HEADER.replace("velocity_j", "v")), servo)
