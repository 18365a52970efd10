"""What a robot's message may say: each function returns what is wrong, with the remedy, or nothing. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from gapd.messages.link import MAX_ACTIVE, Correction, Escalation, Verdict
from gapd.model.parameters import ParameterSet
from gaptrain.host.evidence_files import LARGEST_EVIDENCE
from gaptrain.host.values import Values

Array = NDArray[np.float64]

# Of SQLite's integers; MessagePack's reach twice as far.
LARGEST_INTEGER = 2**63 - 1
MOST_TERMS = 64
LONGEST_TEXT = 4000
# Scaled values this far outside their bounds come from rounding and are moved onto them.
ROUNDING = 1e-6
# A covariance in float32 may have eigenvalues this far below zero, as a share of the largest.
INDEFINITE = 1e-4

_SHA256 = re.compile("[0-9a-f]{64}")
_NEWER = "update gapd on the robot to the host's version"


def correction_values(message: Correction, space: ParameterSet) -> Values | str:
    """The values of a correction, or what is wrong with it."""
    fault = _vector_fault("z", message.z, space) or _vector_fault("z_sd", message.z_sd, space)
    fault = fault or _active_fault(message, space) or _texts_fault(message.timestamp, [message.reason])
    fault = fault or _names_fault(message, space) or _count_fault(message.base_version, message.windows)
    if fault:
        return fault
    z, z_sd = np.array(message.z), np.array(message.z_sd)
    fault = bounds_fault(z, space) or _negative_fault(z_sd, space)
    if fault:
        return fault
    values = Values(np.clip(z, space.z_min, space.z_max), z_sd, np.array(message.active, np.intp), message.covariance)
    return _covariance_fault(values.covariance) or values


def escalation_fault(message: Escalation) -> str:
    """What is wrong with an escalation."""
    numbers = [x for t in message.terms for x in (t.coefficient, t.sd, t.share)]
    texts = [x for t in message.terms for x in (t.joint, t.regressor, t.unit)]
    if len(message.terms) > MOST_TERMS:
        return f"{len(message.terms)} terms; send the {MOST_TERMS} largest"
    if not np.isfinite(numbers).all():
        return "a term is not finite; leave out terms that are not determined"
    if message.evidence and not _SHA256.fullmatch(message.evidence):
        return f"evidence is no sha256; {_NEWER}"
    if not 0 <= message.evidence_bytes <= LARGEST_EVIDENCE or bool(message.evidence) != bool(message.evidence_bytes):
        return f"evidence of {message.evidence_bytes} bytes; record 1 to {LARGEST_EVIDENCE}, or name none"
    return _texts_fault(message.timestamp, [message.reason, message.remedy, *texts]) or _count_fault(
        message.base_version
    )


def verdict_fault(message: Verdict) -> str:
    """What is wrong with a verdict."""
    texts = [message.candidate, message.reason]
    return _texts_fault(message.timestamp, texts) or _count_fault(message.base_version, message.windows)


def bounds_fault(z: Array, space: ParameterSet) -> str:
    """Which scaled value (P,) is outside its bounds, in physical units."""
    outside = np.flatnonzero((z < space.z_min - ROUNDING) | (z > space.z_max + ROUNDING))
    if not len(outside):
        return ""
    p = int(outside[0])
    with np.errstate(over="ignore"):
        value = space.to_physical(z)[p]
    bounds = f"{space.min[p]:g} .. {space.max[p]:g} {space.units[p]}".rstrip()
    return f"{space.names[p]} = {value:g} is outside {bounds}; widen the bounds on both ends, or check the units"


def _vector_fault(what: str, vector: tuple[float, ...], space: ParameterSet) -> str:
    if len(vector) != len(space):
        return f"{what} has {len(vector)} values, not {len(space)}; use the same parameters.toml on both ends"
    finite = np.isfinite(vector)
    if finite.all():
        return ""
    p = int(np.argmin(finite))
    return f"{what} of {space.names[p]} is {vector[p]}; send finite values only"


def _negative_fault(z_sd: Array, space: ParameterSet) -> str:
    p = int(np.argmin(z_sd))
    return f"z_sd of {space.names[p]} is {z_sd[p]:g}, below 0; {_NEWER}" if z_sd[p] < 0 else ""


def _active_fault(message: Correction, space: ParameterSet) -> str:
    active, size = message.active, len(space)
    if len(active) > MAX_ACTIVE:
        return f"covariance of {len(active)} parameters; send that of at most {MAX_ACTIVE}"
    if any(b <= a for a, b in itertools.pairwise(active)) or any(not 0 <= a < size for a in active):
        return f"active parameters must rise within 0 .. {size - 1}; {_NEWER}"
    wanted = 4 * (len(active) * (len(active) + 1) // 2)
    got = len(message.covariance)
    return f"covariance has {got} bytes, not {wanted}; {_NEWER}" if got != wanted else ""


def _covariance_fault(covariance: Array) -> str:
    if not np.isfinite(covariance).all():
        return "the covariance is not finite; leave out parameters that are not determined"
    if not len(covariance):
        return ""
    lowest, highest = np.linalg.eigvalsh(covariance)[[0, -1]]
    if lowest < -INDEFINITE * max(highest, 0.0) or highest < 0:
        return f"the covariance has the eigenvalue {lowest:g}, below 0; {_NEWER}"
    return ""


def _names_fault(message: Correction, space: ParameterSet) -> str:
    unknown = sorted({*message.changed, *message.effective} - set(space.names))
    return f"{unknown[0][:200]!r} is no parameter of this robot; {_NEWER}" if unknown else ""


def _texts_fault(timestamp: float, texts: Iterable[str]) -> str:
    if not np.isfinite(timestamp):
        return f"timestamp is {timestamp}; set the robot's clock"
    longest = max(map(len, texts), default=0)
    if longest > LONGEST_TEXT:
        return f"a text of {longest} characters; send at most {LONGEST_TEXT}"
    return ""


def _count_fault(*counts: int) -> str:
    wrong = [c for c in counts if not 0 <= c <= LARGEST_INTEGER]
    return f"{wrong[0]} is no count or version; {_NEWER}" if wrong else ""
