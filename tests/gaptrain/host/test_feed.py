"""The feed in a simulation that runs."""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import mujoco
import numpy as np
import pytest
from link_peer import FakeRobot, correction

from gapd.model.robot import Robot, open_robot
from gaptrain.host.database import FILE, HostError
from gaptrain.host.feed import ParameterFeed
from gaptrain.host.registry import the_robot
from gaptrain.host.store import Store

Make = Callable[..., FakeRobot]
Correct = Callable[..., None]


@pytest.fixture
def correct(enrolled: Make, tmp_path: Path) -> Iterator[Correct]:
    """Applies the next correction of r1."""
    robot = enrolled()
    store = Store(tmp_path / "state", time.time)
    record = the_robot(store.database, "r1")
    store.greet(record, robot.hello())
    done = [0]

    def apply(**other: object) -> None:
        done[0] += 1
        store.apply(record, correction(robot.space, done[0], done[0] - 1, **other))

    yield apply
    store.close()


@pytest.fixture
def robot(tiny_folder: Path) -> Robot:
    """The tiny robot with a model of its own, which the test may change."""
    return open_robot(tiny_folder / "robot.toml")


def test_a_live_model_changes_between_two_steps(correct: Correct, robot: Robot, tmp_path: Path) -> None:
    model, space = robot.model, robot.parameters
    data = mujoco.MjData(model)
    with ParameterFeed(tmp_path / "state", "r1") as feed:
        model.dof_damping[:] = 9.0  # what somebody left there
        assert feed.apply(model)
        assert (feed.version, model.dof_damping[0]) == (0, pytest.approx(0.05))
        mujoco.mj_step(model, data)
        assert not feed.apply(model)
        kp = 8.0
        z = space.z_nominal + np.array([np.log(kp / 4), 0.5, 0.0, 0.1])
        correct(z=tuple(z))
        assert feed.apply(model)
        mujoco.mj_step(model, data)
        assert feed.version == 1
        assert model.actuator_gainprm[0, 0] == pytest.approx(kp)
        assert model.actuator_biasprm[0, 1] == pytest.approx(-kp)
        assert model.dof_damping[0] == pytest.approx(0.05 * np.exp(0.5))
        fresh = mujoco.MjModel.from_xml_path(str(robot.config.path("model.xml")))
        fresh.dof_armature[:] = model.dof_armature
        mujoco.mj_setConst(fresh, mujoco.MjData(fresh))
        assert model.dof_invweight0[0] == pytest.approx(fresh.dof_invweight0[0])
        np.testing.assert_allclose(feed.physical, space.to_physical(z))


def test_each_model_is_written_once_per_version(correct: Correct, tiny_folder: Path, tmp_path: Path) -> None:
    models = [open_robot(tiny_folder / "robot.toml").model for _ in range(2)]
    with ParameterFeed(tmp_path / "state", "r1") as feed:
        assert [feed.apply(m) for m in models] == [True, True]
        correct()
        assert feed.refresh()
        assert not feed.refresh()
        assert [feed.apply(m) for m in models] == [True, True]
        assert [feed.apply(m) for m in models] == [False, False]


def test_while_nothing_is_new_no_table_is_read(correct: Correct, robot: Robot, tmp_path: Path) -> None:
    with ParameterFeed(tmp_path / "state", "r1") as feed:
        feed.apply(robot.model)
        statements: list[str] = []
        feed._database.set_trace_callback(statements.append)
        assert not feed.apply(robot.model)
        assert feed.version == 0
        feed.sample(np.random.default_rng(1), 2)
        assert statements == ["PRAGMA data_version"] * 3
        correct()
        assert feed.apply(robot.model)
        assert any("FROM versions" in statement for statement in statements)


def test_whatever_is_asked_the_newest_values_answer(correct: Correct, robot: Robot, tmp_path: Path) -> None:
    space, rng = robot.parameters, np.random.default_rng(2)
    certain = {"z_sd": (0.0,) * 4, "active": (), "covariance": b""}
    with ParameterFeed(tmp_path / "state", "r1") as feed:
        for version, shift in enumerate((0.1, 0.2, 0.3), 1):
            z = space.z_nominal + shift
            correct(z=tuple(z), **certain)
            if version == 1:
                np.testing.assert_allclose(feed.sample(rng, 2), [space.to_physical(z)] * 2)
            elif version == 2:
                np.testing.assert_allclose(feed.physical, space.to_physical(z))
            else:
                assert feed.version == version
        assert not feed.refresh()  # seen already


