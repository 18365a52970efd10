"""Text, numbers and tables as HTML that is well-formed XML too. Whatever comes from a bundle goes through `text`."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from gapd.errors import printable

# Rows up to which a table is open when the page is.
OPEN_ROWS = 40


def text(value: str) -> str:
    """The value as it reads, whatever characters it has, in an element or in a quoted attribute."""
    return html.escape(printable(value))


def number(value: float) -> str:
    """Three significant digits; powers of ten only where zeros would be counted."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if not 1e-4 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}·10{str(int(exponent)).translate(_RAISED)}".replace("-", "−")
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{round(value, 2 - math.floor(math.log10(abs(value)))):.{digits}f}".replace("-", "−")


def given(value: float, unit: str) -> str:
    """A number that somebody wrote, with the digits that it was given, and its unit if it has one."""
    return f"{value:.6g} {'' if unit == '1' else text(unit)}".replace("-", "−", 1).rstrip()


_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def counted(count: int, noun: str) -> str:
    """As in "1 channel", "3 channels"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A table of cells that are HTML already; the first `words` columns are words, the others numbers."""
    kinds = ["" if column < words else ' class="n"' for column in range(len(head))]
    top = "".join(f'<th scope="col"{kind}>{cell}</th>' for cell, kind in zip(head, kinds, strict=True))
    body = "\n".join(_row(cells, kinds) for cells in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def _row(cells: Sequence[str], kinds: Sequence[str]) -> str:
    first, *others = cells
    rest = "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(others, kinds[1:], strict=True))
    return f'<tr><th scope="row">{first}</th>{rest}</tr>'


def folded(summary: str, content: str, is_open: bool = False) -> str:
    """Content that a click on the summary shows; both are HTML already."""
    opened = ' open="open"' if is_open else ""
    return f"<details{opened}><summary>{summary}</summary>\n{content}\n</details>"


def section(key: str, title: str, *content: str) -> str:
    """A part of the page."""
    return "\n".join([f'<section id="{key}"><h2>{title}</h2>', *content, "</section>"])
