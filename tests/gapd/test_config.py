"""robot.toml: defaults, overrides, and messages that name file, key and nearest match."""

from __future__ import annotations

from pathlib import Path

import pytest

from gapd.config import Column, Config, Timing, load_config
from gapd.errors import ConfigError, nearest
from gapd.model.parameters import ParameterSet

MODELS = Path(__file__).parents[2] / "models"
MINIMAL = """
robot = "r"
model = "model.xml"
parameters = "parameters.toml"
[[channel]]
name = "j/position"
unit = "rad"
noise = 0.001
"""


def load(folder: Path, text: str) -> Config:
    (folder / "robot.toml").write_text(text, encoding="utf-8")
    return load_config(folder / "robot.toml")


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, text)
    message = str(caught.value)
    assert message.startswith(f"{folder / 'robot.toml'}: ")
    assert "\n" not in message
    return message.removeprefix(f"{folder / 'robot.toml'}: ")


def test_minimal_file_and_its_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL)
    assert config.timing == Timing(0.01, 30, 0.0)
    assert config.timing.window_s == pytest.approx(0.3)
    assert config.channel_names == ("j/position",)
    assert config.channel[0].sensor_name == "j/position"
    assert (config.context, config.log.channels, config.bundle, config.seed) == ((), {}, "", 0)
    assert config.path("model.xml") == tmp_path / "model.xml"


def test_everything_is_read(tmp_path: Path) -> None:
    text = (
        MINIMAL
        + """
sensor = "enc"
[timing]
knot_s = 0.02
knots = 5
command_offset_s = -0.004
[[context]]
name = "payload"
nominal = 1
max = 3
[log]
timestamp = "t"
[log.channels]
"j/position" = { column = "deg", factor = 0.5, offset = 1 }
[log.commands]
servo = "cmd"
[log.context]
payload = "kg"
[[log.per_file]]
pattern = "*_heavy.csv"
context = { payload = 2.5 }
"""
    )
    config = load(tmp_path, text)
    assert config.channel[0].sensor_name == "enc"
    assert config.timing == Timing(0.02, 5, -0.004)
    assert config.context_names == ("payload",)
    assert (config.context[0].low, config.context[0].high) == (1, 3)
    assert config.log.timestamp == "t"
    assert config.log.channels == {"j/position": Column("deg", 0.5, 1.0)}
    assert config.log.commands == {"servo": "cmd"}
    assert config.log.per_file[0].context == {"payload": 2.5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('modle = "x"\n' + MINIMAL, "unknown key 'modle'; did you mean 'model'?"),
        (MINIMAL + "[timing]\nknot = 0.01\n", "unknown key 'knot' in [timing]; did you mean 'knots'?"),
        (MINIMAL + "nosie = 1\n", "unknown key 'nosie' in [channel[0]]; did you mean 'noise'?"),
        (
            MINIMAL + '[log]\nchanels = { a = "b" }\n',
            "unknown key 'chanels' in [log]; did you mean 'channels'?",
        ),
        (
            MINIMAL + '[[log.per_file]]\npatern = "*"\ncontext = {}\n',
            "unknown key 'patern' in [log.per_file[0]]; did you mean 'pattern'?",
        ),
        (
            MINIMAL + '[log.channels]\n"j/position" = { colunm = "x" }\n',
            "unknown key 'colunm' in [log.channels[...]]; did you mean 'column'?",
        ),
        (MINIMAL + "[zzz]\n", "unknown key 'zzz'; known: bundle, bundle_sha256, channel, context"),
    ],
)
def test_unknown_key_gets_the_nearest_match(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path, text).startswith(message)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("noise = 0.001", 'noise = "small"', ("Expected `float`, got `str`", "channel[0].noise")),
        ("noise = 0.001", "", ("missing required field `noise`", "channel[0]")),
        ('robot = "r"', "robot = 1", ("Expected `str`, got `int`", "robot")),
        (
            "[[channel]]",
            "[timing]\nknots = 2.5\n[[channel]]",
            ("Expected `int`, got `float`", "timing.knots"),
        ),
    ],
)
def test_wrong_type_names_the_key(tmp_path: Path, old: str, new: str, words: tuple[str, ...]) -> None:
    message = refusal(tmp_path, MINIMAL.replace(old, new))
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("noise = 0.001", "noise = 0", "channel j/position noise = 0.0: must be a standard deviation from"),
        ("noise = 0.001", "noise = nan", "channel j/position noise = nan: must be a standard deviation from"),
        ("noise = 0.001", "noise = inf", "channel j/position noise = inf: must be"),
        ("noise = 0.001", "noise = 1e300", "channel j/position noise = 1e+300: must be"),
        ("noise = 0.001", "noise = 1e-300", "channel j/position noise = 1e-300: must be"),
        ("noise = 0.001", f"noise = 1{400 * '0'}", "Number out of range - at `channel[0].noise`"),
        ('"rad"', '"ra\\u001bd"', "channel j/position unit = 'ra\\x1bd': must not contain control characters"),
        ('"j/position"', '"j/\\nposition"', "channel name = 'j/\\nposition': must not contain control"),
        ('"j/position"', '""', "channel name = '': must not be empty"),
        ("noise = 0.001", 'noise = 1\nsensor = "a\\u0000"', "channel j/position sensor = 'a\\x00': must not contain"),
        ('robot = "r"', 'robot = " "', "robot = ' ': must not be empty"),
        ('robot = "r"', 'robot = "r\\n"', "robot = 'r\\n': must not contain control"),
        ('robot = "r"', f'robot = "{201 * "r"}"', f"robot = '{201 * 'r'}': must have at most 200 characters, has 201"),
        ('"model.xml"', '"model\\u0000.xml"', "model = 'model\\x00.xml': must not contain control"),
        ('"model.xml"', f'"{300 * "m"}"', f"model = '{300 * 'm'}': must have at most 255 bytes between slashes"),
        ('"model.xml"', '""', "model = '': must not be empty; name a file"),
        ('"parameters.toml"', '"p\\u0000"', "parameters = 'p\\x00': must not contain control"),
        ("[[channel]]", 'bundle = "b\\u0000"\n[[channel]]', "bundle = 'b\\x00': must not contain control"),
        (
            "[[channel]]",
            f'bundle_sha256 = "{64 * "0"}"\n[[channel]]',
            f"bundle_sha256 = '{64 * '0'}': pins a bundle, but",
        ),
        (
            "[[channel]]",
            'bundle = "b"\nbundle_sha256 = "ab"\n[[channel]]',
            "bundle_sha256 = 'ab': must be the 64 hexadecimal digits",
        ),
        ("[[channel]]", "seed = -1\n[[channel]]", "seed = -1: must be a whole number from 0"),
        ("[[channel]]", f"seed = 1{30 * '0'}\n[[channel]]", f"seed = 1{30 * '0'}: must be a whole number from 0"),
        ("[[channel]]", 'folder = "/"\n[[channel]]', "unknown key 'folder'"),
        ("[[channel]]", "timing = { knots = 1 }\n[[channel]]", "timing.knots = 1: a window needs at least 2"),
        (
            "[[channel]]",
            "timing = { knots = 100000 }\n[[channel]]",
            "timing.knots = 100000: must be a number from 2 to",
        ),
        *[
            (
                "[[channel]]",
                f"timing = {{ {key} = {value} }}\n[[channel]]",
                f"timing.{key} = {float(value)}: must be a {what}",
            )
            for key, what, values in (
                ("knot_s", "time in seconds from", ("0", "-1", "nan", "inf", "1e300")),
                ("command_offset_s", "delay in seconds from -1 to 1", ("nan", "-inf", "1.5")),
            )
            for value in values
        ],
    ],
)
def test_contradictions_name_key_and_value(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert refusal(tmp_path, MINIMAL.replace(old, new)).startswith(message)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("nominal = 1, min = 2, max = 0", "context volts min = 2.0: is above max = 0.0; swap them"),
        ("nominal = 1, min = 2, max = 3", "context volts nominal = 1.0: is outside 2.0 .. 3.0"),
        ("nominal = 4, max = 3", "context volts min = 4.0: is above max = 3.0"),
        ("nominal = nan", "context volts min = nan: must be a number from"),
        ("nominal = 1, max = inf", "context volts max = inf: must be a number from"),
        ('nominal = 1, unit = "V\\n"', "context volts unit = 'V\\n': must not contain control"),
    ],
)
def test_a_context_that_cannot_be(tmp_path: Path, values: str, message: str) -> None:
    context = f'context = [{{ name = "volts", {values} }}]\n[[channel]]'
    assert refusal(tmp_path, MINIMAL.replace("[[channel]]", context)).startswith(message)


