"""Parameters that share one value: legs of one make, joints of one series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec

from gapd.errors import ConfigError, nearest
from gapd.model.parameters import Parameter
from gaptrain.enumeration.entries import Found


def tie(found: Sequence[Found], patterns: Sequence[str]) -> list[Found]:
    """One parameter, named as the pattern, in place of those that match it; ConfigError where that cannot be."""
    member_of: dict[str, str] = {}
    for pattern in patterns:
        for name in _matching(found, pattern):
            other = member_of.setdefault(name, pattern)
            if other != pattern:
                raise ConfigError(f"--tie {pattern!r}: {name} matches {other!r} too; narrow one of them")
    tied = {p: _tied(p, [f for f in found if member_of.get(f.parameter.name) == p]) for p in dict.fromkeys(patterns)}
    result: dict[str, Found] = {}
    for one in found:
        name = member_of.get(one.parameter.name, one.parameter.name)
        result.setdefault(name, tied.get(name, one))
    return list(result.values())


def _matching(found: Sequence[Found], pattern: str) -> list[str]:
    names = [f.parameter.name for f in found]
    if pattern in names and not fnmatchcase(pattern, pattern):
        literal = pattern.replace("[", "[[]")
        raise ConfigError(f"--tie {pattern!r}: is a name that it does not match: [ begins a set; write {literal!r}")
    matching = [name for name in names if fnmatchcase(name, pattern)]
    if not matching:
        raise ConfigError(f"--tie {pattern!r}: no parameter has such a name{nearest(pattern, names)}")
    return matching


def _tied(pattern: str, members: Sequence[Found]) -> Found:
    parameters = [m.parameter for m in members]
    units = sorted({p.unit for p in parameters})
    if len(units) > 1:
        raise ConfigError(f"--tie {pattern!r}: units {' and '.join(units)} cannot share a value; narrow it")
    same = all(math.isclose(p.nominal, parameters[0].nominal, rel_tol=1e-9) for p in parameters)
    tied = (_one_value if same else _one_factor)(pattern, parameters)
    try:
        tied.check()
    except ConfigError as fault:
        raise ConfigError(f"--tie {pattern!r}: together they are no parameter ({fault}); narrow it") from None
    return Found(members[0].family, tied)


def _one_value(name: str, parameters: Sequence[Parameter]) -> Parameter:
    """All have the same value: they keep it, within the bounds that all have."""
    targets = tuple(target for p in parameters for target in p.targets)
    low, high = max(p.min for p in parameters), min(p.max for p in parameters)
    return msgspec.structs.replace(parameters[0], name=name, min=low, max=high, targets=targets)


def _one_factor(name: str, parameters: Sequence[Parameter]) -> Parameter:
    """Their values differ: a factor on all of them, within the bounds that all have."""
    zero = next((p for p in parameters if not p.nominal), None)
    if zero is not None:
        other = next(p for p in parameters if p.nominal)
        raise ConfigError(
            f"--tie {name!r}: {zero.name} is 0 in the model and {other.name} is {other.nominal:g}, so that neither one "
            "value nor a factor fits both; narrow it"
        )
    spans = [sorted((p.min / p.nominal, p.max / p.nominal)) for p in parameters]
    low, high = max(s[0] for s in spans), min(s[1] for s in spans)
    targets = tuple(
        msgspec.structs.replace(target, factor=(*target.factor, p.nominal)) for p in parameters for target in p.targets
    )
    return Parameter(name, 1.0, low, high, targets, "1", "log" if low > 0 else "linear")
