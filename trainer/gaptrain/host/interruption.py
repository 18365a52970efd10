"""Ctrl-C and SIGTERM in the middle of work: undo what has begun, and end with one line."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

# What a shell reports of a program that Ctrl-C has ended.
EXIT_CODE = 130
_LINE = b"gaptrain: interrupted; everything is as it was before\n"


class Interruption:
    """Ends the process on SIGINT or SIGTERM within a `with` block, after `undo`.

    It ends inside of the handler, not with an exception: C code that is being imported or calls back makes another
    exception of it, or drops it. `undo` is called between two bytecodes anywhere in the block, possibly twice.
    Outside of the main thread, where Python handles no signals, it does nothing.
    """

    def __init__(self, undo: Callable[[], object] = lambda: None) -> None:
        """Call `undo` first, unless it is too late."""
        self._undo = undo
        self._late = False
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Self:
        """Handle both signals, unless whoever started the process wants them ignored."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Handle them as before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def too_late(self) -> None:
        """From now on the block ends by itself: what it stores is a result, and there is nothing to undo."""
        self._late = True

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        if self._late:
            return
        try:
            self._undo()
            os.write(2, _LINE)
        finally:
            os._exit(EXIT_CODE)
