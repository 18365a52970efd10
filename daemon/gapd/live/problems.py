"""Why the level of a robot is not OK. Pure."""

from __future__ import annotations

from gapd.live.events import Decided, Diverged, EscalationOver, Judged
from gapd.live.memory import Memory
from gapd.live.pipeline import Happening
from gapd.live.status import Level
from gapd.live.trial_period import Return


class Problems:
    """The problems of now by key, each with its level and a line that has the remedy; the newest comes last."""

    def __init__(self, memory: Memory) -> None:
        """What an earlier process left to do is still to be done."""
        self._known: dict[str, tuple[Level, str]] = {}
        level, sentence = memory.verdict
        self.note("decision", Level[level], sentence)

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

    def heard(self, event: Happening) -> None:
        """What the pipeline says about the robot's values."""
        match event:
            case Decided():
                decision = event.report.decision
                level = Level[decision.level]
                self.note("decision", level, decision.sentence if level else "")
                self.clear("return")
            case Diverged():
                self.note("decision", Level.ERROR, f"{event.reason}; {event.remedy}")
            case EscalationOver():
                self.clear("decision")
            case Return():
                self.note("return", Level.WARN, f"the last correction was taken back: {event.check.reason}")
            case Judged() if event.check.verdict == "accepted":
                self.clear("decision")
