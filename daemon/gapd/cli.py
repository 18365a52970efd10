"""The command `gapd`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from gapd.errors import ConfigError, GapdError, printable

# All that takes time to import is imported in the commands, when main has already seen to Ctrl-C.
if TYPE_CHECKING:
    from gapd.gap_model.learned import Learned
    from gapd.live.replay_live import ReplayLive
    from gapd.model.robot import Robot

T = TypeVar("T", bound=Callable[..., object])
CONFIG = click.option(
    "--config", "config", type=click.Path(path_type=Path), required=True, help="robot.toml of the robot."
)


def versions(program: str) -> str:
    """One line: a program's version, and those of the packages that decide about results."""
    import mujoco
    import numpy as np
    import onnxruntime as ort

    from gapd import __version__

    packages = f"mujoco {mujoco.__version__}, onnxruntime {ort.__version__}, numpy {np.__version__}"
    return f"{program} {__version__}, {packages}"


def version_option(program: str) -> Callable[[T], T]:
    """The option --version of a program's command line."""

    def show(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
        if asked and not ctx.resilient_parsing:
            click.echo(versions(program))
            ctx.exit()

    told = "Print the versions that decide about results."
    return click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=show, help=told)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@version_option("gapd")
def cli() -> None:
    """Keep a robot's simulator true to the robot."""


@cli.command()
@CONFIG
@click.argument("logs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option(
    "--picture", type=click.Path(path_type=Path), help="Write a picture (.png, .pdf, .svg). For CSV logs only."
)
@click.option(
    "--write-model",
    "model",
    type=click.Path(path_type=Path),
    help="Write the MJCF (.xml): with the corrections of CSV logs if there are any, or with the values at the end of "
    "recordings.",
)
@click.option(
    "--set",
    "values",
    multiple=True,
    metavar="NAME=VALUE",
    help="Present value of a parameter, if not nominal. For CSV logs only.",
)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads for rollouts.")
def replay(
    config: Path,
    logs: tuple[Path, ...],
    as_json: bool,
    picture: Path | None,
    model: Path | None,
    values: tuple[str, ...],
    threads: int,
) -> None:
    """Run the whole cycle on CSV logs: gates, fit, structure, check, decision.

    Recordings of `gapd record` and `gapd run --record` (.mcap) go through the live loop instead, in the order given.
    """
    if any(_is_recording(log) for log in logs):
        _require_recordings(logs, picture, values)
        _replay_live(config, logs, model, threads, as_json=as_json)
        return
    import numpy as np

    from gapd.fit.corrected_model import require_writable, write_model
    from gapd.fit.cycle import Standing, prepare, run
    from gapd.fit.picture import draw, require_drawable
    from gapd.fit.report import plain, text
    from gapd.gap_model.bundle import open_active
    from gapd.sources.log_files import frames

    robot = open_active(config)
    before = robot.parameters.vector(_assignments(values, robot))
    if picture is not None:
        require_drawable(picture)  # now, not after a long fit
    if model is not None:
        require_writable(robot, model)
    for line in _uncommanded(robot):
        click.echo(f"gapd: WARN actuator {line}", err=True)
    prepared = prepare(robot, frames(logs, robot))
    report = run(robot, prepared, Standing(robot.parameters.to_scaled(before)), _learned(robot), threads)
    click.echo(json.dumps(plain(report, robot), indent=2) if as_json else text(report, robot))
    if picture is not None:
        draw(report, robot, picture)
    if model is not None and report.decision.corrections:
        sent = {e.name: e.after for e in report.decision.corrections}
        names = zip(robot.parameters.names, before.tolist(), strict=True)
        write_model(robot, np.array([sent.get(name, value) for name, value in names]), model)
    elif model is not None:
        click.echo(f"gapd: nothing is corrected, so {model} is not written", err=True)


