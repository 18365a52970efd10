"""The service as a program: its keys, its lock, its end."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType

from gapd.keys import KeyPair, read_secret, write_keys
from gapd.live.telemetry import open_log
from gaptrain.host.locks import SERVICE, only_one
from gaptrain.host.service import Service


def host_keys(state: Path) -> KeyPair:
    """The host's own pair, host.key in the state folder; drawn at the first start. host.pub is for the robots."""
    secret = state / "host.key"
    if not secret.exists():
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_keys(state, "host")
    return read_secret(secret)


def serve(state: Path, bind: str, auto: bool) -> None:
    """Serve until SIGTERM or SIGINT."""
    keys = host_keys(state)
    with only_one(state, SERVICE, f"{state}: another host serves this state; stop it, or give another --state"):
        service = Service(state, bind, keys, open_log(sys.stdout), auto)

        def stop(_number: int, _frame: FrameType | None) -> None:
            service.stop()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        try:
            service.run()
        finally:
            service.close()
