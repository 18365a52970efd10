"""The `gaptrain` command."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import click

from gapd.cli import version_option
from gapd.errors import GapdError

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


# What a shell reports of a program that Ctrl-C has ended.
INTERRUPTED = 130
_INTERRUPTED_LINE = "gaptrain: interrupted; the same command goes on where it was"


class _Commands(click.Group):
    """Turns an error of input or files, and Ctrl-C, into one line on stderr and its exit code."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command. Ctrl-C ends it at once while it imports: C code would make another exception of it."""
        taken = threading.current_thread() is threading.main_thread()
        if not taken or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return super().main(*args, **extra)
        signal.signal(signal.SIGINT, _interrupt)
        try:
            return super().main(*args, **extra)
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Read the arguments; --version imports."""
        with _one_line():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command that the arguments name."""
        with _one_line():
            return super().invoke(ctx)


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except GapdError as error:
        click.echo(f"gaptrain: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:  # a full disk, a folder that cannot be written
        click.echo(f"gaptrain: {error.filename or 'file'}: {error.strerror}; mend it and run again", err=True)
        sys.exit(GapdError.exit_code)
    except KeyboardInterrupt:
        click.echo(_INTERRUPTED_LINE, err=True)
        sys.exit(INTERRUPTED)


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, so that work is cleaned up; where a module is being imported there is none."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, f"{_INTERRUPTED_LINE}\n".encode())
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@version_option("gaptrain")
def main() -> None:
    """Train gap models and calibrate simulators."""


@main.command("enumerate")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default="parameters.toml", show_default=True)
@click.option("--tie", "ties", multiple=True, metavar="PATTERN", help="Parameters that share a value: joint/*/damping.")
@click.option("--force", is_flag=True, help="Replace the file that --out names.")
def enumerate_command(model: Path, out: Path, ties: tuple[str, ...], force: bool) -> None:
    """Write a parameters.toml with every tunable number of MODEL, an MJCF, with bounds that come from the model.

    --tie may be given several times. All parameters whose name matches become one: a value, or a factor on theirs.
    """
    from gaptrain.enumeration.enumerate import enumerate_parameters

    click.echo(enumerate_parameters(model, out, ties, force=force))


_THREADS = click.option("--threads", type=click.IntRange(1, 256), default=2, show_default=True)
_DATA_THREADS = click.option("--threads", type=click.IntRange(1, 256), help="Cores to use: 2; with --ray 1 a shard.")
_RAY = click.option(
    "--ray", metavar="ADDRESS", help="Make the data on a Ray cluster: host:port, ray://host:port, auto."
)


@main.command("data")
@click.argument("modeldir", type=_FOLDER)
@click.option("--windows", type=int, help="Training windows; train.toml says how many by default.")
@click.option("--seed", type=int, help="Seed of the data.")
@_DATA_THREADS
@_RAY
def data_command(modeldir: Path, windows: int | None, seed: int | None, threads: int | None, ray: str | None) -> None:
    """Make the training data of MODELDIR and nothing else: they lie in MODELDIR/.data, for `gaptrain fit` anywhere.

    The same data come out however they are made. An interrupted run goes on where it was when called again.
    """
    from gaptrain.data import data

    data(modeldir, windows, seed, threads, ray)


@main.command("fit")
@click.argument("modeldir", type=_FOLDER)
@click.option("--windows", type=int, help="Training windows; train.toml says how many by default.")
@click.option("--epochs", type=int, help="Passes over the data.")
@click.option("--seed", type=int, help="Seed of data and training.")
@_DATA_THREADS
@_RAY
def fit_command(
    modeldir: Path, windows: int | None, epochs: int | None, seed: int | None, threads: int | None, ray: str | None
) -> None:
    """Make training data, train the gap model, write MODELDIR/bundle and pin it in robot.toml.

    An interrupted run continues where it was when called again with the same options.
    """
    from gaptrain.fit import fit  # torch takes seconds to import

    fit(modeldir, windows, epochs, seed, threads, ray)


@main.command("export")
@click.argument("modeldir", type=_FOLDER)
def export_command(modeldir: Path) -> None:
    """Write MODELDIR/bundle from the checkpoint trained last and pin it in robot.toml."""
    from gaptrain.fit import export_last

    export_last(modeldir)


@main.command("graph")
@click.argument("modeldir", type=_FOLDER)
@click.option("--windows", type=click.IntRange(8, 1_000_000), help="Windows; train.toml says how many by default.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="train.toml says which by default.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@_THREADS
def graph_command(modeldir: Path, windows: int | None, seed: int | None, as_json: bool, threads: int) -> None:
    """Measure which parameters of MODELDIR move which channels, in motions drawn as for training. No network.

    What does nothing in these motions is listed apart: they cannot tell whether it would in others.
    """
    import msgspec
    from rich.console import Console

    from gapd.model.robot import open_robot
    from gaptrain import graph_report
    from gaptrain.graph import measure_graph
    from gaptrain.settings import load_training

    robot, training = open_robot(modeldir / "robot.toml"), load_training(modeldir / "train.toml")
    given = {"graph_windows": windows, "seed": seed}
    training = msgspec.structs.replace(training, **{k: v for k, v in given.items() if v is not None})
    graph = measure_graph(robot, training, threads, None if as_json else Console(stderr=True))
    found = json.dumps(graph_report.plain(graph, robot), indent=2) if as_json else graph_report.text(graph, robot)
    click.echo(found)


@main.command("report")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default="report.html", show_default=True)
def report_command(bundle: Path, out: Path) -> None:
    """Write one HTML page about BUNDLE, a folder of a trained gap model: its graph, and what it can correct.

    The page needs no network and nothing beside it. A file that --out names is replaced.
    """
    from gaptrain.report.page import write_report

    click.echo(write_report(bundle, out))


