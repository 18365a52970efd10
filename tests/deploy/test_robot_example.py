"""The example configuration is one that gapd takes."""

from __future__ import annotations

from pathlib import Path

from gapd.config import Column, load_config

EXAMPLE = Path(__file__).parents[2] / "deploy" / "robot.example.toml"


def test_example_loads_with_every_mapping() -> None:
    config = load_config(EXAMPLE)
    assert set(config.log.channels) == set(config.channel_names)
    assert config.log.channels["elbow/effort"] == Column("effort_elbow_mnm", factor=1e-3)
    assert config.channel[-1].sensor_name == "elbow_torque"
    assert config.log.per_file[0].context == {"firmware_gain": 100.0}
    assert config.timing.window_s == 30 * 0.01
