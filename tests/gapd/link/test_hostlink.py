"""The host link over real sockets: each message applied once, whatever breaks."""

from __future__ import annotations

import os
import time

import msgspec
import numpy as np
import pytest
import zmq
from link_rig import (
    PATIENCE_S,
    Context,
    Rig,
    Z,
    expected,
    free_port,
    now_s,
    verdict,
)

from gapd.errors import ConfigError
from gapd.link import connection, conversation, hostlink
from gapd.link.link_events import (
    Acknowledged,
    CandidateOffered,
    Connected,
    Disconnected,
    EvidenceWanted,
    Refused,
    Rejected,
)
from gapd.link.outbox import Outbox, OutboxError
from gapd.messages import link as wire


def test_everything_arrives_once_after_the_host_was_away(rig: Rig) -> None:
    port = free_port()
    link = rig.link(port)
    rig.put(20)
    rig.run(link, lambda: link._failures >= 2)
    assert rig.events == [
        Disconnected(f"tcp://127.0.0.1:{port}: nothing listens there", connection.UNREACHABLE)
    ]  # once, not for each attempt
    assert len(rig.outbox) == 20
    host = rig.host(port)
    most: list[int] = []

    def hold(message: wire.FromRobot) -> bool:
        assert link._talk is not None
        most.append(len(link._talk.in_flight))
        return False

    host.quirk = hold
    rig.run(link, lambda: len(rig.outbox) == 0, host)
    assert rig.ledger.applied == expected(20)
    assert max(most) == conversation.IN_FLIGHT
    assert rig.got(Connected) == [Connected(wire.Welcome(1, 0, 1, Z))]
    assert isinstance(rig.events[-1], Acknowledged)
    assert rig.events[-1].sequence == 20
    assert (link.up, link.status(0.0).error, link.version) == (True, "", 1)


def test_a_host_that_dies_between_commit_and_acknowledgement(rig: Rig) -> None:
    """It comes back with a new socket and the same key and disk: nothing is lost, nothing applied twice."""
    host = rig.host()
    link = rig.link(host.port)
    taken: list[str] = []

    def dies(message: wire.FromRobot) -> bool:
        if not isinstance(message, wire.Verdict):
            return False
        rig.hosts[-1].apply(message)  # and no word of it
        taken.append(message.candidate)
        return True

    for life in range(3):
        rig.put(5)
        taken.clear()
        host.quirk = dies
        rig.run(link, lambda: len(taken) >= 3, host)
        host.close()
        rig.run(link, lambda: not link.up)
        rig.hosts.remove(host)
        host = rig.host(host.port)
        rig.run(link, lambda: len(rig.outbox) == 0, host)
        assert rig.ledger.applied == expected(5 * (life + 1))
    assert rig.reasons().count("the connection broke") == 3
    assert isinstance(rig.events[-1], Acknowledged)
    assert rig.events[-1].sequence == 15


def test_a_restarted_robot_goes_on_where_it_was(rig: Rig) -> None:
    host = rig.host()
    first = rig.link(host.port)
    rig.put(12)
    rig.run(first, lambda: len(rig.ledger.applied) >= 6, host)
    first.close()
    rig.outbox.close()
    with Outbox(rig.outbox.path, 2**20, rig.lines.append) as rig.outbox:
        second = rig.link(host.port)
        rig.run(second, lambda: len(rig.outbox) == 0, host)
        assert rig.ledger.applied == expected(12)
        assert rig.ledger.epochs == {rig.outbox.id: 1}
        second.close()


def test_a_refused_message_comes_back_with_the_host_s_values(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)

    def stale(message: wire.FromRobot) -> bool:
        if not isinstance(message, wire.Verdict) or message.sequence != 2:
            return False
        rig.ledger.high_water[1] = 2
        host.send(wire.Nack(1, 2, "stale_base", "check\nagain", 7, (1.0, 2.0, 3.0)))
        return True

    host.quirk = stale
    rig.put(3)
    rig.run(link, lambda: len(rig.outbox) == 0, host)
    assert rig.ledger.applied == ["c1", "c3"]
    message = msgspec.structs.replace(verdict(2), sequence=2)
    assert rig.got(Rejected) == [Rejected(2, message, "stale_base", r"check\nagain", 7, (1.0, 2.0, 3.0))]
    assert [e.sequence for e in rig.events if isinstance(e, Acknowledged)] == [1, 3]


def test_lost_acknowledgements_are_asked_for_again(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)
    seen: list[int] = []

    def loses(message: wire.FromRobot) -> bool:
        if isinstance(message, wire.Verdict):
            seen.append(message.sequence)
            host.apply(message)
        return isinstance(message, wire.Verdict) and len(seen) <= 4

    host.quirk = loses
    rig.put(4)
    rig.run(link, lambda: len(rig.outbox) == 0, host)
    assert seen == [1, 2, 3, 4, 1, 2, 3, 4]
    assert rig.ledger.applied == expected(4)
    assert len(rig.got(Connected)) == 1


