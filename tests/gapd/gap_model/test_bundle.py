"""A bundle that is not whole, not ours or not what was pinned is refused, each time with name, value and remedy."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gapd.errors import InputError
from gapd.gap_model.bundle import bundle_folder, open_bundle
from gapd.model.robot import Robot, open_robot

MODELS = Path(__file__).parents[3] / "models"
Manifest = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the servo model with its bundle."""
    target = tmp_path / "servo_pendulum"
    shutil.copytree(MODELS / "servo_pendulum", target, ignore=shutil.ignore_patterns(".data"))
    return target


def opened(folder: Path) -> Robot:
    return open_robot(folder / "robot.toml")


def rewrite(folder: Path, change: Callable[[Manifest], object]) -> None:
    """Change the manifest and pin the result: everything but the change stays consistent."""
    path = folder / "bundle" / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    repin(folder, hashlib.sha256(path.read_bytes()).hexdigest())


def repin(folder: Path, sha256: str) -> None:
    toml = folder / "robot.toml"
    lines = (line for line in toml.read_text().splitlines() if not line.startswith("bundle_sha256"))
    toml.write_text(f'bundle_sha256 = "{sha256}"\n' + "\n".join(lines))


def refused(folder: Path) -> str:
    """Message of the refusal: one line."""
    with pytest.raises(InputError) as caught:
        open_bundle(opened(folder))
    message = str(caught.value)
    assert "\n" not in message
    assert ";" in message, "a refusal names the remedy after a semicolon"
    return message


@pytest.mark.parametrize("name", ["arm7", "servo_pendulum", "ballscrew"])
def test_the_bundles_of_the_models_open(name: str) -> None:
    robot = opened(MODELS / name)
    bundle = open_bundle(robot)
    assert bundle.sha256 == robot.config.bundle_sha256
    assert bundle.edge_probability.shape == (len(robot.parameters), len(robot.layout.channels))
    onnx = bundle.folder / "gap.onnx"
    assert onnx.stat().st_size <= 6_000_000


def test_inputs_far_from_the_training_data_are_named(folder: Path) -> None:
    bundle = open_bundle(opened(folder))
    middle = np.array([[(r.min + r.max) / 2 for r in bundle.manifest.ranges]])[:, None]
    features, context = middle[..., :6], middle[..., 6:]
    assert bundle.outside_range(features, context) == ()
    features[..., 1], context[..., 0] = 1e6, 24.0
    assert bundle.outside_range(features, context) == ("j velocity", "supply_voltage")


def test_no_bundle_configured_or_there(folder: Path) -> None:
    shutil.rmtree(folder / "bundle")
    assert "no such folder" in refused(folder)
    toml = folder / "robot.toml"
    toml.write_text("\n".join(x for x in toml.read_text().splitlines() if not x.startswith("bundle")))
    with pytest.raises(InputError, match="bundle is not set"):
        bundle_folder(opened(folder))


def test_another_manifest_than_the_pinned_one(folder: Path) -> None:
    repin(folder, "0" * 64)
    assert "pins 0000" in refused(folder)


@pytest.mark.parametrize("name", ["gap.onnx", "model.xml", "golden.npz"])
def test_one_flipped_bit_in_any_file(folder: Path, name: str) -> None:
    path = folder / "bundle" / name
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    assert f"{name} has sha256" in refused(folder)


@pytest.mark.parametrize("name", ["manifest.json", "gap.onnx", "model.xml", "golden.npz"])
def test_a_missing_file(folder: Path, name: str) -> None:
    (folder / "bundle" / name).unlink()
    assert f"{name} cannot be read" in refused(folder)