@cli.command()
@CONFIG
@click.argument("logs", nargs=-1, type=click.Path(path_type=Path))
def check(config: Path, logs: tuple[Path, ...]) -> None:
    """Check configuration, model, parameters and bundle, and the columns of recordings, and say what is there."""
    from gapd.gap_model.bundle import open_active
    from gapd.sources.log_files import require_mapped

    robot = open_active(config)
    space, layout = robot.parameters, robot.layout
    _say("robot", robot.config.robot)
    _say("model", f"{robot.config.path(robot.config.model)}: {robot.model.nv} joints, {robot.model.nu} actuators")
    for line in _uncommanded(robot):
        _say("actuator", f"WARN {line}")
    _say("parameters", f"{len(space)} free, {len(space.frozen)} frozen")
    _say("channels", f"{len(layout.channels)}; window {layout.knots} knots of {layout.knot_s} s")
    _say("bundle", _bundle_line(robot))
    for line in _live_lines(robot):
        _say("live", line)
    for log in logs:
        _say("log", f"{log}: {require_mapped(log, robot)} columns found")
    click.echo("ok")


@cli.command()
@CONFIG
@click.option("--record", "recordings", type=click.Path(path_type=Path), help="Record all frames into this folder too.")
def run(config: Path, recordings: Path | None) -> None:
    """Run the daemon: frames in, corrections out, until it is stopped."""
    from gapd.live.start import run_daemon

    run_daemon(config, recordings)


@cli.command()
@CONFIG
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--seconds", type=click.FloatRange(min=0.0, min_open=True), help="Stop by itself after this time.")
def record(config: Path, folder: Path, seconds: float | None) -> None:
    """Record frames into a folder (MCAP), until stopped."""
    from gapd.live.start import record as write

    click.echo(f"{write(config, folder, seconds)} frames")


@cli.command()
@click.argument("name")
@click.option("--folder", type=click.Path(path_type=Path), default=Path(), help="Where to write; here by default.")
@click.option("--force", is_flag=True, help="Replace a pair that exists.")
def keygen(name: str, folder: Path, force: bool) -> None:
    """Make a key pair: NAME.key stays here, NAME.pub goes to the other end."""
    from gapd.keys import write_keys

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--folder {folder}: {error.strerror}; name a folder that can be made") from None
    secret, public = write_keys(folder, name, force=force)
    click.echo(f"secret  {secret}  keep it here, mode 0600\npublic  {public}  give it to the other end")


@cli.command()
@CONFIG
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def status(config: Path, as_json: bool) -> None:
    """Ask a running daemon how the robot is. Exit code 0 for OK, 1 for anything else."""
    from gapd.config import load_config
    from gapd.live.status import ask, status_path
    from gapd.live.status_text import status_text

    settings = load_config(config)
    told = ask(status_path(settings.path(settings.live.state)))
    click.echo(json.dumps(told, indent=2) if as_json else status_text(told))
    if told["level"]:
        sys.exit(1)


@cli.command()
def version() -> None:
    """Print the versions that decide about results."""
    click.echo(versions("gapd"))


def _is_recording(path: Path) -> bool:
    """Whether it is a recording, or what a crash has left of one."""
    return path.name.endswith((".mcap", ".mcap.part"))


def _require_recordings(logs: tuple[Path, ...], picture: Path | None, values: tuple[str, ...]) -> None:
    """ConfigError where logs or options that are for CSV stand beside recordings."""
    log = next((log for log in logs if not _is_recording(log)), None)
    if log is not None:
        raise ConfigError(f"{log}: recordings (.mcap) take no CSV logs beside them; replay one kind at a time")
    given = f"--picture {picture}" if picture is not None else f"--set {values[0]}" if values else ""
    if given:
        raise ConfigError(f"{given}: is for CSV logs only; leave it out for recordings (.mcap)")