def test_a_host_that_never_acknowledges_gets_a_new_connection(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)
    host.quirk = lambda message: isinstance(message, wire.Verdict)
    rig.put(2)
    for _ in range(2):  # the second connection is as patient as the first
        host.received.clear()
        rig.run(link, lambda: link.up, host)
        rig.run(link, lambda: not link.up, host)
        sent = [m.sequence for m in host.received if isinstance(m, wire.Verdict)]
        assert sent == [1, 2] * (1 + conversation.RETRIES)
    assert rig.reasons() == ["the host does not acknowledge"] * 2
    host.quirk = None
    rig.run(link, lambda: len(rig.outbox) == 0, host)
    assert rig.ledger.applied == expected(2)


@pytest.mark.parametrize("code", ["", "invalid"])
def test_an_answer_that_the_disk_does_not_take_is_asked_for_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    host = rig.host()
    link = rig.link(host.port)
    rig.run(link, lambda: link.up, host)
    seen: list[int] = []

    def answers(message: wire.FromRobot) -> bool:
        if not isinstance(message, wire.Verdict):
            return False
        seen.append(message.sequence)
        host.send(wire.Nack(1, message.sequence, "invalid", "no", 1) if code else wire.Ack(1, message.sequence, 1))
        return True

    host.quirk = answers
    rig.put(1)
    with monkeypatch.context() as patch:
        patch.setattr(rig.outbox, "delete_through", fails)
        with pytest.raises(OutboxError):
            rig.run(link, lambda: False, host)
    rig.run(link, lambda: len(rig.outbox) == 0, host)
    assert seen == [1, 1]
    assert len(rig.got(Connected)) == 1
    assert len(rig.got(Rejected if code else Acknowledged)) == 1


def test_a_welcome_that_the_disk_does_not_take_is_asked_for_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    host = rig.host()
    link = rig.link(host.port)
    rig.put(2)
    rig.ledger.epochs[rig.outbox.id], rig.ledger.high_water[1] = 1, 2
    with monkeypatch.context() as patch:
        patch.setattr(rig.outbox, "delete_through", fails)
        with pytest.raises(OutboxError):
            rig.run(link, lambda: False, host)
    assert not link.up
    rig.run(link, lambda: link.up, host)
    assert (len(rig.outbox), len(rig.got(Connected))) == (0, 1)


def fails(_sequence: int) -> int:
    raise OutboxError("outbox: disk I/O error")


def test_a_second_welcome_changes_nothing(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)
    host.quirk = lambda message: isinstance(message, wire.Verdict)
    rig.put(2)
    rig.run(link, lambda: link._talk and len(link._talk.in_flight) == 2, host)
    host.send(wire.Welcome(7, 2, 9, Z))
    rig.run(link, lambda: link.dropped == 1, host)
    assert (len(rig.outbox), link.version, len(rig.got(Connected))) == (2, 1, 1)
    host.send(wire.Ack(1, 2, 1))
    rig.run(link, lambda: len(rig.outbox) == 0, host)


@pytest.mark.parametrize("free", [0, 1])  # for neither of a connection's two sockets, or only for the first
def test_where_no_socket_is_left_it_tries_again(rig: Rig, free: int) -> None:
    limit = 3 + free
    context: Context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, limit)
    taken = [context.socket(zmq.PAIR) for _ in range(limit - free)]
    rig.context, context = context, rig.context
    host = rig.host()
    link = rig.link(host.port)
    rig.run(link, lambda: link._failures, host)
    assert rig.reasons() == ["no socket (Too many open files)"]
    for socket in taken:
        socket.close()
    rig.run(link, lambda: link.up, host)
    link.close()
    rig.context.destroy(linger=0)
    rig.context = context


def test_an_idle_link_beats_and_notices_silence(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)
    link.level = 1
    rig.run(link, lambda: len(host.received) >= 4, host)
    assert host.received[1:4] == [wire.Heartbeat(1, 0, 1)] * 3
    assert len(rig.events) == 1
    start = now_s()
    rig.run(link, lambda: not link.up)  # the host does nothing
    silent_s = now_s() - start
    assert connection.SILENCE_S - connection.HEARTBEAT_S - 1 < silent_s < connection.SILENCE_S + 3
    assert rig.reasons() == ["the host is silent"]


def test_a_robot_that_was_busy_reads_before_it_judges(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)
    rig.run(link, lambda: link.up, host)
    host.send(wire.Heartbeat(3))
    time.sleep(0.1)
    assert link.step(now_s() + 100 * connection.SILENCE_S) == []
    assert (link.up, link.version) == (True, 3)


