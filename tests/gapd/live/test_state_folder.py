"""What outlives a restart is there whole, or set aside with a word about it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from gapd.errors import ConfigError, InputError
from gapd.fit.check import ErrorBudget
from gapd.live.memory import Memory
from gapd.live.monitor import Baseline
from gapd.live.state_folder import KEPT, StateFolder
from gapd.model.robot import Robot

MEMORY = Memory(
    (0.1, 0.2, 0.3, 0.4), (1.0, 1.5, 2.0), Baseline((0.1, 0.2, 0.3), (1.0, 1.1, 1.2)), ErrorBudget(available=0.4)
)


@pytest.fixture
def folder(tiny: Robot, tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path / "above" / "state", tiny)


def again(folder: StateFolder, robot: Robot) -> StateFolder:
    """What the next process finds."""
    folder.close()
    return StateFolder(folder.folder, robot)


def test_nothing_is_remembered_at_first(folder: StateFolder) -> None:
    assert folder.load() == (None, 0)
    assert folder.notes == []


def test_only_its_user_may_look_inside(folder: StateFolder) -> None:
    for path in (folder.folder, folder.folder / "evidence"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_what_is_saved_is_loaded(folder: StateFolder, tiny: Robot) -> None:
    folder.save(MEMORY, 7)
    assert again(folder, tiny).load() == (MEMORY, 7)


def test_a_channel_that_is_absent_is_remembered_too(folder: StateFolder, tiny: Robot) -> None:
    """JSON has no NaN: a robot without one of its channels was commissioned anew at each start."""
    nan = float("nan")
    memory = msgspec.structs.replace(MEMORY, floor=(1.0, nan, 2.0), baseline=Baseline((0.1, nan, 0.3), (1.0, nan, 1.2)))
    folder.save(memory, 7)
    loaded = again(folder, tiny)
    found, version = loaded.load()
    assert found is not None
    assert found.baseline is not None
    np.testing.assert_array_equal(found.baseline.mean, (0.1, nan, 0.3))
    np.testing.assert_array_equal(found.floor, (1.0, nan, 2.0))
    assert (version, loaded.notes) == (7, [])


def change(key: str, value: object) -> Any:
    def act(stored: dict[str, Any]) -> None:
        stored[key] = value

    return act


def change_z(stored: dict[str, Any]) -> None:
    stored["memory"]["z"][1] = None


def change_sd(stored: dict[str, Any]) -> None:
    stored["memory"]["z_sd"] = [0.1]


@pytest.mark.parametrize(
    "act",
    [
        change("format", 99),
        change("parameters", "of another robot"),
        change("extra", 1),
        change("version", "x"),
        change_z,
        change_sd,
    ],
)
def test_what_is_of_no_use_is_set_aside_with_a_word(folder: StateFolder, tiny: Robot, act: Any) -> None:
    folder.save(MEMORY, 7)
    path = folder.folder / "memory.json"
    stored = json.loads(path.read_text())
    act(stored)
    path.write_text(json.dumps(stored))
    loaded = again(folder, tiny)
    assert loaded.load() == (None, 0)
    assert len(loaded.notes) == 1
    assert "memory.json.unusable, and the robot is commissioned anew" in loaded.notes[0]
    assert again(loaded, tiny).load() == (None, 0)


def test_one_process_at_a_time_has_the_folder(folder: StateFolder, tiny: Robot) -> None:
    with pytest.raises(ConfigError, match="another gapd runs with this state folder; stop it, or give each its own"):
        StateFolder(folder.folder, tiny)
    folder.close()
    StateFolder(folder.folder, tiny).close()


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b"[]", b"null"])
def test_a_damaged_file_is_set_aside(folder: StateFolder, tiny: Robot, raw: bytes) -> None:
    (folder.folder / "memory.json").write_bytes(raw)
    assert folder.load() == (None, 0)
    assert (folder.folder / "memory.json.unusable").read_bytes() == raw


def test_a_full_disk_leaves_the_old_file(folder: StateFolder, tiny: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.save(MEMORY, 7)

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"memory.json: cannot be written \(No space left on device\); free space"):
        folder.save(MEMORY, 8)
    assert again(folder, tiny).load() == (MEMORY, 7)


def test_a_folder_that_cannot_be(tiny: Robot, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Not a directory; name a folder that this user may write"):
        StateFolder(tmp_path / "file" / "state", tiny)


def test_evidence_comes_in_pieces_and_the_oldest_goes(folder: StateFolder) -> None:
    recordings = [bytes([n]) * 1000 for n in range(KEPT + 2)]
    names = [folder.keep_evidence(raw) for raw in recordings]
    assert names[0] == hashlib.sha256(recordings[0]).hexdigest()
    assert folder.evidence(names[0], 0, 100) == (b"", 0)
    assert folder.evidence(names[-1], 900, 200) == (recordings[-1][900:], 1000)
    assert folder.evidence(names[-1], 5000, 200) == (b"", 1000)
    assert folder.evidence(names[-1], -1, 200) == (b"", 0)
    assert folder.evidence("../memory.json", 0, 100) == (b"", 0)
    assert len(list((folder.folder / "evidence").iterdir())) == KEPT
