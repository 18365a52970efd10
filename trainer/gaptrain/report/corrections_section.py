"""What can be corrected on this robot and what cannot, in words and tables."""

from __future__ import annotations

import numpy as np

from gapd.fit.uncertainty import UNKNOWN_SHARE
from gaptrain.graph import EDGE, EDGE_SIGMA
from gaptrain.report.charts import bar
from gaptrain.report.facts import Facts, Fate
from gaptrain.report.markup import OPEN_ROWS, counted, folded, given, number, section, table, text

# Digits of a frozen parameter's list before it is folded.
NAMED = 12


def corrections_section(facts: Facts) -> str:
    """One block for each fate that a parameter of this bundle has."""
    windows = facts.manifest.expected.windows
    said = (
        f"<p>After {counted(windows, 'window')} of motions like those of the training, at nominal values and with no "
        "error but the channels' noise. A real robot's own error makes it worse. The spread of log-scaled "
        "parameters is in % of the value (one standard deviation upwards), of others in their unit.</p>"
    )
    parts = [_known(facts), _combined(facts), _weak(facts), _no_edge(facts), _not_tested(facts), _frozen(facts)]
    return section("corrections", "What can be corrected, and what cannot", said, *(p for p in parts if p))


def _block(title: str, words: str, content: str, rows: int, is_open: bool = True) -> str:
    unfolded = is_open and rows <= OPEN_ROWS
    return f"<h3>{title}</h3>\n<p>{words}</p>\n" + folded(counted(rows, "parameter"), content, unfolded)


def _expected_rows(facts: Facts, names: list[str]) -> list[list[str]]:
    """Rows of parameters with an edge, those known best first."""
    expected = facts.manifest.expected
    before, after = facts.spread(expected.prior_sd), facts.spread(expected.sd)
    left = np.array(expected.sd) / np.array(expected.prior_sd)
    rows = []
    for p in sorted((facts.space.names.index(name) for name in names), key=lambda p: left[p]):
        parameter, best = facts.space.free[p], int(np.argmax(facts.effect[p]))
        unit = "%" if facts.is_log[p] else "" if parameter.unit == "1" else text(parameter.unit)
        share = f"{100 * left[p]:.3g} %"
        rows.append([
            text(parameter.name), text(facts.channels[best]), number(facts.effect[p, best]),
            str(int((facts.probability[p] > EDGE).sum())), given(parameter.nominal, parameter.unit),
            f"± {number(before[p])} {unit}", f"± {number(after[p])} {unit}", share, bar(left[p], words=share),
        ])  # fmt: skip
    return rows


def _expected_table(facts: Facts, names: list[str]) -> str:
    head = ["parameter", "moves most", "by (σ)", "edges", "nominal", "before", "after", "left", ""]
    return table(head, _expected_rows(facts, names), words=2)


def _named(facts: Facts, fate: Fate) -> list[str]:
    return [name for name, found in facts.fates.items() if found == fate]


def _known(facts: Facts) -> str:
    names = _named(facts, "known")
    words = (
        f"Each is known by itself: less than {100 * UNKNOWN_SHARE:g} % of its prior standard deviation is left. "
        "Corrections of these can be expected."
    )
    if not names:
        return "<h3>Can be corrected</h3><p>None: these motions do not tell any parameter by itself.</p>"
    return _block("Can be corrected", words, _expected_table(facts, names), len(names))


def _combined(facts: Facts) -> str:
    if not facts.groups:
        return ""
    words = (
        "The motions tell a combination of the members of a group, but not each: neither is moved. "
        "Tie them into one parameter, freeze what is known otherwise, or measure a channel that tells them apart."
    )
    blocks = "".join(
        f"<h4>{' + '.join(text(name) for name in group)}</h4>{_expected_table(facts, list(group))}"
        for group in facts.groups
    )
    rows = sum(len(group) for group in facts.groups)
    return _block(f"Only a combination is known: {counted(len(facts.groups), 'group')}", words, blocks, rows)


def _weak(facts: Facts) -> str:
    names = _named(facts, "weak")
    if not names:
        return ""
    words = (
        f"They have an edge, but more than {100 * UNKNOWN_SHARE:g} % of the prior standard deviation would be left: "
        "they are not moved. Other motions, more windows or less noise would tell more."
    )
    return _block("These motions tell too little", words, _expected_table(facts, names), len(names))


def _no_edge(facts: Facts) -> str:
    rows = [
        [text(p.name), given(p.nominal, p.unit), number(p.effect)]
        for p in sorted(facts.manifest.inactive, key=lambda p: -p.effect) if p.tested
    ]  # fmt: skip
    if not rows:
        return ""
    words = (
        f"One prior standard deviation moves no channel by more than {EDGE_SIGMA:g} noise standard deviations in these "
        "motions, so that no fit could see it. They stay at their nominal values, which does no harm in such motions."
    )
    head = ["parameter", "nominal", "largest effect (σ)"]
    return _block("No edge", words, table(head, rows), len(rows), is_open=False)


def _not_tested(facts: Facts) -> str:
    rows = [
        [text(p.name), given(p.nominal, p.unit)] for p in facts.manifest.inactive if not p.tested
    ]  # fmt: skip
    if not rows:
        return ""
    words = (
        "They do nothing at all in the training's motions, which therefore cannot tell whether they would in others "
        "(a stop that is never reached, a contact that is never made). They stay at their nominal values. To have them "
        "corrected, change the motions in train.toml so that they matter, and train again."
    )
    return _block("Not tested", words, table(["parameter", "nominal"], rows), len(rows), is_open=False)


def _frozen(facts: Facts) -> str:
    frozen = facts.frozen
    if not frozen:
        return ""
    names = ", ".join(text(name) for name in frozen)
    head = f"<h3>Frozen</h3>\n<p>{counted(len(frozen), 'parameter')} frozen in parameters.toml.</p>"
    return head + (f"<p>{names}</p>" if len(frozen) <= NAMED else folded("names", f"<p>{names}</p>"))