def _replay_live(
    config: Path, recordings: tuple[Path, ...], model: Path | None, threads: int, *, as_json: bool
) -> None:
    from gapd.fit.corrected_model import require_writable, write_model
    from gapd.gap_model.bundle import open_active
    from gapd.live import replay_live

    robot = open_active(config)
    if model is not None:
        require_writable(robot, model)  # now, not after a long replay
    replay = replay_live.ReplayLive(robot, _learned(robot), threads)
    for recording in recordings:
        replay.add(recording)
    for note in replay.notes:
        click.echo(f"gapd: {note}", err=True)
    click.echo(json.dumps(replay_live.plain(replay.lines, robot), indent=2) if as_json else _live_text(replay))
    if model is not None:
        write_model(robot, robot.parameters.to_physical(replay.z), model)


def _live_text(replay: ReplayLive) -> str:
    """Decisions, the status at the end, and what that end has cut off."""
    import msgspec

    from gapd.live import replay_live
    from gapd.live.status_text import status_text

    told = msgspec.json.decode(msgspec.json.encode(replay.status()))
    parts = replay_live.text(replay.lines), status_text(told), replay.ending()
    return "\n\n".join(filter(None, parts))


def _live_lines(robot: Robot) -> list[str]:
    """What the daemon is connected with; ConfigError for a key that is not there."""
    from gapd.keys import read_public, read_secret
    from gapd.live_config import Live

    live, path = robot.config.live, robot.config.path
    if live == Live():
        return []
    secrets = [t.secret_key for t in (live.frames, live.link, live.remote_stream) if t is not None]
    publics = [t.server_public_key for t in (live.frames, live.link) if t is not None]
    publics += live.remote_stream.allowed if live.remote_stream is not None else ()
    for key in filter(None, secrets):
        read_secret(path(key))
    for key in filter(None, publics):
        read_public(path(key))
    host = [f"host {live.link.endpoint}"] if live.link is not None else []
    return [f"frames from {live.frames.endpoint}", *host]


def _say(word: str, rest: str) -> None:
    click.echo(f"{word:<12}{printable(rest)}")


def _uncommanded(robot: Robot) -> list[str]:
    return [f"{name}: no command column, its command stays 0" for name in robot.uncommanded]


def _bundle_line(robot: Robot) -> str:
    learned = _learned(robot)
    if learned is None:
        return "none: fits use finite differences"
    verified = f"{learned.bundle.folder}: verified, sha256 {learned.bundle.sha256[:12]}"
    inactive = learned.bundle.manifest.inactive
    if not inactive:
        return verified
    untested = sum(not p.tested for p in inactive)
    return f"{verified}; holds {len(inactive)} parameters without an edge, {untested} of them not tested in training"


def _learned(robot: Robot) -> Learned | None:
    from gapd.gap_model.bundle import open_bundle
    from gapd.gap_model.learned import Learned

    return Learned(open_bundle(robot), robot) if robot.config.bundle else None


def _assignments(texts: tuple[str, ...], robot: Robot) -> dict[str, float]:
    values: dict[str, float] = {}
    for text in texts:
        name, value = _assignment(text, robot)
        if name in values:
            raise ConfigError(f"--set {text}: {name} is set twice; leave one out")
        values[name] = value
    return values


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
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # There is nothing to clean up, and C code that is being imported or simulates would answer in its own ways.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Nothing is rendered. Looking for a window system costs time, and a child process that does not end quietly.
    os.environ.setdefault("MUJOCO_GL", "disable")
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):  # units in a terminal that does not know them
                stream.reconfigure(errors="backslashreplace")
        cli(standalone_mode=False)
    except GapdError as error:
        _end(f"gapd: {error}", error.exit_code)
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            error.show()
        _end("", error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _end("", 130)
    except BrokenPipeError:  # whoever read the output has seen enough
        _end("", 1)
    except OSError as error:
        _end(f"gapd: {error.filename or 'standard output'}: {error.strerror}; free space, or name another place", 1)


def _end(message: str, code: int) -> None:
    """Exit with one line on stderr, whatever state the streams are in."""
    with contextlib.suppress(OSError):
        if message:
            click.echo(message, err=True)
    with contextlib.suppress(OSError, ValueError):
        # What is left in the buffer could not be written; Python would try again and complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
