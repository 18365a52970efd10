"""A picture of a report: measured and replayed channels, and how far each parameter moved. Needs matplotlib."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from gapd.errors import ConfigError
from gapd.fit.cycle import Report
from gapd.fit.report import intervals
from gapd.model.robot import Robot

ENDINGS = (".png", ".pdf", ".svg")
# Channels and windows that still can be read on one sheet.
SHOWN_CHANNELS = 6
SHOWN_WINDOWS = 6


def require_drawable(path: Path) -> None:
    """ConfigError where `draw` could not write to the path. Nothing is left there by the attempt."""
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(f"picture {path}: ends in none of {', '.join(ENDINGS)}; name such a file")
    _try_matplotlib(path)
    try:
        if not path.parent.is_dir():
            raise ConfigError(f"picture {path}: no folder {path.parent}; make it, or name another")
        # No permission bit tells what a file system allows, not even to root.
        new = not path.exists()
        path.open("ab").close()
        if new:
            path.unlink()
    except OSError as error:
        raise ConfigError(f"picture {path}: cannot be written there ({error.strerror}); name another file") from None


def _try_matplotlib(path: Path) -> None:
    """Draw nothing in the picture's format: that imports all that drawing needs."""
    try:
        from matplotlib import figure

        figure.Figure().savefig(BytesIO(), format=_format(path))
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"a picture needs matplotlib ({error.name} is missing): pip install 'gapd[host]', or leave --picture out"
        ) from None
    except Exception as error:  # noqa: BLE001 - a broken installation raises anything
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"matplotlib is there but fails ({reason}): pip install 'gapd[host]' anew, or leave --picture out"
        ) from None


def _format(path: Path) -> str:
    return path.suffix.lower().removeprefix(".")


def draw(report: Report, robot: Robot, path: Path) -> None:
    """Write a PNG, PDF or SVG by the ending of the path; ConfigError where it cannot be written."""
    from matplotlib import figure

    shown = _worst_channels(report)
    sheet = figure.Figure(figsize=(13, 2.0 + 1.7 * max(len(shown), 3)), layout="constrained")
    parts = np.asarray(sheet.subfigures(1, 2, width_ratios=(3, 2)))
    _channels(parts[0], report, robot, shown)
    _parameters(parts[1], report, robot)
    sheet.suptitle(f"{robot.config.robot}: {report.decision.action}", fontsize=12, parse_math=False)
    # Into memory first: on a full disk the writers of matplotlib fail in ways of their own.
    picture = BytesIO()
    sheet.savefig(picture, dpi=110, format=_format(path))
    try:
        path.write_bytes(picture.getbuffer())
    except OSError as error:
        raise ConfigError(f"picture {path}: cannot be written ({error.strerror}); name another file") from None


def _worst_channels(report: Report) -> list[int]:
    """Channels with the largest gap before, each kind that is measured among them."""
    order = np.argsort(-np.nan_to_num(report.check.channel_before, nan=-1.0))
    return [int(c) for c in order[:SHOWN_CHANNELS] if np.isfinite(report.check.channel_before[c])]


def _channels(part: Any, report: Report, robot: Robot, shown: list[int]) -> None:
    layout, windows = robot.layout, report.held.take(slice(0, SHOWN_WINDOWS))
    axes = np.atleast_1d(part.subplots(len(shown), 1, sharex=True))
    time = np.arange(layout.knots + 1) * layout.knot_s
    for axis, channel in zip(axes, shown, strict=True):
        for w in range(len(windows)):
            at = time + w * (time[-1] + layout.knot_s)
            first = w == 0
            axis.plot(at, windows.measured[w, :, channel], "k.", ms=3, label="measured" if first else None)
            axis.plot(at, report.predicted_before[w, :, channel], "C1-", lw=1, label="before" if first else None)
            axis.plot(at, report.predicted_after[w, :, channel], "C0-", lw=1, label="fitted" if first else None)
        axis.set_ylabel(layout.channels[channel], fontsize=8, parse_math=False)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=7, ncol=3, loc="upper right")
    axes[-1].set_xlabel("held-out windows, one after the other, s", fontsize=8)
    part.suptitle("channels with the largest gap", fontsize=9)


def _parameters(part: Any, report: Report, robot: Robot) -> None:
    space, axis = robot.parameters, part.subplots()
    rows = np.arange(len(space))[::-1]
    span = space.z_max - space.z_min
    low, high = (space.to_scaled(np.array(side)) for side in zip(*intervals(report, robot), strict=True))
    z = report.identification.z
    axis.hlines(rows, 0, 1, color="0.9", lw=5)
    axis.hlines(rows, (low - space.z_min) / span, (high - space.z_min) / span, color="C0", lw=2, label="interval")
    axis.plot((z - space.z_min) / span, rows, "C0o", ms=4, label="fitted")
    axis.plot((report.identification.before - space.z_min) / span, rows, "C1x", ms=5, label="before")
    axis.set_yticks(rows, space.names, fontsize=7, parse_math=False)
    axis.set_xticks([0, 1], ["min", "max"], fontsize=8)
    axis.legend(fontsize=7, ncol=3, loc="upper center", bbox_to_anchor=(0.5, 1.06))