def test_a_refused_hello_waits_long(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)

    def refuses(message: wire.FromRobot) -> bool:
        host.send(wire.Refused("wrong_parameters", "copy parameters.toml to the host"))
        return True

    host.quirk = refuses
    rig.run(link, lambda: rig.events, host)
    assert rig.events == [Refused("wrong_parameters", "copy parameters.toml to the host")]
    assert link._retry_s >= now_s() + hostlink.REFUSED_RETRY_S - 5
    assert "wrong_parameters; copy parameters.toml" in link.status(0.0).error
    host.quirk = None
    link._retry_s = 0.0
    rig.run(link, lambda: link.up, host)


def test_hello_says_who_it_is(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)
    rig.run(link, lambda: link.up, host)
    hello = host.received[0]
    assert isinstance(hello, wire.Hello)
    assert (hello.protocol, hello.robot, hello.outbox, hello.parameters) == (1, "arm7", rig.outbox.id, "fp")


def test_a_host_of_another_epoch_is_asked_for_its_own(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)
    rig.run(link, lambda: link.up, host)
    rig.ledger.epochs[rig.outbox.id] = 9  # its disk was replaced

    def other(message: wire.FromRobot) -> bool:
        if not isinstance(message, wire.Verdict) or message.epoch == 9:
            return False
        host.send(wire.Nack(message.epoch, message.sequence, "wrong_epoch", "say hello", 1))
        return True

    host.quirk = other
    rig.put(2)
    rig.run(link, lambda: len(rig.outbox) == 0, host)
    assert rig.ledger.applied == expected(2)
    assert rig.got(Rejected) == []
    assert [m.epoch for m in host.received if isinstance(m, wire.Verdict)][-2:] == [9, 9]


def test_an_outbox_that_begins_anew_gets_a_new_epoch(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)
    rig.put(3)
    rig.run(link, lambda: len(rig.outbox) == 0, host)
    rig.outbox._open().execute("DROP TABLE message")  # damage
    rig.outbox.put(verdict(50))
    rig.outbox.put(verdict(51))
    rig.run(link, lambda: len(rig.outbox) == 0, host)
    assert rig.ledger.applied == [*expected(3), "c50", "c51"]
    assert rig.ledger.high_water == {1: 3, 2: 2}
    assert len(rig.lines) == 1


def test_an_outbox_that_went_back_in_time_is_renewed(rig: Rig) -> None:
    host = rig.host()
    rig.ledger.epochs[rig.outbox.id], rig.ledger.high_water[1] = 1, 40
    rig.put(2)
    link = rig.link(host.port)
    rig.run(link, lambda: len(rig.outbox) == 0, host)
    assert rig.ledger.applied == expected(2)
    assert rig.ledger.high_water == {1: 40, 2: 2}


def test_what_the_host_asks_for_comes_out(rig: Rig) -> None:
    host = rig.host()
    link = rig.link(host.port)
    rig.run(link, lambda: link.up, host)
    candidate = wire.Candidate("c9", 1, Z, Z, "gaptrain recalibrate")
    host.send(candidate, wire.EvidenceRequest("e", 49152))
    rig.run(link, lambda: len(rig.events) == 3, host)
    assert rig.events[1:] == [CandidateOffered(candidate), EvidenceWanted("e", 49152)]
    chunk = wire.Chunk("e" * 64, 49152, 10**9, "s" * 64, os.urandom(wire.CHUNK_BYTES))
    assert link.send_chunk(chunk)
    rig.run(link, lambda: chunk in host.received, host)


def test_retries_back_off_with_a_seeded_jitter(rig: Rig) -> None:
    link = rig.link(free_port())
    now, waits = 0.0, []
    for _ in range(12):
        link.step(now)
        end = time.monotonic() + PATIENCE_S
        while link.socket is not None:
            assert time.monotonic() < end
            link.step(now)
        waits.append(link._retry_s - now)
        now = link._retry_s
    limits = [min(0.5 * 2.0**n, 30.0) for n in range(12)]
    assert all(limit / 2 <= wait <= limit for wait, limit in zip(waits, limits, strict=True))
    rng = np.random.default_rng(1)
    np.testing.assert_allclose(waits, [limit * rng.uniform(0.5, 1.0) for limit in limits])


def test_status(rig: Rig) -> None:
    link = rig.link(free_port())
    rig.put(2)
    status = link.status(11.0)
    assert (status.up, status.pending, status.oldest_s, status.dropped, status.corrupt) == (False, 2, 10.0, 0, 0)
    rig.outbox.delete_through(2)
    assert link.status(11.0).oldest_s == 0.0


def test_wrong_configuration_is_refused_at_once(rig: Rig) -> None:
    with pytest.raises(ConfigError, match="holds a secret key"):
        rig.link(5570, server="host.key")
    (rig.folder / "robot.key").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        rig.link(5570)