def _set(*path: str | int, value: object) -> Callable[[Manifest], None]:
    def change(manifest: Manifest) -> None:
        place: Any = manifest
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("schema", value=99), "schema = 99"),
        (_set("surprise", value=1), "unknown field"),
        (_set("robot", value="arm7"), "robot = 'arm7', robot.toml says 'servo_pendulum'"),
        (_set("engine", value="physx"), "engine = physx"),
        (_set("engine_version", value="3.2.0"), "engine = mujoco 3.2.0"),
        (_set("parameters", 1, "max", value=9.0), "actuator/servo/back_emf max = 9.0"),
        (_set("parameters", 1, "name", value="else"), "parameter name = 'else'"),
        (_set("parameters", 5, "scale", value="asinh"), "joint/j/offset scale = 'asinh'"),
        (_set("channels", 0, "noise", value=0.1), "j/position noise = 0.1"),
        (_set("context", 0, value="voltage"), "context 'voltage'"),
        (_set("timing", "knots", value=7), "timing knots = 7"),
        (_set("timing", "command_offset_s", value=0.02), "timing command_offset_s = 0.02, the robot has 0.0"),
        (_set("channels", 0, "sensor", value="enc"), "j/position sensor = 'enc', the robot has 'j/position'"),
        (
            _set("parameters", 2, "targets", 0, "field", value="dof_damping"),
            'joint/j/armature targets = [{"field":"dof_damping","element":"j","index":0,"factor":[]}], the robot has',
        ),
        (_set("parameters", 1, "targets", 0, "factor", 0, value=-2.0), "actuator/servo/back_emf targets = "),
        (lambda m: m["frozen"].append(m["parameters"][0]), "frozen parameter count = 1, the robot has 0"),
        (_set("ranges", 0, "name", value="k position"), "input 'k position', the robot has 'j position'"),
        (lambda m: m["ranges"].pop(), "input count = 8, the robot has 9"),
        (_set("ranges", 3, "min", value=1e9), "range of backemf command is 1000000000.0 .. "),
        (
            lambda m: m["graph"]["probability"].pop(),
            "graph.probability has rows of [1, 1, 1, 1, 1], the robot has 6 parameters",
        ),
        (_set("graph", "probability", 2, value=[0.5, 0.5]), "graph.probability has rows of [1, 1, 2, 1, 1, 1]"),
        (_set("graph", "probability", 2, 0, value=-0.5), "graph.probability is not within 0 .. 1"),
        (_set("graph", "probability", 2, 0, value=1.5), "graph.probability is not within 0 .. 1"),
        (_set("timing", "step_s", value=0.001), "timing step_s = 0.001"),
        (lambda m: m["parameters"].pop(), "parameter count = 5"),
        (lambda m: m["files"].pop("model.xml"), "files = gap.onnx, golden.npz"),
        (_set("files", "../../etc/passwd", value="0"), "files = ../../etc/passwd"),
    ],
)
def test_a_manifest_that_does_not_fit(folder: Path, change: Callable[[Manifest], object], message: str) -> None:
    rewrite(folder, change)
    assert message in refused(folder)


def test_a_new_nominal_does_not_invalidate_a_bundle(folder: Path) -> None:
    rewrite(folder, _set("parameters", 0, "nominal", value=0.2))
    open_bundle(opened(folder))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('mass="0.49"', 'mass="0.5"', "body_mass of 'pendulum' is 0.5, the bundle was made for 0.49"),
        (
            'pos="0 0 -0.10" dia',
            'pos="0 0 -0.11" dia',
            "body_ipos[2] of 'pendulum' is -0.11, the bundle was made for -0.1",
        ),
        ('axis="0 1 0"', 'axis="0 -1 0"', "jnt_axis[1] of 'j' is -1, the bundle was made for 1"),
        ('axis="0 1 0"', 'axis="0 1 0" range="-1 1"', "jnt_limited of 'j' is 1, the bundle was made for 0"),
        ('solreffriction="0.005 1"', "", "dof_solref[0] of 'j' is 0.02, the bundle was made for 0.005"),
        ('"implicitfast"', '"Euler"', "opt.integrator is 0, the bundle was made for "),
        ('contact="disable"', 'gravity="disable"', "opt.disableflags is "),
        ("<option ", '<option gravity="0 0 -1.62" ', "opt.gravity[2] is -1.62, the bundle was made for -9.81"),
        (
            "</worldbody>",
            '<body><geom size="1"/></body></worldbody>',
            "the model has nbody = 3, the bundle was made for 2",
        ),
        ("</sensor>", '<clock name="c"/></sensor>', "the model has nsensor = 3, the bundle was made for 2"),
    ],
)
def test_a_bundle_made_for_another_model(folder: Path, old: str, new: str, message: str) -> None:
    change_model(folder, old, new)
    line = refused(folder)
    assert f": {message}" in line
    assert line.endswith("; use the configuration it was made for, or fit it again")


