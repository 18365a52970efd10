"""Units of coefficients of forces over a coordinate."""

from __future__ import annotations

from dataclasses import dataclass

_POWERS = ("", "", "²", "³")


@dataclass(frozen=True)
class Units:
    """Units along one coordinate: force, position and inertia; "SI" where one number serves lengths and angles."""

    force: str
    position: str
    inertia: str

    def stiffness(self, order: int = 1) -> str:
        """Of a force over a power of the position."""
        return "SI" if self.force == "SI" else f"{self.force}/{self.position}{_POWERS[order]}"

    def damping(self, order: int = 1) -> str:
        """Of a force over a power of the speed."""
        power = _POWERS[order]
        return "SI" if self.force == "SI" else f"{self.force}·s{power}/{self.position}{power}"


ANGULAR = Units("N·m", "rad", "kg·m²")
LINEAR = Units("N", "m", "kg")
MIXED = Units("SI", "SI", "SI")
