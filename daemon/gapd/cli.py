"""The command `gapd`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
import mujoco
import numpy as np
import onnxruntime as ort

from gapd import __version__
from gapd.bundle import open_bundle
from gapd.cycle import prepare, run
from gapd.errors import ConfigError, GapdError
from gapd.learned import Learned
from gapd.picture import draw, require_drawable
from gapd.report import plain, text
from gapd.robot import Robot, open_robot
from gapd.sources.log_files import frames

CONFIG = click.option(
    "--config", "config", type=click.Path(path_type=Path), required=True, help="robot.toml of the robot."
)


@click.group()
def cli() -> None:
    """Keep a robot's simulator true to the robot."""


@cli.command()
@CONFIG
@click.argument("logs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("--picture", type=click.Path(path_type=Path), help="Write a picture (.png, .pdf, .svg).")
@click.option(
    "--set",
    "values",
    multiple=True,
    metavar="NAME=VALUE",
    help="Present value of a parameter, if not nominal.",
)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads for rollouts.")
def replay(
    config: Path,
    logs: tuple[Path, ...],
    as_json: bool,
    picture: Path | None,
    values: tuple[str, ...],
    threads: int,
) -> None:
    """Run the whole cycle on recordings (CSV): gates, fit, structure, check, decision."""
    robot = open_robot(config)
    before = robot.parameters.vector(dict(_assignment(v, robot) for v in values))
    if picture is not None:
        require_drawable(picture)  # now, not after a long fit
    prepared = prepare(robot, frames(logs, robot))
    learned = _learned(robot)
    outside_range = learned.bundle.outside_range if learned else None
    report = run(robot, prepared, before, learned, outside_range, threads)
    click.echo(json.dumps(plain(report, robot), indent=2) if as_json else text(report, robot))
    if picture is not None:
        draw(report, robot, picture)


@cli.command()
@CONFIG
def check(config: Path) -> None:
    """Check configuration, model, parameters and bundle, and say what is there."""
    robot = open_robot(config)
    space, layout = robot.parameters, robot.layout
    click.echo(f"robot       {robot.config.robot}")
    click.echo(
        f"model       {robot.config.path(robot.config.model)}: {robot.model.nv} joints, {robot.model.nu} actuators"
    )
    click.echo(f"parameters  {len(space)} free, {len(space.frozen)} frozen")
    click.echo(f"channels    {len(layout.channels)}; window {layout.knots} knots of {layout.knot_s} s")
    learned = _learned(robot)
    if learned is None:
        click.echo("bundle      none: fits use finite differences")
    else:
        click.echo(f"bundle      {learned.bundle.folder}: verified, sha256 {learned.bundle.sha256[:12]}")
    click.echo("ok")


@cli.command()
def version() -> None:
    """Print the versions that decide about results."""
    click.echo(
        f"gapd {__version__}, mujoco {mujoco.__version__}, onnxruntime {ort.__version__}, numpy {np.__version__}"
    )


def _learned(robot: Robot) -> Learned | None:
    return Learned(open_bundle(robot), robot) if robot.config.bundle else None


def _assignment(text: str, robot: Robot) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        value = float(number)
    except ValueError:
        raise ConfigError(f"--set {text}: expected NAME=NUMBER, for example joint/j/damping=0.01") from None
    for parameter in robot.parameters.free:
        if parameter.name == name and not parameter.min <= value <= parameter.max:
            bounds = f"{parameter.min:g} .. {parameter.max:g} {parameter.unit}"
            raise ConfigError(f"--set {text}: outside {bounds}; correct it, or widen the bounds in parameters.toml")
    return name, value


def main() -> None:
    """Entry point: one clear line and the right exit code for everything that gapd refuses."""
    try:
        cli(standalone_mode=False)
    except GapdError as error:
        click.echo(f"gapd: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
