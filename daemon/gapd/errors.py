"""What can go wrong, with the exit code the command line gives it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GapdError(Exception):
    """Base of everything gapd raises on purpose: one line with name, value and remedy."""

    exit_code = 1


class InputError(GapdError):
    """A recording, bundle or model that cannot be used as it is."""


class ConfigError(GapdError):
    """A configuration or a call that has to be changed by whoever wrote it."""

    exit_code = 2


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint like "; did you mean 'knots'?", or the known names if none is near."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean '{close[0]}'?"
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f"; known: {shown}" if shown else ""