@pytest.mark.parametrize("table", ["channels", "commands", "context"])
@pytest.mark.parametrize(
    ("column", "message"),
    [
        ('{ column = "c", factor = 0 }', "{place} factor = 0.0: must be a factor"),
        ('{ column = "c", factor = nan }', "{place} factor = nan: must be a factor"),
        ('{ column = "c", factor = -inf }', "{place} factor = -inf: must be a factor"),
        ('{ column = "c", offset = nan }', "{place} offset = nan: must be a number"),
        ('""', "{place} column = '': must not be empty"),
        ('"c\\u001b[2J"', "{place} column = 'c\\x1b[2J': must not contain control"),
    ],
)
def test_a_column_that_cannot_be(tmp_path: Path, table: str, column: str, message: str) -> None:
    text = f"{MINIMAL}[log.{table}]\nx = {column}\n"
    assert refusal(tmp_path, text).startswith(message.format(place=f"log.{table} x"))


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ('channels = { a = "c", b = { column = "c" } }', "log.channels = 'c': is the column of two channels"),
        (
            'timestamp = "c"\nchannels = { a = "c" }',
            "log.channels = 'c': is the column of two channels, or of the timest",
        ),
        ('timestamp = ""', "log.timestamp = '': must not be empty"),
        ('per_file = [{ pattern = "", context = {} }]', "log.per_file pattern = '': must not be empty"),
        ('per_file = [{ pattern = "*", context = { v = nan } }]', "log.per_file context v = nan: must be a number"),
    ],
)
def test_a_log_that_cannot_be(tmp_path: Path, log: str, message: str) -> None:
    assert refusal(tmp_path, f"{MINIMAL}[log]\n{log}\n").startswith(message)


