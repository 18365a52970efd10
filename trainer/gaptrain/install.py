"""A new bundle in the place of the old one: whole or not at all, and pinned in robot.toml."""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gapd import durable
from gapd.errors import ConfigError, InputError
from gapd.gap_model.manifest import GOLDEN, MANIFEST, MODEL, NETWORK
from gapd.model.robot import Robot

OWN = frozenset({GOLDEN, MANIFEST, MODEL, NETWORK})


def require_writable(robot: Robot) -> None:
    """ConfigError where the bundle could not be written or pinned. Nothing is changed."""
    folder, toml = bundle_folder(robot), Path(robot.config.folder) / "robot.toml"
    with _writing(folder):
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"bundle {folder}: is a file; name a folder in robot.toml")
        if not folder.parent.is_dir():
            raise ConfigError(f"bundle {folder}: no folder {folder.parent}; make it, or name another in robot.toml")
        others = sorted({p.name for p in folder.iterdir()} - OWN) if folder.is_dir() else []
        if others:
            raise ConfigError(
                f"bundle {folder}: holds {others[0]!r}, which is no part of a bundle; name its own folder"
            )
        for path, wanted in ((_beside(toml, "part"), Path.is_file), (_beside(folder, "part"), Path.is_dir)):
            if path.exists() and not wanted(path):
                raise ConfigError(f"{path}: is in the way; remove it")
        pinned(toml.read_text(encoding="utf-8"), toml, 64 * "0")


def bundle_folder(robot: Robot) -> Path:
    """Folder of the robot's bundle, there or not."""
    return robot.config.path(robot.config.bundle or "bundle")


def replace_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files into a folder of their own and put that in the place of `folder`.

    Killed at any time, this leaves the old bundle, none, or the new one: never a part.
    """
    folder = Path(os.path.realpath(folder))  # a link stays one
    part, old = _beside(folder, "part"), _beside(folder, "old")
    with _writing(folder):
        for leftover in (part, old):
            if leftover.exists():
                shutil.rmtree(leftover)
        part.mkdir()
        for name, raw in files.items():
            durable.write(part / name, raw)
        durable.sync_folder(part)
        if folder.exists():
            folder.rename(old)
        part.rename(folder)
        durable.sync_folder(folder.parent)
        if old.exists():
            shutil.rmtree(old)


def pin(path: Path, sha256: str) -> None:
    """Write bundle_sha256, and bundle where it is not set, into robot.toml; all other lines and comments stay."""
    text = pinned(path.read_text(encoding="utf-8"), path, sha256)
    partial = _beside(path, "part")
    with _writing(path):
        durable.write(partial, text.encode())
        partial.replace(path)
        durable.sync_folder(path.parent)


def pinned(text: str, path: Path, sha256: str) -> str:
    """The text of robot.toml with both lines; ConfigError where they cannot be found or placed."""
    for key, value, keep in (("bundle", "bundle", True), ("bundle_sha256", sha256, False)):
        line = f'{key} = "{value}"'
        found = re.search(rf"^{key}\s*=\s*(\"([^\"\n]*)\"|'([^'\n]*)')", text, re.MULTILINE)
        if found is None:  # top-level keys come before the first table
            table = re.search(r"^\s*\[", text, re.MULTILINE)
            at = table.start() if table else len(text)
            text = f"{text[:at].rstrip()}\n{line}\n\n{text[at:].lstrip()}"
        elif not keep or not (found[2] or found[3]):
            text = text[: found.start()] + line + text[found.end() :]
    try:
        wrote = tomllib.loads(text).get("bundle_sha256")
    except tomllib.TOMLDecodeError:
        wrote = None
    if wrote != sha256:
        raise ConfigError(f"{path}: cannot be pinned; write `bundle` and `bundle_sha256` as plain lines at its top")
    return text


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(f"{path.name}.{ending}")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); free space, or correct permissions") from None
