"""What waits for the outbox: in order, and never behind a message that cannot be sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gapd.link.outbox import MessageTooLargeError, Outbox, OutboxError, OutboxFullError
from gapd.live.postbox import Postbox
from gapd.messages.link import MAX_BYTES, Correction, Escalation, Verdict


def correction(padding: int = 0) -> Correction:
    return Correction(0, 0, 1.0, 99, (0.1,), (0.1,), (), b"", (), (), "x" * padding, 2.0, 1.0, 13)


def escalation() -> Escalation:
    return Escalation(0, 0, 1.0, 99, "structural", "look at it", (), "", 0)


def verdict() -> Verdict:
    return Verdict(0, 0, 1.0, "c1", 2, "accepted", "checked", 2.0, 1.0, 13)


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    with Outbox(tmp_path / "outbox.sqlite", 2**20, lambda _: None) as outbox:
        yield outbox


def test_messages_are_based_on_the_version_before_them(outbox: Outbox) -> None:
    post = Postbox(outbox, 4)
    for message in (correction(), escalation(), verdict(), correction()):
        post.put(message)
    assert [(sequence, m.base_version) for sequence, m in post.store()] == [(1, 4), (2, 5), (3, 2), (4, 6)]
    assert (post.version, post.pending) == (7, 4)
    assert list(post.store()) == []


def test_one_that_is_too_large_is_dropped_and_told_and_the_rest_goes_on(outbox: Outbox) -> None:
    post = Postbox(outbox, 4)
    for message in (correction(), correction(MAX_BYTES), escalation(), correction()):
        post.put(message)
    stored = list(post.store())
    error, dropped = stored[1]
    assert isinstance(error, MessageTooLargeError)
    assert isinstance(dropped, Correction)
    assert str(error).startswith("correction of ")
    assert [(s, m.base_version) for s, m in stored if s is not error] == [(1, 4), (2, 5), (3, 5)]
    assert (post.version, post.pending, len(outbox)) == (6, 3, 3)
    assert list(post.store()) == []


@pytest.mark.parametrize("kind", [OutboxError, OutboxFullError])
def test_what_a_failing_disk_keeps_out_waits_and_what_was_stored_is_told(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch, kind: type[OutboxError]
) -> None:
    post, put = Postbox(outbox, 0), outbox.put

    def fails_after_one(message: Correction) -> int:
        if len(outbox):
            raise kind("no")
        return put(message)

    post.put(correction())
    post.put(correction())
    with monkeypatch.context() as patch:
        patch.setattr(outbox, "put", fails_after_one)
        stored = post.store()
        assert next(stored)[0] == 1
        with pytest.raises(kind):
            next(stored)
    assert (post.version, post.pending) == (1, 2)
    assert [(s, m.base_version) for s, m in post.store()] == [(2, 1)]


def test_without_an_outbox_nothing_waits() -> None:
    post = Postbox(None, 0)
    post.put(correction())
    assert (list(post.store()), post.pending) == ([], 0)
