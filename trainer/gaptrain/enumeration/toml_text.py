"""parameters.toml as text: families with a comment each, and what was left out."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence

from gapd.model.parameters import Parameter, Target
from gaptrain.enumeration.entries import Family, Found, Omission
from gaptrain.enumeration.magnitudes import LETTERS

WIDTH = 118
# Names shown of all that were left out for one reason: a model of a thousand visual geoms needs no line for each.
SHOWN = 20


def toml_text(model: str, found: Sequence[Found], omitted: Iterable[Omission]) -> str:
    """The whole file; `model` is the name of the MJCF."""
    lines = _comment(
        f"Parameters of {model}: every number that may be otherwise on the robot, {len(found)} in all, written by "
        "`gaptrain enumerate`. Value written = parameter x product of the factors. Freeze (frozen = true) or delete "
        "what is known; narrow bounds where more is known than the model tells."
    )
    lines += ["#", *_comment(LETTERS), *_left_out(omitted)]
    for family, parameters in by_family(found).items():
        lines += ["", *_comment(f"{family.title}: {family.bounds}.")]
        for parameter in parameters:
            lines += ["", *_table(parameter)]
    return "\n".join(lines) + "\n"


def by_family(found: Iterable[Found]) -> dict[Family, list[Parameter]]:
    """Parameters by family, in the order of first appearance."""
    families: dict[Family, list[Parameter]] = {}
    for one in found:
        families.setdefault(one.family, []).append(one.parameter)
    return families


def _left_out(omitted: Iterable[Omission]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for omission in omitted:
        reasons.setdefault(omission.reason, []).append(omission.what)
    lines = ["#", "# Left out:"] if reasons else []
    for reason, names in reasons.items():
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        lines += _comment(f"- {reason}: {', '.join(names[:SHOWN])}{more}", "  ")
    return lines


def _comment(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent="# ",
        subsequent_indent=f"# {indent}",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _table(parameter: Parameter) -> list[str]:
    targets = [_target(t) for t in parameter.targets]
    one_line = len(targets) == 1
    return [
        "[[parameter]]",
        f"name = {json.dumps(parameter.name, ensure_ascii=False)}",
        f"unit = {json.dumps(parameter.unit, ensure_ascii=False)}",
        f"nominal = {_exact(parameter.nominal)}",
        f"min = {_bound(parameter.min, parameter.nominal)}",
        f"max = {_bound(parameter.max, parameter.nominal)}",
        f'scale = "{parameter.scale}"',
        *([f"targets = [{targets[0]}]"] if one_line else ["targets = [", *(f"    {t}," for t in targets), "]"]),
    ]


def _target(target: Target) -> str:
    parts = [f'field = "{target.field}"']
    if target.element:
        parts.append(f"element = {json.dumps(target.element, ensure_ascii=False)}")
    if target.index:
        parts.append(f"index = {target.index}")
    if target.factor:
        parts.append(f"factor = [{', '.join(_exact(f) for f in target.factor if not isinstance(f, str))}]")
    return f"{{ {', '.join(parts)} }}"


def _exact(value: float) -> str:
    """The number as it is in the model, so that nominal values change nothing."""
    return str(int(value)) if value == int(value) and abs(value) < 1e6 else repr(value)


def _bound(value: float, nominal: float) -> str:
    """Four digits, unless the bound would pass the nominal value."""
    rounded = float(f"{value:.4g}")
    passes = (rounded - nominal) * (value - nominal) < 0 or value == nominal
    return _exact(value if passes else rounded)
