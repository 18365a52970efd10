"""How many shards at a time: as many as cores, shards and memory allow, and no core is left out."""

from pathlib import Path

import pytest

from gapd.model.robot import Robot
from gaptrain import local_plan
from gaptrain.settings import Training, load_training


@pytest.fixture
def training(arm: Robot) -> Training:
    return load_training(Path(arm.config.folder) / "train.toml")


@pytest.mark.parametrize(
    ("shards", "threads", "shards_that_fit", "plan"),
    [(21, 2, 100, (2, 1)), (1, 2, 100, (1, 2)), (3, 16, 100, (3, 5)), (21, 16, 4.5, (4, 4)), (21, 16, 0.1, (1, 16)),
     (0, 2, 100, (1, 2))],
)  # fmt: skip
def test_cores_shards_and_memory_limit_what_is_made_side_by_side(
    arm: Robot, training: Training, monkeypatch: pytest.MonkeyPatch,
    shards: int, threads: int, shards_that_fit: float, plan: tuple[int, int],
) -> None:  # fmt: skip
    free = shards_that_fit * local_plan.shard_peak_bytes(arm, training) / local_plan.SHARE
    monkeypatch.setattr(local_plan, "free_bytes", lambda: free)
    chosen = local_plan.local(arm, training, shards, threads)
    assert (chosen.processes, chosen.threads) == plan


def test_free_memory_is_what_the_system_says_or_plenty(tmp_path: Path) -> None:
    said = tmp_path / "meminfo"
    said.write_text("MemTotal:  8000000 kB\nMemFree:  1 kB\nMemAvailable:  2000 kB\n")
    assert local_plan.free_bytes(said) == 2000 * 1024
    assert local_plan.free_bytes(tmp_path / "none") == float("inf")
    assert 1e6 < local_plan.free_bytes() < 1e16
