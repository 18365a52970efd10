"""docs/live.md names every key of the tables [live.*] with its default, and every event of the two logs."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from gapd.live_config import KeeperSettings, Link, Live, RemoteStream, Stream, ZmqFrames

ROOT = Path(__file__).parents[2]
# A log line of an event, in daemon and host.
CANONICAL = r'canonical\(\s*(?:[\w.]+\.)?_?log,\s*"(\w+)"'
DOCS = (ROOT / "docs" / "live.md").read_text()
TABLES: dict[str, type[msgspec.Struct]] = {
    "live": Live, "live.frames": ZmqFrames, "live.link": Link, "live.stream": Stream,
    "live.remote_stream": RemoteStream, "live.keeper": KeeperSettings,
}  # fmt: skip


def shown(default: object) -> str:
    """A default as TOML writes it."""
    if isinstance(default, bool):
        return str(default).lower()
    return f'"{default}"' if isinstance(default, str) else str(default)


def rows(table: str) -> dict[str, str]:
    """Keys of a table in the docs, with what stands in the column of defaults."""
    head = f"| `[{table}]` | default |"
    lines = DOCS[DOCS.index(head) :].split("\n\n")[0].splitlines()[2:]
    return {cells[1].strip(" `"): cells[2].strip(" `") for cells in (line.split("|") for line in lines)}


@pytest.mark.parametrize("table", TABLES)
def test_every_key_is_there_with_its_default(table: str) -> None:
    fields = {f.name: f for f in msgspec.structs.fields(TABLES[table])}
    plain = {name for name in fields if f"live.{name}" not in TABLES}
    documented = rows(table)
    assert set(documented) == plain
    for name in plain:
        default = fields[name].default
        wanted = "required" if default is msgspec.NODEFAULT else shown(default) if default != () else "[]"
        assert documented[name] == wanted, name


def events(pattern: str, *folders: str) -> set[str]:
    files = [path for folder in folders for path in (ROOT / folder).glob("*.py")]
    return {name for path in files for name in re.findall(pattern, path.read_text())}


def test_every_event_of_the_daemon_is_there() -> None:
    written = events(CANONICAL, "daemon/gapd", "daemon/gapd/live")
    assert {"decision", "link_down", "ready", "source_silent"} <= written
    assert {name for name in written if f"`{name}`" not in DOCS} == set()


def test_every_event_of_the_host_is_there() -> None:
    written = events(CANONICAL, "trainer/gaptrain/host")
    assert {"ready", "correction", "recalibrated"} <= written
    assert {name for name in written if f"`{name}`" not in DOCS} == set()


def test_every_refusal_of_the_host_is_there() -> None:
    written = events(r'_refusals\.note\(\s*"(\w+)"', "trainer/gaptrain/host")
    assert "key_unknown" in written
    assert {name for name in written if f"`{name}`" not in DOCS} == set()
