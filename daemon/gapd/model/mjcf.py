"""The MJCF: compiled without a word on stderr, and refused where gapd could not replay it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import mujoco
import numpy as np

from gapd.errors import ConfigError, is_printable
from gapd.limits import number_fault
from gapd.model.model_fields import physics


def load_model(path: Path) -> mujoco.MjModel:
    """Compile an MJCF file; ConfigError with MuJoCo's reason if it does not, or if it cannot be replayed."""
    if not path.is_file():
        raise ConfigError(f"model {path}: no such file; correct `model` in robot.toml")
    return _usable(str(path), lambda: mujoco.MjModel.from_xml_path(str(path)))


def compile_file(path: Path) -> mujoco.MjModel:
    """Compile an MJCF or URDF file, whether gapd can replay it or not; ConfigError with MuJoCo's reason if it fails.

    What holds numbers that are none is refused, too.
    """
    if not path.is_file():
        raise ConfigError(f"model {path}: no such file; correct the path")
    model, _ = _compiled(str(path), lambda: mujoco.MjModel.from_xml_path(str(path)))
    _require(str(path), _number_faults(model))
    return model


def compile_text(name: str, xml: str) -> mujoco.MjModel:
    """Compile an MJCF that stands alone, as `load_model` does."""
    return _usable(name, lambda: mujoco.MjModel.from_xml_string(xml))


def _usable(name: str, build: Callable[[], mujoco.MjModel]) -> mujoco.MjModel:
    model, said = _compiled(name, build)
    _require(name, [*said, *_faults(model)])
    return model


def _require(name: str, faults: Iterable[str]) -> None:
    for fault in faults:
        raise ConfigError(f"model {name}: {fault}; mend the MJCF")


def _compiled(name: str, build: Callable[[], mujoco.MjModel]) -> tuple[mujoco.MjModel, list[str]]:
    """The model and what MuJoCo warned of."""
    said: list[str] = []
    try:
        with collecting(said):
            model = build()
    except (ValueError, mujoco.FatalError, mujoco.UnexpectedError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"model {name}: does not compile: {'; '.join([reason, *said])}; mend the MJCF") from None
    try:
        model.names.decode()
    except UnicodeDecodeError as error:
        before, after = model.names[: error.start].rpartition(b"\0")[2], model.names[error.start :].partition(b"\0")[0]
        wrong = (before + after).decode(errors="backslashreplace")
        raise ConfigError(f"model {name}: name '{wrong}' is not in UTF-8; save the MJCF as UTF-8") from None
    return model, said


@contextmanager
def collecting(said: list[str]) -> Iterator[None]:
    """Append what MuJoCo warns of inside; it would print that and write it to a file in the working directory."""
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: said.append(" ".join(message.split())))
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _faults(model: mujoco.MjModel) -> Iterator[str]:
    """Why gapd cannot replay the model."""
    yield from _number_faults(model)
    if model.njnt == 0:
        yield "has no joints"
    if model.nq != model.nv:
        yield f"has {model.nq - model.nv} free or ball joints, but only hinge and slide joints are supported"
    if not model.nu == model.nactuator == model.nout:
        yield f"has {model.nactuator} actuators with {model.nu} commands, but one command each is supported"
    yield from _flag_faults(model)
    for name in model.names.decode().split("\0"):
        if not is_printable(name):
            yield f"name {name!r} has control characters"


def _number_faults(model: mujoco.MjModel) -> Iterator[str]:
    """Which numbers of the model are none, or no time step."""
    step = float(model.opt.timestep)
    fault = number_fault(step, 1e-6, 1, "a time in seconds")
    if fault:
        yield f"option timestep = {step} {fault}"
    for field, value in physics(model):
        if value.dtype.kind == "f" and not field.endswith("range") and not np.isfinite(value).all():
            yield f"{field} holds {value[~np.isfinite(value)].flat[0]}"


def _flag_faults(model: mujoco.MjModel) -> Iterator[str]:
    if model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP:
        yield '<flag sleep="enable"> lets joints stop that move on the robot'
    if model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_SENSOR:
        yield '<flag sensor="disable"> makes every channel 0'
    if model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_ACTUATION and model.nu:
        yield f'<flag actuation="disable"> switches its {model.nu} actuators off'
