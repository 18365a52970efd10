"""Limits of what a configuration may say: sane numbers, names that can be printed, paths that can exist.

Each function returns what is wrong in words that go after a value, or nothing.
"""

from __future__ import annotations

from gapd.errors import is_printable

# Numbers beyond these are no values in SI units of a machine; their squares and products would overflow in a fit.
SMALLEST, LARGEST = 1e-15, 1e12
LONGEST_NAME = 200
# Of Linux: bytes between two slashes, and of a whole path.
LONGEST_PART, LONGEST_PATH = 255, 4095


def number_fault(value: float, low: float, high: float, what: str = "a number") -> str:
    """Fault of a number that is not within low .. high."""
    return "" if low <= value <= high else f"must be {what} from {low:g} to {high:g}"  # NaN is not


def factor_fault(value: float) -> str:
    """Fault of a factor: zero would erase what it multiplies."""
    if SMALLEST <= abs(value) <= LARGEST:
        return ""
    return f"must be a factor of size {SMALLEST:g} to {LARGEST:g}, and not 0"


def text_fault(text: str) -> str:
    """Fault of a text that is printed: control characters would mix up journals and terminals."""
    if len(text) > LONGEST_NAME:
        return f"must have at most {LONGEST_NAME} characters, has {len(text)}"
    return "" if is_printable(text) else "must not contain control characters"


def name_fault(name: str) -> str:
    """Fault of a name."""
    return text_fault(name) if name.strip() else "must not be empty; give it a name"


def path_fault(path: str) -> str:
    """Fault of a path."""
    if not path.strip():
        return "must not be empty; name a file"
    if not is_printable(path):
        return "must not contain control characters"
    parts = [len(part.encode()) for part in path.split("/")]
    if max(parts) > LONGEST_PART or len(path.encode()) > LONGEST_PATH:
        return f"must have at most {LONGEST_PART} bytes between slashes and {LONGEST_PATH} in all"
    return ""
