"""Recalibrate one robot. Imports what takes time only when an interruption is seen to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gaptrain.host.interruption import Interruption

if TYPE_CHECKING:
    from gaptrain.host.engines import Engine
    from gaptrain.host.refit_job import Outcome


def recalibrate(
    state: Path, name: str, engine: Engine = "gapd", number: int | None = None, threads: int = 2
) -> Outcome:
    """Refit on the evidence of job `number`, or of the newest escalation whose evidence is here; record the result.

    SIGINT and SIGTERM end the process with one line and code 130; the job then is what it was before.
    """
    with Interruption():
        from gaptrain.host.refit_job import run_job

        return run_job(state, name, engine, number, threads)
