"""The name of a data folder follows what data depend on, wherever it stands, and nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gapd.model.robot import open_robot
from gaptrain.dataset import data_folder
from gaptrain.settings import Excitation, Training

MODEL = """<mujoco model="two">
  <compiler angle="radian" autolimits="true"/>
  <include file="defaults.xml"/>
  <option timestep="0.005" integrator="implicitfast"/>
  <asset><mesh name="tetra" file="tetra.obj"/><material name="paint" rgba="1 0 0 1"/></asset>
  <worldbody><include file="body.xml"/></worldbody>
  <actuator><position name="servo" joint="j" kp="4"/></actuator>
  <sensor>
    <jointpos name="j/position" joint="j"/><jointpos name="k/position" joint="k"/>
  </sensor>
</mujoco>"""
FILES = {
    "defaults.xml": '<mujoco><default><joint damping="0.05"/></default></mujoco>',
    "body.xml": """<mujoco><body name="arm"><joint name="j" axis="0 1 0"/>
        <inertial mass="0.5" pos="0 0 -0.1" diaginertia="1e-4 1e-4 1e-4"/>
        <body name="hand" pos="0 0 -0.2"><joint name="k" axis="0 1 0"/>
            <geom type="mesh" mesh="tetra" density="900" material="paint"/></body></body></mujoco>""",
    "tetra.obj": "v 0 0 0\nv 0.1 0 0\nv 0 0.1 0\nv 0 0 0.1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n",
    "parameters.toml": """[[parameter]]
        name = "damping"
        unit = "N·m·s/rad"
        nominal = 0.05
        min = 0.005
        max = 0.5
        targets = [{ field = "dof_damping", element = "j" }]""",
    "robot.toml": """robot = "two"
        model = "model.xml"
        parameters = "parameters.toml"
        [timing]
        knots = 20
        [[channel]]
        name = "j/position"
        unit = "rad"
        noise = 0.001
        [[channel]]
        name = "k/position"
        unit = "rad"
        noise = 0.001""",
    "model.xml": MODEL,
}
TRAINING = Training(Excitation(home=(0.0,), amplitude=(1.0,)))


@pytest.fixture
def folder_of(tmp_path: Path) -> Callable[..., Path]:
    """Name of the data folder of the two-joint robot with a change to one of its files."""

    def folder(name: str = "model.xml", old: str = "", new: str = "", training: Training = TRAINING) -> Path:
        place = tmp_path / str(len(list(tmp_path.iterdir())))  # MuJoCo keeps meshes by path
        place.mkdir()
        for file, text in FILES.items():
            assert file != name or old in text
            (place / file).write_text(text.replace(old, new) if file == name else text)
        return Path(data_folder(open_robot(place / "robot.toml"), training).name)

    return folder


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("body.xml", 'pos="0 0 -0.2"', 'pos="0 0 -0.3"'),
        ("defaults.xml", "0.05", "0.06"),
        ("tetra.obj", "v 0 0 0.1", "v 0 0 0.2"),
        ("body.xml", 'density="900"', 'density="800"'),
        ("body.xml", 'name="j" axis="0 1 0"', 'name="j" axis="0 1 0" ref="0.1"'),
        ("model.xml", 'timestep="0.005"', 'timestep="0.0025"'),
        ("model.xml", "implicitfast", "implicit"),
        ("model.xml", 'kp="4"', 'kp="4.1"'),
        ("parameters.toml", "max = 0.5", "max = 0.6"),
        ("parameters.toml", 'element = "j"', 'element = "k"'),
        ("parameters.toml", "targets", 'scale = "asinh"\ntargets'),
        ("robot.toml", "knots = 20", "knots = 30"),
    ],
)
def test_a_change_in_any_file_that_data_depend_on_means_other_data(
    folder_of: Callable[..., Path], name: str, old: str, new: str
) -> None:
    assert folder_of(name, old, new) != folder_of()


def test_names_that_change_places_mean_other_data(folder_of: Callable[..., Path]) -> None:
    """The numbers of the model are the same, but parameter and channels now are of the other joint."""
    swapped = FILES["body.xml"].replace('"j"', '"x"').replace('"k"', '"j"').replace('"x"', '"k"')
    assert folder_of("body.xml", FILES["body.xml"], swapped) != folder_of()


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("model.xml", "<worldbody>", "<!-- said --><worldbody>"),
        ("model.xml", 'rgba="1 0 0 1"', 'rgba="0 1 0 1"'),
        ("body.xml", 'name="hand"', 'name="gripper"'),
        ("parameters.toml", "nominal = 0.05", "nominal = 0.06 # a start, not data"),
    ],
)
def test_what_no_motion_depends_on_keeps_the_data(
    folder_of: Callable[..., Path], name: str, old: str, new: str
) -> None:
    assert folder_of(name, old, new) == folder_of()


def test_other_motions_mean_other_data_and_more_of_them_do_not(folder_of: Callable[..., Path]) -> None:
    wider = Training(Excitation(home=(0.0,), amplitude=(1.1,)))
    more = Training(TRAINING.excitation, windows=20480, epochs=99)
    assert folder_of(training=wider) != folder_of()
    assert folder_of(training=more) == folder_of()


def parameters(*targets: tuple[str, int], factor: str = "") -> str:
    """Three parameters of the arm, of equal bounds in each set."""
    return "".join(
        f"""[[parameter]]
        name = "p{number}"
        nominal = 0.05
        min = 0.02
        max = 0.08
        targets = [{{ field = "{field}", element = "arm", index = {index}{factor} }}]
        """
        for number, (field, index) in enumerate(targets)
    )


def test_parameters_that_write_the_same_cells_in_another_way_mean_other_data(folder_of: Callable[..., Path]) -> None:
    """Bounds, cells, owners and factors are the same in most of them."""
    here = FILES["parameters.toml"]
    sets = (
        parameters(("body_inertia", 0), ("body_inertia", 1), ("body_inertia", 2)),
        parameters(("body_inertia", 1), ("body_inertia", 0), ("body_inertia", 2)),
        parameters(("inertia.spread", 0), ("inertia.spread", 1), ("inertia.spread", 2)),
        parameters(("inertia.spread", 1), ("inertia.spread", 0), ("inertia.spread", 2)),
        parameters(("inertia.spread", 0), ("inertia.spread", 1), ("inertia.spread", 2), factor=", factor = [1.1]"),
        parameters(("body_ipos", 0), ("body_ipos", 1), ("body_ipos", 2)),
        parameters(("inertia.com", 0), ("inertia.com", 1), ("inertia.com", 2)),
        parameters(("body_mass", 0)),
        parameters(("inertia.mass", 0)),
    )
    folders = [folder_of("parameters.toml", here, text) for text in sets]
    assert len(set(folders)) == len(sets)


def test_one_number_of_the_same_body_given_or_frozen_means_other_data(folder_of: Callable[..., Path]) -> None:
    """The spread that no parameter gives stands in no cell by itself, but all three moments depend on it."""
    here, two = FILES["parameters.toml"], parameters(("inertia.spread", 0), ("inertia.spread", 1))
    frozen = parameters(("inertia.spread", 0), ("inertia.spread", 1), ("inertia.spread", 2)) + "frozen = true\n"
    folders = {folder_of("parameters.toml", here, text) for text in (two, frozen, frozen.replace("0.05", "0.06"))}
    assert len(folders) == 3
