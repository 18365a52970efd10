"""Why the level of a robot is not OK. Pure."""

from __future__ import annotations

from gapd.live.status import Level


class Problems:
    """The problems of now by key, each with its level and a line that has the remedy; the newest comes last."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Level, str]] = {}

    def __contains__(self, key: str) -> bool:
        """Whether there is a problem of this key."""
        return key in self._known

    @property
    def level(self) -> Level:
        """The worst of them."""
        return max((level for level, _ in self._known.values()), default=Level.OK)

    @property
    def lines(self) -> tuple[str, ...]:
        """One for each."""
        return tuple(text for _, text in self._known.values())

    def note(self, key: str, level: Level, text: str) -> None:
        """Why the level is not OK, in place of what was noted before; without a text this reason is gone."""
        self.clear(key)
        if text:
            self._known[key] = level, text

    def clear(self, key: str) -> None:
        """This reason is gone, if it was one."""
        self._known.pop(key, None)
