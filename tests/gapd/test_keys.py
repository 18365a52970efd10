"""Keys: nobody but the owner can read a secret, no file is half written, and each wrong file gets one clear line."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest
import zmq

from gapd import keys
from gapd.errors import ConfigError
from gapd.keys import read_public, read_secret, write_keys


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_pair_is_written_with_its_modes_and_read_back(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        secret, public = write_keys(tmp_path, "arm7-3")
    finally:
        os.umask(before)
    assert (secret.name, public.name) == ("arm7-3.key", "arm7-3.pub")
    assert (mode(secret), mode(public)) == (0o600, 0o644)
    pair = read_secret(secret)
    assert pair.public == read_public(public) == zmq.curve_public(pair.secret)
    assert pair.secret.decode() not in repr(pair) + public.read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["arm7-3.key", "arm7-3.pub"]


def test_keys_in_use_are_replaced_only_by_force(tmp_path: Path) -> None:
    secret, public = write_keys(tmp_path, "arm7")
    before = secret.read_bytes(), public.read_bytes()
    with pytest.raises(ConfigError, match=r"exists, and the other end knows it; choose another name, or .* --force"):
        write_keys(tmp_path, "arm7")
    public.unlink()
    with pytest.raises(ConfigError, match=r"arm7\.key: exists"):
        write_keys(tmp_path, "arm7")
    assert secret.read_bytes() == before[0]
    write_keys(tmp_path, "arm7", force=True)
    assert read_secret(secret).public == read_public(public)
    assert secret.read_bytes() != before[0]


def test_a_file_that_appears_in_between_is_not_overwritten(tmp_path: Path) -> None:
    taken = tmp_path / "a.key"
    taken.write_text("mine")
    with pytest.raises(ConfigError, match="exists"):
        keys._write(taken, 0o600, "other", force=False)
    assert taken.read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["a.key"]


def test_a_crash_while_writing_leaves_no_part_of_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ConfigError, match=r"cannot be written \(Input/output error\)"):
        write_keys(tmp_path, "arm7")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b", "a\nb", 'a"b'])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="key name"):
        write_keys(tmp_path, name)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory"):
        write_keys(tmp_path / "none", "arm7")


@pytest.mark.parametrize("loose", [0o644, 0o640, 0o604, 0o660, 0o602])
def test_a_secret_that_others_can_use_is_refused(tmp_path: Path, loose: int) -> None:
    secret, _ = write_keys(tmp_path, "arm7")
    secret.chmod(loose)
    with pytest.raises(ConfigError) as refused:
        read_secret(secret)
    assert str(secret) in str(refused.value)
    assert f"{loose:04o}" in str(refused.value)
    assert str(refused.value).endswith(f"chmod 600 {secret}")
    secret.chmod(0o400)
    read_secret(secret)


def test_a_public_key_that_others_can_replace_is_refused(tmp_path: Path) -> None:
    _, public = write_keys(tmp_path, "host")
    public.chmod(0o666)
    with pytest.raises(
        ConfigError, match=f"mode 0666, so that others can replace it; chmod 644 {re.escape(str(public))}"
    ):
        read_public(public)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('name = "a"\nsecret_key = "{}"', "key has 39 characters instead of 40; copy the file again"),
        ('name = "a"\npublic_key = "{}"', "holds no secret key; name the .key file"),
        ('name = "a"\nsecret_kez = "{}"', "unknown key 'secret_kez'; did you mean 'secret_key'?"),
        ('name = "a"\nsecret_key = "{}', "not valid TOML"),
        ("", "name"),
    ],
)
def test_wrong_secrets_are_refused_without_quoting_them(tmp_path: Path, text: str, fault: str) -> None:
    path, key = tmp_path / "a.key", zmq.curve_keypair()[1].decode()[:39]
    path.write_text(text.format(key))
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=re.escape(fault)) as refused:
        read_secret(path)
    assert key not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("key", ["~" * 40, "é" * 40, "#" * 40, "0" * 40, " " * 40])
def test_what_is_no_key_is_refused(tmp_path: Path, key: str) -> None:
    path = tmp_path / "a.pub"
    path.write_text(f'name = "a"\npublic_key = "{key}"', encoding="utf-8")
    with pytest.raises(ConfigError, match="key is not valid Z85; copy the file again"):
        read_public(path)


def test_a_secret_file_is_not_taken_for_a_public_key(tmp_path: Path) -> None:
    secret, _ = write_keys(tmp_path, "arm7")
    with pytest.raises(
        ConfigError, match=r"holds a secret key, which the other end must not have; name its \.pub file"
    ):
        read_public(secret)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    for path, fault in ((tmp_path / "none", "no such key file; write one with gapd keygen"), (fifo, "is not a file")):
        for read in (read_secret, read_public):
            with pytest.raises(ConfigError, match=fault):
                read(path)