def test_draws_have_the_covariance_and_stay_within_the_bounds(correct: Correct, robot: Robot, tmp_path: Path) -> None:
    space, rng = robot.parameters, np.random.default_rng(5)
    with ParameterFeed(tmp_path / "state", "r1") as feed:
        before = feed.sample(rng, 500)
        assert before.shape == (500, 4)
        assert np.ptp(space.to_scaled(before)[:, 0]) > 0.9 * (space.z_max - space.z_min)[0]
        correct(z_sd=(0.1, 0.05, 0.1, 0.0), covariance=np.array([0.01, 0.008, 0.01], "<f4").tobytes())
        z = space.to_scaled(feed.sample(rng, 20000))
        wanted = np.diag([0.01, 0.0025, 0.01, 0.0])
        wanted[0, 2] = wanted[2, 0] = 0.008
        np.testing.assert_allclose(np.cov(z.T), wanted, atol=4e-4)
        correct(z=tuple(space.z_max), z_sd=(3.0,) * 4, active=(), covariance=b"")
        wide = feed.sample(rng, 2000)
        assert ((wide >= space.min) & (wide <= space.max)).all()
        assert np.isfinite(wide).all()


def test_many_threads_may_refresh_while_one_applies(correct: Correct, robot: Robot, tmp_path: Path) -> None:
    with ParameterFeed(tmp_path / "state", "r1") as feed:
        stop, failures = threading.Event(), []

        def poll() -> None:
            rng = np.random.default_rng(1)
            while not stop.is_set():
                try:
                    feed.refresh()
                    feed.sample(rng, 10)
                except Exception as error:  # noqa: BLE001  whatever it is, the test must see it
                    failures.append(error)

        threads = [threading.Thread(target=poll) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(30):
            correct()
            feed.apply(robot.model)
        stop.set()
        for thread in threads:
            thread.join()
        assert failures == []
        feed.apply(robot.model)
        assert feed.version == 30
        assert robot.model.actuator_gainprm[0, 0] == pytest.approx(4 * np.exp(30e-6), rel=1e-9)


def test_a_feed_of_nobody_says_so(correct: Correct, tmp_path: Path) -> None:
    with pytest.raises(HostError, match="'r9' is not enrolled; did you mean 'r1'"):
        ParameterFeed(tmp_path / "state", "r9")
    with pytest.raises(HostError, match="no such file; start `gaptrain host`"):
        ParameterFeed(tmp_path / "elsewhere", "r1")


def garbled(state: Path) -> None:
    """The first page of every table is garbage, as a bad disk leaves it; the schema is whole."""
    with closing(sqlite3.connect(state / FILE)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (size,) = database.execute("PRAGMA page_size").fetchone()
        pages = database.execute("SELECT rootpage FROM sqlite_master WHERE type = 'table'").fetchall()
    with (state / FILE).open("r+b") as file:
        for (page,) in pages:
            file.seek(size * (page - 1))
            file.write(b"\xff" * size)


@pytest.mark.parametrize("damage", ["within", "truncated", "text", "empty"])
def test_a_damaged_file_is_one_line_with_a_remedy(correct: Correct, tmp_path: Path, damage: str) -> None:
    correct()
    state, path = tmp_path / "state", tmp_path / "state" / FILE
    garbled(state)
    if damage != "within":
        raw = {"truncated": path.read_bytes()[:6000], "text": b"not a database" * 400, "empty": b""}[damage]
        path.write_bytes(raw)
        for other in state.glob(f"{FILE}-*"):
            other.unlink()
    with pytest.raises(HostError) as caught:
        ParameterFeed(state, "r1")
    assert str(caught.value).startswith(f"{path}: ")
    assert re.search(
        r"; (check disk and permissions, or restore the folder from a backup|use another --state)$", str(caught.value)
    )


def test_a_file_that_is_damaged_while_it_is_read_is_one_line(correct: Correct, robot: Robot, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with ParameterFeed(state, "r1") as feed:
        correct()
        assert feed.apply(robot.model)
        correct()
        garbled(state)
        before = robot.model.dof_damping.copy()
        for use in (lambda: feed.version, lambda: feed.apply(robot.model), feed.refresh):
            with pytest.raises(HostError, match=r"host\.sqlite: .*; check disk and permissions, or restore the folder"):
                use()
        assert (robot.model.dof_damping == before).all()


def test_values_go_into_an_mjcf_and_into_a_file_for_sysid(correct: Correct, robot: Robot, tmp_path: Path) -> None:
    z = robot.parameters.z_nominal + 0.3
    correct(z=tuple(z))
    with ParameterFeed(tmp_path / "state", "r1") as feed:
        text = feed.mjcf(robot.config.path(robot.config.model))
        model = mujoco.MjModel.from_xml_string(text)
        assert model.dof_damping[0] == pytest.approx(0.05 * np.exp(0.3), rel=1e-6)
        assert model.actuator_biasprm[0, 1] == pytest.approx(-4 * np.exp(0.3), rel=1e-6)
        feed.to_sysid_yaml(tmp_path / "parameters.yaml")
    sysid = pytest.importorskip("mujoco.sysid")
    loaded = sysid.ParameterDict.load_from_disk(tmp_path / "parameters.yaml")
    stored = dict(zip(loaded.get_non_frozen_parameter_names(), loaded.as_vector(), strict=True))
    found = [stored[name] for name in robot.parameters.names]  # the file is sorted by name
    np.testing.assert_allclose(found, robot.parameters.to_physical(z))