def change_model(folder: Path, old: str, new: str) -> None:
    text = (folder / "model.xml").read_text()
    assert old in text
    (folder / "model.xml").write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('damping="0.001"', 'damping="0.01"'),  # a parameter writes it
        ('frictionloss="0.005"', 'frictionloss="0.05"'),
        ('gainprm="0.511023"', 'gainprm="0.6"'),
        ('rgba="0.2 0.2 0.2 1"', 'rgba="0.9 0.2 0.2 1"'),
        ('mass="0.49"', 'mass="0.4900001"'),  # written out with fewer digits
        ('<body name="pendulum">', '<body name="bob">'),
        ('ctrl="0 0"/>', 'ctrl="0 0"/><key name="up" qpos="3"/>'),
        ("<worldbody>", "<worldbody> <!-- the same -->"),
    ],
)
def test_what_does_not_matter_to_a_bundle(folder: Path, old: str, new: str) -> None:
    change_model(folder, old, new)
    open_bundle(opened(folder))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"\xff\xfe<mujoco/>", "model.xml cannot be used ('utf-8' codec"),
        (b"<mujoco>", "model.xml cannot be used (model model.xml: does not compile"),
        (
            b'<mujoco><include file="/etc/passwd"/></mujoco>',
            "model.xml cannot be used (model model.xml: does not compile",
        ),
        (b"<mujoco/>", "model.xml cannot be used (model model.xml: has no joints"),
    ],
)
def test_a_bundle_whose_model_is_none(folder: Path, raw: bytes, message: str) -> None:
    replace_file(folder, "model.xml", raw)
    assert message in refused(folder)


def replace_file(folder: Path, name: str, raw: bytes) -> None:
    (folder / "bundle" / name).write_bytes(raw)
    rewrite(folder, _set("files", name, value=hashlib.sha256(raw).hexdigest()))


def test_a_network_of_another_robot(folder: Path) -> None:
    replace_file(folder, "gap.onnx", (MODELS / "ballscrew" / "bundle" / "gap.onnx").read_bytes())
    assert "gap.onnx window is tensor(float)" in refused(folder)


def test_bytes_that_are_no_network(folder: Path) -> None:
    replace_file(folder, "gap.onnx", b"\x08\x07not a network")
    assert "no usable network" in refused(folder)


def test_a_network_that_reads_other_files(folder: Path) -> None:
    raw = (folder / "bundle" / "gap.onnx").read_bytes()
    replace_file(folder, "gap.onnx", raw + b"\x0a\x08location\x12\x0b/etc/passwd")
    assert "refers to a file outside itself" in refused(folder)


def golden(folder: Path) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    with np.load(folder / "bundle" / "golden.npz", allow_pickle=False) as file:
        return dict(file)


@pytest.mark.parametrize("output", ["jacobian", "x0_jacobian", "log_spread", "edge_probability", "gap"])
def test_golden_outputs_that_this_cpu_does_not_give(folder: Path, output: str, tmp_path: Path) -> None:
    values = golden(folder)
    values[output] = values[output] + 0.01 * np.abs(values[output]).max()
    np.savez(tmp_path / "g.npz", **values)
    replace_file(folder, "golden.npz", (tmp_path / "g.npz").read_bytes())
    assert f"self-test: {output} is off by" in refused(folder)


def test_golden_values_with_a_pickle_inside_are_not_unpickled(folder: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (str(tmp_path / "sprung"),))

    values: dict[str, Any] = golden(folder)
    values["window"] = np.array([Trap()], dtype=object)
    np.savez(tmp_path / "g.npz", **values)
    replace_file(folder, "golden.npz", (tmp_path / "g.npz").read_bytes())
    assert "golden.npz does not run" in refused(folder)
    assert not (tmp_path / "sprung").exists()
