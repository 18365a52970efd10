"""train.toml and the options: every number is checked before any work, with key, value and limits."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from gapd.errors import ConfigError
from gaptrain.cli import main
from gaptrain.settings import load_training

GOOD = {
    "windows": "64", "held_out": "16", "hidden": "8", "epochs": "2", "batch": "16", "seed": "3", "home": "[0.0]",
    "amplitude": "[1.2]", "kind": '"position"', "low_hz": "0.2", "high_hz": "1.2", "gain": "0.0", "damping": "0.0",
}  # fmt: skip
TOP = ("windows", "held_out", "hidden", "epochs", "batch", "seed")
BAD = [
    ("hidden", "0"), ("hidden", "-1"), ("hidden", "100000000"), ("batch", "0"), ("batch", "-4"), ("seed", "-1"),
    ("seed", "99999999999999999999"), ("windows", "99999999999999999999"), ("windows", "0"), ("held_out", "0"),
    ("held_out", "99999999999999999999"), ("epochs", "0"), ("epochs", "99999999999999999999"), ("home", "[nan]"),
    ("home", "[1e30]"), ("home", "[-inf]"), ("amplitude", "[nan]"), ("amplitude", "[1e30]"), ("amplitude", "[-1.0]"),
    ("low_hz", "0.0"), ("low_hz", "-0.2"), ("low_hz", "nan"), ("high_hz", "inf"), ("gain", "-1.0"), ("gain", "nan"),
    ("damping", "-1.0"), ("damping", "nan"),
]  # fmt: skip


def write(path: Path, **changed: str) -> Path:
    values = GOOD | changed
    lines = [f"{k} = {values[k]}" for k in TOP]
    lines += ["[excitation]", *(f"{k} = {v}" for k, v in values.items() if k not in TOP)]
    path.write_text("\n".join(lines))
    return path


def test_what_is_within_the_limits_is_taken_as_it_is(tmp_path: Path) -> None:
    training = load_training(write(tmp_path / "train.toml", home="[0]", seed="4294967295"))
    assert (training.windows, training.seed, training.excitation.home) == (64, 4294967295, (0.0,))


@pytest.mark.parametrize(("key", "value"), BAD)
def test_a_number_out_of_its_limits_is_named_with_them(tmp_path: Path, key: str, value: str) -> None:
    path = write(tmp_path / "train.toml", **{key: value})
    with pytest.raises(ConfigError) as error:
        load_training(path)
    text = str(error.value)
    number = value.strip("[]")
    assert f"train.toml: {key if key in TOP else f'excitation.{key}'}" in text
    assert f" = {number if key in TOP else float(number)}: must be within " in text
    assert " .. " in text


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"home": "[]", "amplitude": "[]"}, r"excitation\.home = \[\]: give .* a home each, in rad or m"),
        ({"home": "[0.0, 1.0]"}, r"excitation\.amplitude has 1 values: must have 2"),
        ({"amplitude": "[]"}, r"excitation\.amplitude has 0 values: must have 1"),
        ({"low_hz": "1.5"}, r"excitation\.low_hz = 1\.5: must be at most excitation\.high_hz = 1\.2"),
        ({"kind": '"tracking"'}, r'excitation\.gain = 0: must be positive for kind = "tracking"'),
        ({"batch": "65"}, r"batch = 65: must be at most windows = 64"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(tmp_path: Path, changed: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_training(write(tmp_path / "train.toml", **changed))


def refused(folder: Path, *options: str) -> str:
    """The one line that `gaptrain fit` says before it makes anything."""
    result = CliRunner().invoke(main, ["fit", str(folder), *options])
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    assert not (folder / ".data").exists()
    return str(result.stderr)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("windows", "0"), ("windows", "99999999999999999999"), ("epochs", "-1"), ("epochs", "99999999999999999999"),
        ("seed", "-1"), ("seed", "4294967296"),
    ],
)  # fmt: skip
def test_options_have_the_same_limits(
    tmp_path: Path, make_robot: Callable[[Path], object], option: str, value: str
) -> None:
    make_robot(tmp_path)
    write(tmp_path / "train.toml")
    assert f"command line: {option} = {value}: must be within" in refused(tmp_path, f"--{option}", value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"home": "[0, 0]", "amplitude": "[1, 1]"}, "excitation.home has 2 values: at most 1, the model's actuators"),
        ({"hidden": "1024"}, "hidden = 1024: the network would have"),
    ],
)
def test_what_does_not_fit_the_robot_is_refused_before_data_are_made(
    tmp_path: Path, make_robot: Callable[[Path], object], changed: dict[str, str], said: str
) -> None:
    make_robot(tmp_path)
    write(tmp_path / "train.toml", **changed)
    assert said in refused(tmp_path)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, make_robot: Callable[[Path], object]) -> None:
    make_robot(tmp_path)
    write(tmp_path / "train.toml")
    (tmp_path / ".data").write_text("no folder")
    result = CliRunner().invoke(main, ["fit", str(tmp_path)])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert f"gaptrain: {tmp_path / '.data'}" in result.stderr
