"""The report as one file: style and script are inside, nothing is fetched, nothing else may run."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path

from gapd.durable import replace
from gapd.errors import ConfigError
from gaptrain.report.corrections_section import corrections_section
from gaptrain.report.facts import Facts, open_facts
from gaptrain.report.graph_section import graph_section
from gaptrain.report.markup import counted, text
from gaptrain.report.network_section import channels_section, network_section, provenance_section

SECTIONS = (
    ("graph", "What moves what"),
    ("corrections", "What can be corrected"),
    ("channels", "Channels"),
    ("network", "Network"),
    ("provenance", "Provenance"),
)


def write_report(bundle: Path, out: Path) -> str:
    """Write the page about a bundle folder; one line for the terminal. InputError or ConfigError if it cannot be."""
    if out.is_dir() or not out.parent.is_dir():
        raise ConfigError(f"{out}: cannot be the report's file; give --out a file in a folder that is there")
    facts = open_facts(bundle)
    if out.resolve().parent == bundle.resolve():
        raise ConfigError(f"{out}: is in the bundle, which training replaces; give --out a file elsewhere")
    raw = page(facts).encode()
    replace(out, raw)
    parameters = counted(len(facts.space), "parameter")
    return f"{out}: {facts.manifest.robot}, {parameters} with an edge, verified; {len(raw) // 1000 + 1} kB"


def page(facts: Facts) -> str:
    """The whole page, well-formed XML too."""
    style, script = _inline("page.css"), _inline("page.js")
    allowed = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'"
    robot = text(facts.manifest.robot)
    links = " ".join(f'<a href="#{key}">{title}</a>' for key, title in SECTIONS)
    return "\n".join([
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>',
        f'<meta http-equiv="Content-Security-Policy" content="{allowed}"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>{robot}: gap model</title><style>{style}</style></head><body>",
        f"<header><h1>{robot}: gap model</h1>{_summary(facts)}<nav>{links}</nav></header><main>",
        graph_section(facts),
        corrections_section(facts),
        channels_section(facts),
        network_section(facts),
        provenance_section(facts),
        f"</main><script>{script}</script></body></html>\n",
    ])  # fmt: skip


def _summary(facts: Facts) -> str:
    """The answer in numbers, then in a sentence."""
    tiles = (
        (facts.count("known"), "can be corrected"),
        (facts.count("combined"), f"known in combination only, {counted(len(facts.groups), 'group')}"),
        (facts.count("weak"), "told too little by these motions"),
        (facts.count("no edge"), "without an edge"),
        (facts.count("not tested"), "not tested by these motions"),
    )
    shown = "".join(f"<div><b>{count}</b> {words}</div>" for count, words in tiles if count)
    return (
        f"<p>{counted(len(facts.fates), 'parameter')}, {counted(len(facts.channels), 'channel')}; expected after "
        f'{counted(facts.manifest.expected.windows, "window")}:</p><div class="tiles">{shown}</div>'
    )


def _inline(name: str) -> str:
    return files("gaptrain.report").joinpath(name).read_text("utf-8").strip()


def _hash(content: str) -> str:
    """How a content security policy names the one style or script that counts."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
