"""The lock files are complete, consistent with each other, and name no index and no path."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ["robot", "host", "dev", "cluster"]


def locked(name: str) -> dict[str, str]:
    """Versions by package."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    return dict(re.findall(r"^([a-z0-9][a-z0-9.-]*)==(\S+)", text, flags=re.MULTILINE))


def declared(extra: str) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return {re.split(r"[\[<>=~! ]", line)[0] for line in lines}


@pytest.mark.parametrize("name", LOCKS)
def test_lock_names_no_index_and_no_path(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert re.findall(r"^.*(?:://|file:|--index|--extra-index|--find-links| /).*$", text, flags=re.MULTILINE) == []


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_has_a_hash(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert re.findall(r"^[a-z].*(?<! \\)$", text, flags=re.MULTILINE) == []


@pytest.mark.parametrize(
    ("name", "extras"),
    [("robot", [""]), ("host", ["", "host"]), ("dev", ["", "host", "dev"]), ("cluster", ["", "cluster"])],
)
def test_lock_holds_what_the_project_declares(name: str, extras: list[str]) -> None:
    assert set().union(*map(declared, extras)) <= set(locked(name))


def test_larger_locks_contain_the_smaller_ones() -> None:
    assert locked("robot").items() <= locked("host").items() <= locked("dev").items()


def test_a_cluster_computes_with_the_same_versions() -> None:
    assert locked("robot").items() <= locked("cluster").items()
    here, there = locked("dev"), locked("cluster")
    assert {n: v for n, v in there.items() if n in here} == {n: v for n, v in here.items() if n in there}


def test_robot_gets_nothing_of_training_or_plotting() -> None:
    assert not {"torch", "scipy", "onnx", "matplotlib", "plotly", "setuptools"} & set(locked("robot"))


@pytest.mark.parametrize("name", LOCKS)
def test_torch_is_left_to_its_own_file(name: str) -> None:
    assert "torch" not in locked(name)