def test_two_commands_may_share_a_column(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL + '[log.commands]\na = "c"\nb = "c"\n').log.commands == {"a": "c", "b": "c"}


@pytest.mark.parametrize("text", ["a = " + 5000 * "[", "a = 1" + 5000 * "0", 2**22 * "#" + "##"])
def test_beyond_reason(tmp_path: Path, text: str) -> None:
    assert "TOML" in refusal(tmp_path, text) or "more than 4194304 bytes" in refusal(tmp_path, text)


def test_endless_file() -> None:
    with pytest.raises(ConfigError, match="more than 4194304 bytes"):
        load_config(Path("/dev/zero"))


def test_name_that_no_file_can_have() -> None:
    with pytest.raises(ConfigError, match=r"cannot be read \(File name too long\)"):
        load_config(Path(300 * "x") / "robot.toml")


def test_without_channels(tmp_path: Path) -> None:
    text = MINIMAL.split("[[channel]]", maxsplit=1)[0] + "channel = []\n"
    assert "declare at least one [[channel]]" in refusal(tmp_path, text)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: no such file"):
        load_config(tmp_path / "absent.toml")


def test_folder_instead_of_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


def test_not_toml(tmp_path: Path) -> None:
    assert "not valid TOML" in refusal(tmp_path, "robot = \n")


def test_conf_d_goes_over_the_file_in_name_order(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "20.toml").write_text("seed = 20\n[timing]\nknots = 7\n")
    (tmp_path / "conf.d" / "10.toml").write_text('seed = 10\nbundle = "b"\n')
    config = load(tmp_path, MINIMAL + "[timing]\nknot_s = 0.02\n")
    assert (config.seed, config.bundle) == (20, "b")
    assert config.timing == Timing(0.02, 7, 0.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[timing]\nknots = "7"\n', "Expected `int`, got `str` - at `timing.knots`"),
        ("[timing]\nnots = 7\n", "unknown key 'nots' in [timing]; did you mean 'knots'?"),
        ("seed =\n", "not valid TOML"),
        (
            '[[channel]]\nname = "k/position"\nunit = "rad"\nnoise = 1\n',
            "channel is a list and would replace all of it",
        ),
        ("[log]\nper_file = []\n", "log.per_file is a list and would replace all of it; move it to robot.toml"),
    ],
)
def test_a_fault_in_conf_d_names_the_file_it_is_in(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "10.toml").write_text("seed = 10\n")
    (tmp_path / "conf.d" / "20.toml").write_text(text)
    (tmp_path / "conf.d" / "30.toml").write_text("seed = 30\n")
    (tmp_path / "robot.toml").write_text(MINIMAL)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "robot.toml")
    assert str(caught.value).startswith(f"{tmp_path / 'conf.d' / '20.toml'}: {message}")


def test_conf_d_may_give_what_the_file_lacks(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "10.toml").write_text("seed = 10\n")
    (tmp_path / "conf.d" / "20.toml").write_text('robot = "q"\n')
    assert load(tmp_path, MINIMAL.replace('robot = "r"', "")).robot == "q"
    (tmp_path / "conf.d" / "20.toml").unlink()
    assert "missing required field `robot`" in refusal(tmp_path, MINIMAL.replace('robot = "r"', ""))


def test_errors_of_users_exit_with_2(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "")
    assert caught.value.exit_code == 2


PARAMETER = """
[[parameter]]
name = "joint/j/damping"
nominal = 1
min = 0.1
max = 10
targets = [{ field = "dof_damping", element = "j" }]
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("nominal", "nominl", "unknown key 'nominl' in [parameter[0]]; did you mean 'nominal'?"),
        (
            "element",
            "elment",
            "unknown key 'elment' in [parameter[0].targets[0]]; did you mean 'element'?",
        ),
        ("min = 0.1", 'min = 0.1\nscale = "lin"', "Invalid enum value 'lin'"),
    ],
)
def test_parameters_toml_gets_the_same_messages(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "parameters.toml"
    path.write_text(PARAMETER.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        ParameterSet.from_toml(path)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("knot", "; did you mean 'knots'?"),
        ("xyz", "; known: knot_s, knots"),
        ("knots", "; did you mean 'knots'?"),
    ],
)
def test_nearest(name: str, hint: str) -> None:
    assert nearest(name, ["knots", "knot_s"]) == hint


def test_nearest_of_nothing_and_of_many() -> None:
    assert nearest("a", []) == ""
    assert nearest("zz", [f"k{i:02}" for i in range(20)]).endswith("k11, ...")


@pytest.mark.parametrize("name", ["arm7", "ballscrew", "servo_pendulum"])
def test_models_of_the_project_load(name: str) -> None:
    config = load_config(MODELS / name / "robot.toml")
    assert config.robot == name
    assert len(ParameterSet.from_toml(config.path(config.parameters))) > 0
