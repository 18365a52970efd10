"""A disk that fails under load, and comes back: nothing acknowledged is lost, and the host goes on."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from link_peer import FakeRobot, Host, until
from senders import Sender, load, require_exact, settle

from gaptrain.host.database import FILE, HostError
from gaptrain.host.store import Store

Make = Callable[..., FakeRobot]

# Longer than the host waits before it opens the state again, so that it fails more than once.
AWAY_S = 2.5
# A limit on the size of files does not hold for a pipe: the log must tell of what fails.
LOG_THROUGH_A_PIPE = """
import os, subprocess
cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
os.dup2(cat.stdin.fileno(), 1)
from gaptrain.cli import main
main()
"""


@pytest.fixture
def service(senders: list[Sender], tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path / "state", senders[0].peer.bind).start(("-c", LOG_THROUGH_A_PIPE))
    yield made
    made.stop()


@pytest.mark.fault
@pytest.mark.parametrize("mount_point", [False, True])
def test_the_folder_is_away_for_a_while(
    service: Host, senders: list[Sender], tmp_path: Path, mount_point: bool
) -> None:
    state, away = tmp_path / "state", tmp_path / "away"
    load(senders, 0.5, True)
    state.rename(away)
    if mount_point:
        state.mkdir()
    load(senders, AWAY_S, True)
    until(lambda: service.events("store_failed"))
    if mount_point:
        state.rmdir()  # it is empty: no other state was begun
    assert not state.exists()
    away.rename(state)
    _require_goes_on(service, senders, state)
    _require_told_once(service, FILE)


@pytest.mark.fault
def test_no_file_may_grow_for_a_while(service: Host, senders: list[Sender], tmp_path: Path) -> None:
    assert service.process is not None
    load(senders, 0.5, True)
    limits = resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (1, limits[1]))
    load(senders, AWAY_S, True)
    until(lambda: service.events("store_failed"))
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, limits)
    _require_goes_on(service, senders, tmp_path / "state")
    _require_told_once(service, "disk")


def _require_goes_on(service: Host, senders: list[Sender], state: Path) -> None:
    """The same process takes more from each robot, and ends when it is told to; all that was sent is there, once."""
    before = [sender.acknowledged for sender in senders]

    def all_went_on() -> bool:
        load(senders, 0.1, True)
        return all(sender.acknowledged > number for sender, number in zip(senders, before, strict=True))

    until(all_went_on)
    settle(senders)
    assert service.stop() == 0
    assert service.errors() == ""
    for sender in senders:
        require_exact(sender, state)


def _require_told_once(service: Host, says: str) -> None:
    (line,) = service.events("store_failed")  # of several failures within a minute
    assert says in line["reason"]
    assert "check the disk: is it mounted" in line["remedy"]


@pytest.mark.fault
def test_it_ends_when_told_to_while_the_disk_is_away(service: Host, tmp_path: Path) -> None:
    (tmp_path / "state").rename(tmp_path / "away")
    until(lambda: service.events("store_failed"))
    assert service.stop() == 0
    assert service.errors() == ""
    assert not (tmp_path / "state").exists()


def test_a_store_is_not_opened_again_where_it_is_not(enrolled: Make, tmp_path: Path) -> None:
    enrolled()
    state = tmp_path / "state"
    store = Store(state, lambda: 1.0)
    store.require_in_place()
    store.close()
    state.rename(tmp_path / "away")
    state.mkdir()
    with pytest.raises(HostError, match="no such file"):
        store.reopen()
    (state / FILE).write_bytes(b"")
    with pytest.raises(HostError, match="schema 0"):
        store.reopen()
    with pytest.raises(OSError, match="another file is in its place"):
        store.require_in_place()
