"""A candidate of the host, from the offer to the version, between a daemon and a host that are processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import numpy as np
from link_peer import Host, until
from live_robot import CHANGE, Gapd, Source

from gapd.messages.frames import Frame
from gapd.model.robot import Robot
from gaptrain.host import jobs
from gaptrain.host.database import open_state, read_state
from gaptrain.host.versions import history


def test_an_accepted_candidate_is_the_next_version(
    run: Callable[..., Gapd], linked: Host, linked_robot: Robot, source: Source, commissioning: list[Frame]
) -> None:
    linked.start()
    daemon = run()
    daemon.wait("link_up")
    space = linked_robot.parameters
    z = space.to_scaled(space.nominal * CHANGE)
    with closing(open_state(linked.state)) as database:  # as `gaptrain recalibrate` does, from another process
        name = jobs.add_candidate(database, "r1", 0, space.fingerprint, z, np.full(len(z), 0.1), "test", 1.0)
    assert daemon.wait("offered")["candidate"] == name
    daemon.feed(source, commissioning)  # of a robot that is what the candidate says
    judged = daemon.wait("candidate")
    assert (judged["candidate"], judged["verdict"]) == (name, "accepted")
    assert daemon.wait("acknowledged")["version"] == 1

    (line,) = until(lambda: linked.events("verdict"))
    assert (line["candidate"], line["verdict"], line["version"]) == (name, "accepted", 1)
    with closing(read_state(linked.state)) as database:
        (version,) = history(database, "r1")
        (state,) = database.execute("SELECT state FROM candidates").fetchone()
    assert (version.number, version.source, state) == (1, f"candidate {name}", "accepted")
    np.testing.assert_array_equal(version.values.z, z)
    status = daemon.status()
    assert (status["state"], status["link"]["version"]) == ("watching", 1)
    np.testing.assert_allclose([e["value"] for e in status["estimates"]], space.nominal * CHANGE)
    assert not daemon.events("decision")  # the values came from the host alone
    assert daemon.stop() == 0
