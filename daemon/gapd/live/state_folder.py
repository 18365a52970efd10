"""What outlives a restart besides the outbox: the keeper's memory and the evidence of escalations."""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
from pathlib import Path

import msgspec

from gapd import durable
from gapd.errors import ConfigError, InputError
from gapd.live.memory import Memory
from gapd.model.robot import Robot

# Rises when what is stored changes its meaning; an older file is then set aside and the robot commissioned anew.
VERSION = 1
# Recordings kept: the host fetches one soon after its escalation, or never.
KEPT = 5


class Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """memory.json: `parameters` is the fingerprint they belong to, `version` that of the values on the host.

    `measured` is the fingerprint of what gaps depend on besides: channels, timing and the model.
    """

    format: int
    parameters: str
    version: int
    memory: Memory
    measured: str = ""


class StateFolder:
    """The folder `state` of robot.toml; `notes` says what was found there that could not be used."""

    def __init__(self, folder: Path, robot: Robot) -> None:
        """Make the folder, for this user alone. ConfigError if that is not possible."""
        self.folder, self.notes = folder, list[str]()
        space = robot.parameters
        self._fingerprint, self._sizes = space.fingerprint, (len(space), len(robot.layout.channels))
        self._measured = _measured(robot)
        self._evidence = folder / "evidence"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._evidence.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"state {folder}: {error.strerror}; name a folder that this user may write") from None
        self._path = folder / "memory.json"
        self._lock: int | None = _lock(folder)

    def close(self) -> None:
        """Let another process have the folder."""
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def load(self) -> tuple[Memory | None, int]:
        """The keeper's memory, if there is one of these parameters, and the version of the values on the host."""
        try:
            stored = msgspec.convert(_numbers(msgspec.json.decode(self._path.read_bytes())), Stored)
        except FileNotFoundError:
            return None, 0
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._aside(f"cannot be read ({error})")
            return None, 0
        if stored.format != VERSION or stored.parameters != self._fingerprint or not self._fits(stored.memory):
            self._aside("belongs to other parameters or channels, or to another version of gapd")
            return None, 0
        if stored.measured != self._measured:
            self.notes.append(f"{self._path}: channels, timing or model have changed; the robot is commissioned anew")
            return msgspec.structs.replace(
                stored.memory, floor=(), baseline=None, escalated=False, earlier=None
            ), stored.version
        return stored.memory, stored.version

    def save(self, memory: Memory, version: int) -> None:
        """Replace the file at once: after a crash it is the old or the new one."""
        raw = msgspec.json.encode(Stored(VERSION, self._fingerprint, version, memory, self._measured))
        _write(self._path, msgspec.json.format(raw, indent=1))

    def keep_evidence(self, raw: bytes) -> str:
        """Store a recording; its sha256, by which the host asks for it."""
        digest = hashlib.sha256(raw).hexdigest()
        _write(self._evidence / digest, raw)
        newest = sorted(self._evidence.iterdir(), key=lambda p: p.stat().st_mtime_ns, reverse=True)
        for path in newest[KEPT:]:
            path.unlink(missing_ok=True)
        return digest

    def evidence(self, digest: str, offset: int, size: int) -> tuple[bytes, int]:
        """Bytes of a recording from offset, and its length; nothing and 0 if it is gone."""
        path = self._evidence / digest
        if not digest.isalnum() or offset < 0:
            return b"", 0
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return file.read(size), path.stat().st_size
        except OSError:
            return b"", 0

    def _fits(self, memory: Memory) -> bool:
        parameters, channels = self._sizes
        known_baselines = [b for b in (memory.baseline, memory.earlier) if b is not None]
        baselines = all(len(b.mean) == len(b.spread) == channels for b in known_baselines)
        floor = len(memory.floor) in (0, channels)
        known = len(memory.z) == parameters and all(map(math.isfinite, memory.z))
        known = known and all(len(told) in (0, parameters) for told in (memory.z_sd, memory.status))
        return known and floor and baselines

    def _aside(self, why: str) -> None:
        target = self._path.with_name(f"{self._path.name}.unusable")
        self._path.replace(target)
        self.notes.append(f"{self._path} {why}: it is now {target.name}, and the robot is commissioned anew")


def _lock(folder: Path) -> int:
    """Descriptor that keeps other daemons out: two would write one memory."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise ConfigError(
            f"state {folder}: another gapd runs with this state folder; stop it, or give each its own"
        ) from None
    return descriptor


def _measured(robot: Robot) -> str:
    """Floors and baselines are gaps in noise, between this model and these channels."""
    config = robot.config
    model = config.path(config.model)
    said = msgspec.json.encode((config.channel, config.timing, model.read_bytes() if model.is_file() else b""))
    return hashlib.sha256(said).hexdigest()


def read_memory(plain: object) -> Memory:
    """The memory from JSON's types. Raises msgspec.ValidationError."""
    return msgspec.convert(_numbers(plain), Memory)


def _numbers(plain: object) -> object:
    """JSON has no NaN, which is null in a list of numbers."""
    if isinstance(plain, dict):
        return {key: _numbers(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return [math.nan if value is None else value for value in plain]
    return plain


def _write(path: Path, raw: bytes) -> None:
    try:
        durable.replace(path, raw)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); free space on the disk") from None
