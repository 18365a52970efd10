"""A new bundle takes the place of the old one whole or not at all."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gapd.errors import ConfigError, GapdError, InputError
from gapd.gap_model.bundle import open_bundle
from gapd.model.robot import open_robot
from gaptrain.export import bundled_model
from gaptrain.install import pin, replace_folder, require_writable

SERVO = Path(__file__).parents[2] / "models" / "servo_pendulum"
NEW = {"gap.onnx": b"new", "manifest.json": b"{}"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the servo model with its bundle."""
    shutil.copytree(SERVO, tmp_path / "servo", ignore=shutil.ignore_patterns(".data"))
    return tmp_path / "servo"


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def replace_line(folder: Path, old: str, new: str) -> None:
    path = folder / "robot.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def file_for_folder(folder: Path) -> None:
    shutil.rmtree(folder / "bundle")
    (folder / "bundle").write_text("mine")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (file_for_folder, "is a file; name a folder in robot.toml"),
        (lambda f: replace_line(f, '= "bundle"', '= "no/bundle"'), "no folder "),
        (lambda f: replace_line(f, '= "bundle"', '= "."'), "holds 'README.md', which is no part of a bundle"),
        (lambda f: (f / "bundle" / "notes").mkdir(), "holds 'notes', which is no part of a bundle"),
        (lambda f: (f / "robot.toml.part").mkdir(), "robot.toml.part: is in the way; remove it"),
        (lambda f: (f / "bundle.part").write_text(""), "bundle.part: is in the way; remove it"),
        (lambda f: replace_line(f, "bundle_sha256", '"bundle_sha256"'), "cannot be pinned; write `bundle` and"),
    ],
)
def test_what_is_in_the_way_is_told_before_anything_is_written(
    folder: Path, change: Callable[[Path], object], message: str
) -> None:
    change(folder)
    before = content(folder)
    with pytest.raises(ConfigError) as caught:
        require_writable(open_robot(folder / "robot.toml"))
    assert message in str(caught.value)
    assert content(folder) == before


def test_a_model_folder_as_it_should_be(folder: Path) -> None:
    require_writable(open_robot(folder / "robot.toml"))
    shutil.rmtree(folder / "bundle")
    require_writable(open_robot(folder / "robot.toml"))


@pytest.mark.parametrize("leftover", ["", "bundle.part", "bundle.old"])
def test_the_new_files_and_no_others_are_there(folder: Path, leftover: str) -> None:
    if leftover:  # of a run that was killed
        shutil.copytree(folder / "bundle", folder / leftover)
    replace_folder(folder / "bundle", NEW)
    assert content(folder / "bundle") == NEW
    assert not (folder / "bundle.part").exists()
    assert not (folder / "bundle.old").exists()


def test_a_link_to_a_bundle_stays_a_link(folder: Path, tmp_path: Path) -> None:
    (folder / "bundle").rename(tmp_path / "elsewhere")
    (folder / "bundle").symlink_to(tmp_path / "elsewhere")
    replace_folder(folder / "bundle", NEW)
    assert (folder / "bundle").is_symlink()
    assert content(tmp_path / "elsewhere") == NEW


KILLED = """
import os, signal, sys
from pathlib import Path
import gaptrain.install as install
calls = 0
def dies(real):
    def call(*arguments):
        global calls
        calls += 1
        if calls == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)
    return call
os.fsync, Path.rename, Path.mkdir = dies(os.fsync), dies(Path.rename), dies(Path.mkdir)
install.shutil.rmtree = dies(install.shutil.rmtree)
install.replace_folder(Path(sys.argv[1]) / "bundle", {"gap.onnx": b"new", "manifest.json": b"{}"})
"""


def test_killed_anywhere_it_leaves_the_old_bundle_none_or_the_new_one(folder: Path) -> None:
    old = content(folder / "bundle")
    seen = set()
    for step in range(1, 20):
        kept = folder.with_name(f"copy{step}")
        shutil.copytree(folder, kept)
        done = subprocess.run([sys.executable, "-c", KILLED, kept, str(step)], check=False)
        there = content(kept / "bundle") if (kept / "bundle").exists() else {}
        assert there in (old, {}, NEW)
        seen.add(len(there))
        replace_folder(kept / "bundle", NEW)  # the next run mends it
        assert content(kept / "bundle") == NEW
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
    assert seen == {len(old), 0, len(NEW)}


def test_a_full_disk_keeps_the_old_bundle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, os.strerror(28))

    before = content(folder / "bundle")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"cannot be written \(No space left on device\)"):
        replace_folder(folder / "bundle", NEW)
    assert content(folder / "bundle") == before


def test_pinning_keeps_comments_and_order(tmp_path: Path) -> None:
    path = tmp_path / "robot.toml"
    path.write_text('# first\nrobot = "r"  # type\n\n[timing]\nknots = 30 # many\n')
    pin(path, "a" * 64)
    pinned = f'# first\nrobot = "r"  # type\nbundle = "bundle"\nbundle_sha256 = "{"a" * 64}"\n'
    assert path.read_text() == pinned + "\n[timing]\nknots = 30 # many\n"
    path.write_text(path.read_text().replace('bundle = "bundle"', "bundle = 'mine'"))
    pin(path, "b" * 64)
    assert "bundle = 'mine'" in path.read_text()
    assert path.read_text().count("bundle_sha256") == 1
    assert "b" * 64 in path.read_text()
    assert path.read_text().endswith("[timing]\nknots = 30 # many\n")


def split_model(folder: Path) -> None:
    """The same model in two files."""
    text = (folder / "model.xml").read_text()
    start, end = text.index("<sensor>"), text.index("</sensor>") + len("</sensor>")
    (folder / "sensors.xml").write_text(f"<mujoco>{text[start:end]}</mujoco>")
    (folder / "model.xml").write_text(f'{text[:start]}<include file="sensors.xml"/>{text[end:]}')


def test_a_model_that_includes_files_is_bundled_as_one(folder: Path) -> None:
    assert bundled_model(open_robot(folder / "robot.toml")) == (folder / "model.xml").read_bytes()
    split_model(folder)
    robot = open_robot(folder / "robot.toml")
    open_bundle(robot)  # the robot may keep it in parts
    assert b"include" not in bundled_model(robot)


def test_a_model_that_needs_a_mesh_cannot_be_bundled(folder: Path) -> None:
    corners = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
    (folder / "part.obj").write_text(corners)
    text = (
        (folder / "model.xml").read_text().replace("<worldbody>", '<asset><mesh file="part.obj"/></asset><worldbody>')
    )
    (folder / "model.xml").write_text(text.replace("<worldbody>", '<worldbody><geom type="mesh" mesh="part"/>'))
    with pytest.raises(GapdError, match=r"does not stand alone .* put it into one file without meshes"):
        bundled_model(open_robot(folder / "robot.toml"))