_STATE = click.option(
    "--state", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder of the host's state."
)


@main.command("host")
@_STATE
@click.option("--bind", default="tcp://127.0.0.1:5590", show_default=True, help="Address for the robots.")
@click.option("--recalibrate", type=click.Choice(["off", "auto"]), default="off", show_default=True)
def host_command(state: Path, bind: str, recalibrate: str) -> None:
    """Take corrections and escalations of enrolled robots, until SIGTERM or Ctrl-C.

    Draws the host's keys at the first start: STATE/host.pub is for the robots. With --recalibrate auto each escalation
    is answered by a refit on its evidence.
    """
    from gaptrain.host.program import serve

    serve(state, bind, auto=recalibrate == "auto")


@main.command("enrol")
@_STATE
@click.argument("name", required=False)
@click.option("--config", type=click.Path(path_type=Path), help="robot.toml of the robot.")
@click.option("--key", type=click.Path(path_type=Path), help="The robot's public key, NAME.pub.")
@click.option("--revoke", is_flag=True, help="Refuse the robot's key from now on.")
@click.option("--list", "show", is_flag=True, help="List the robots.")
def enrol_command(
    state: Path, name: str | None, config: Path | None, key: Path | None, revoke: bool, show: bool
) -> None:
    """Enrol robot NAME with its key and parameters; again to change them. A running host notices within seconds."""
    from gaptrain.host import enrolment

    if show:
        click.echo(enrolment.listing(state))
    elif name is None:
        raise click.UsageError("name the robot, or give --list")
    elif revoke:
        enrolment.revoke(state, name)
        click.echo(f"{name}: revoked")
    elif config is None or key is None:
        raise click.UsageError("give --config robot.toml and --key NAME.pub")
    else:
        robot = enrolment.enrol(state, name, config, key)
        click.echo(f"{name}: enrolled, type {robot.robot_type}, key {robot.public_key}")


@main.command("versions")
@_STATE
@click.argument("robot")
def versions_command(state: Path, robot: str) -> None:
    """List the values that ROBOT has had, oldest first."""
    from gaptrain.host.enrolment import versions_text

    click.echo(versions_text(state, robot))


@main.command("jobs")
@_STATE
@click.argument("robot", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def jobs_command(state: Path, robot: str | None, as_json: bool) -> None:
    """List what robots have escalated and what became of it, oldest first; of ROBOT, or of all."""
    import msgspec

    from gaptrain.host import job_list

    found = job_list.entries(state, robot)
    click.echo(json.dumps(msgspec.to_builtins(found), indent=2) if as_json else job_list.text(found))


@main.command("recalibrate")
@_STATE
@click.argument("robot")
@click.option("--engine", type=click.Choice(["gapd", "sysid"]), default="gapd", show_default=True)
@click.option("--job", type=int, help="Number of a job; the newest with complete evidence by default.")
@_THREADS
def recalibrate_command(
    state: Path, robot: str, engine: Literal["gapd", "sysid"], job: int | None, threads: int
) -> None:
    """Refit ROBOT on the evidence of its escalation; what held-out windows accept is offered to it."""
    from gaptrain.host.recalibrate import recalibrate

    click.echo(recalibrate(state, robot, engine, job, threads).sentence)


@main.command("standin")
@click.option("--config", type=click.Path(path_type=Path), required=True, help="robot.toml, with train.toml beside it.")
@click.option("--bind", default="tcp://127.0.0.1:5571", show_default=True, help="Address of the frames.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=1, show_default=True, help="Of all that is random.")
@click.option("--speed", type=float, default=1.0, show_default=True, help="Seconds of its clock in one of ours.")
@click.option("--rate-hz", type=float, help="Frames in a second of its clock; the model's step rate by default.")
@click.option("--scene", type=click.Path(path_type=Path), help="TOML script of changes and soft stops.")
@click.option(
    "--demo", is_flag=True, help="At --change-s friction and payload change, at --stop-s a soft stop appears."
)
@click.option("--change-s", type=float, default=25.0, show_default=True)
@click.option("--stop-s", type=float, default=50.0, show_default=True)
@click.option("--seconds", type=float, help="End after so many seconds of its clock; endless by default.")
@click.option("--truth", type=click.Path(dir_okay=False, path_type=Path), help="JSON file for what is hidden.")
def standin_command(**options: Any) -> None:
    """Be a robot: simulate one with hidden parameters and noise, and publish its frames until SIGTERM or Ctrl-C."""
    from gaptrain.standin import Options, serve

    serve(Options(**options))
