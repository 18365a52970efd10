"""The example configuration is one that gapd takes."""

from __future__ import annotations

from pathlib import Path

from gapd.config import Column, load_config
from gapd.live_config import KeeperSettings, Stream

EXAMPLE = Path(__file__).parents[2] / "deploy" / "robot.example.toml"


def test_example_loads_with_every_mapping() -> None:
    config = load_config(EXAMPLE)
    assert set(config.log.channels) == set(config.channel_names)
    assert config.log.channels["elbow/effort"] == Column("effort_elbow_mnm", factor=1e-3)
    assert config.channel[-1].sensor_name == "elbow_torque"
    assert config.log.per_file[0].context == {"firmware_gain": 100.0}
    assert config.timing.window_s == 30 * 0.01


def test_example_has_the_tables_of_the_live_loop() -> None:
    live = load_config(EXAMPLE).live
    assert live.link is not None
    assert live.stream == Stream()
    assert (live.frames.encrypted, live.frames.exposed) == (False, False)


def test_what_is_commented_out_is_right_too(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    tail = text[text.index("# [live.remote_stream]") :]
    copy = tmp_path / EXAMPLE.name
    copy.write_text(text.replace(tail, "\n".join(line.removeprefix("# ") for line in tail.splitlines())))
    config = load_config(copy)
    assert config.live.remote_stream is not None
    assert config.live.keeper == KeeperSettings()
