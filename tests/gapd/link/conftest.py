"""An outbox of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from outbox_rig import MEGABYTE

from gapd.link.outbox import (
    Outbox,
)


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def outbox(tmp_path: Path, lines: list[str]) -> Iterator[Outbox]:
    with Outbox(tmp_path / "outbox.db", MEGABYTE, lines.append) as outbox:
        yield outbox
