"""The `gaptrain` command."""

from __future__ import annotations

import sys
from pathlib import Path

import click

import gapd
from gapd.errors import GapdError

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


class _Commands(click.Group):
    """Turns a GapdError into one line on stderr and its exit code."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except GapdError as error:
            click.echo(f"gaptrain: {error}", err=True)
            sys.exit(error.exit_code)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(gapd.__version__, "--version")
def main() -> None:
    """Train gap models and calibrate simulators."""


@main.command("fit")
@click.argument("modeldir", type=_FOLDER)
@click.option("--windows", type=click.IntRange(1), help="Training windows; train.toml says how many by default.")
@click.option("--epochs", type=click.IntRange(1), help="Passes over the data.")
@click.option("--seed", type=int, help="Seed of data and training.")
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True)
def fit_command(modeldir: Path, windows: int | None, epochs: int | None, seed: int | None, threads: int) -> None:
    """Make training data, train the gap model, write MODELDIR/bundle and pin it in robot.toml.

    An interrupted run continues where it was when called again with the same options.
    """
    from gaptrain.fit import fit  # torch takes seconds to import

    fit(modeldir, windows, epochs, seed, threads, say=click.echo)


@main.command("export")
@click.argument("modeldir", type=_FOLDER)
def export_command(modeldir: Path) -> None:
    """Write MODELDIR/bundle from the last checkpoint and pin it in robot.toml."""
    from gaptrain.fit import export_last

    export_last(modeldir, say=click.echo)


if __name__ == "__main__":
    main()
