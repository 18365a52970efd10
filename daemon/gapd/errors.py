"""What can go wrong, with the exit code the command line gives it."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable

# Unicode categories that steer a terminal or a line instead of showing something.
_STEERING = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")


class GapdError(Exception):
    """Base of everything gapd raises on purpose: one line with name, value and remedy."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        """Keep the message as one printable line, whatever names and values it quotes."""
        super().__init__(printable(message))


class InputError(GapdError):
    """A recording or bundle that cannot be used as it is."""


class ConfigError(GapdError):
    """A configuration, a model or a call that has to be changed by whoever wrote it."""

    exit_code = 2


def printable(text: str) -> str:
    """The text with control characters and broken encodings escaped: names of files and columns may hold any."""
    return "".join(c.encode("unicode_escape", "surrogatepass").decode() if _steers(c) else c for c in text)


def is_printable(text: str) -> bool:
    """Whether the text shows as it is."""
    return not any(_steers(c) for c in text)


def _steers(character: str) -> bool:
    return unicodedata.category(character) in _STEERING


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint like "; did you mean 'knots'?", or the known names if none is near."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean '{close[0]}'?"
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f"; known: {shown}" if shown else ""
