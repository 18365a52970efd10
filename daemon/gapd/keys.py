"""CURVE keys of the host link: one pair per robot and one for the host, in files that only their owner can read.

A pair is NAME.key, the secret, and NAME.pub, which the other end gets. Both are TOML with the key in Z85.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq
from zmq.utils import z85

from gapd.durable import sync_folder
from gapd.errors import ConfigError
from gapd.limits import name_fault
from gapd.typed_toml import decode_toml

# Of a key of 32 bytes in Z85.
KEY_LENGTH = 40
SECRET_MODE, PUBLIC_MODE = 0o600, 0o644


@dataclass(frozen=True)
class KeyPair:
    """Public and secret key, 40 characters of Z85 each; the secret never shows in a print."""

    public: bytes
    secret: bytes = field(repr=False)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is in a key file: one of the two keys."""

    name: str
    public_key: str = ""
    secret_key: str = ""


def write_keys(folder: Path, name: str, *, force: bool = False) -> tuple[Path, Path]:
    """Draw a pair and write NAME.key (mode 0600) and NAME.pub (0644); return both paths.

    Each file appears complete or not at all. Raises ConfigError where a file exists, unless `force`.
    """
    if name_fault(name) or not re.fullmatch(r"[\w-][\w.-]*", name):
        raise ConfigError(f"key name {name!r} must consist of letters, digits, '.', '-' and '_'; choose another")
    public, secret = (key.decode() for key in zmq.curve_keypair())
    files = (
        (folder / f"{name}.key", SECRET_MODE, f'# Secret: stays on this machine.\nname = "{name}"\nsecret_key', secret),
        (folder / f"{name}.pub", PUBLIC_MODE, f'# For the other end of the link.\nname = "{name}"\npublic_key', public),
    )
    for path, *_ in files:
        if path.exists() and not force:
            raise _exists(path)
    for path, mode, head, key in files:
        _write(path, mode, f'{head} = "{key}"\n', force=force)
    return files[0][0], files[1][0]


def read_secret(path: Path) -> KeyPair:
    """Read NAME.key; raise ConfigError if others may read it too, or if it holds no secret key."""
    mode = _mode(path)
    if mode & ~0o700:
        raise ConfigError(f"{path}: secret key has mode {mode:04o}, so that others can use it; chmod 600 {path}")
    file = decode_toml(path, _File)
    if not file.secret_key:
        raise ConfigError(f"{path}: holds no secret key; name the .key file written with it")
    secret = _checked(path, file.secret_key)
    return KeyPair(zmq.curve_public(secret), secret)


def read_public(path: Path) -> bytes:
    """Read NAME.pub, 40 characters of Z85; raise ConfigError if others may write it, or if it holds no public key."""
    mode = _mode(path)
    if mode & 0o022:
        raise ConfigError(f"{path}: public key has mode {mode:04o}, so that others can replace it; chmod 644 {path}")
    file = decode_toml(path, _File)
    if file.secret_key:
        raise ConfigError(f"{path}: holds a secret key, which the other end must not have; name its .pub file")
    if not file.public_key:
        raise ConfigError(f"{path}: holds no public key; name the .pub file")
    return _checked(path, file.public_key)


def _mode(path: Path) -> int:
    """Permission bits of a regular file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such key file; write one with gapd keygen, or correct the path") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); check path and permissions") from None
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path}: is not a file; name a key file")
    return stat.S_IMODE(status.st_mode)


def _checked(path: Path, key: str) -> bytes:
    if len(key) != KEY_LENGTH:
        raise ConfigError(f"{path}: key has {len(key)} characters instead of {KEY_LENGTH}; copy the file again")
    with suppress(ValueError, KeyError, struct.error):
        if any(z85.decode(key)):
            return key.encode()
    raise ConfigError(f"{path}: key is not valid Z85; copy the file again")


def _exists(path: Path) -> ConfigError:
    return ConfigError(f"{path}: exists, and the other end knows it; choose another name, or replace it with --force")


def _write(path: Path, mode: int, text: str, *, force: bool) -> None:
    """Write a file under another name, then give it its own: no reader sees a part of it, or a looser mode."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, SECRET_MODE)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, mode)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        if force:
            part.replace(path)
        else:
            os.link(part, path)  # unlike a rename, fails where the name is taken
        sync_folder(path.parent)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); check folder and permissions") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
