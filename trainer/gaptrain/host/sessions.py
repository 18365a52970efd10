"""Connections of robots: who is at the other end of a route, and since when it is silent. Pure."""

from __future__ import annotations

from dataclasses import dataclass

IDLE_S = 2.0
SILENT_S = 10.0
# A candidate is offered again after this time without a verdict, in case the robot has lost it.
OFFER_S = 60.0


@dataclass
class Session:
    """One connection. Times are monotonic, s."""

    route: bytes
    robot: str
    heard_s: float
    sent_s: float = float("-inf")
    offered_s: float = float("-inf")
    asked_s: float = float("-inf")  # for evidence
    stopped_at: int | None = None  # sequence of a durable message that could not be applied

    def skips(self, sequence: int) -> bool:
        """Whether an earlier message is to be applied first: an answer to this one would acknowledge that one, too."""
        return self.stopped_at is not None and sequence > self.stopped_at

    def idle(self, now_s: float) -> bool:
        """Whether the robot has not been sent anything for a while."""
        return now_s - self.sent_s >= IDLE_S

    def offer_due(self, now_s: float) -> bool:
        """Whether to offer the pending candidate, if there is one."""
        return now_s - self.offered_s >= OFFER_S


class Sessions:
    """All connections, by route."""

    def __init__(self) -> None:
        """Begin without any."""
        self._by_route: dict[bytes, Session] = {}

    def heard(self, route: bytes, robot: str, now_s: float) -> tuple[Session, bool]:
        """The session of a route that something came from, and whether it is new."""
        session = self._by_route.get(route)
        if session is not None and session.robot == robot:
            session.heard_s = now_s
            return session, False
        session = self._by_route[route] = Session(route, robot, now_s)
        return session, True

    def all(self) -> list[Session]:
        """Every session."""
        return list(self._by_route.values())

    def forget(self, route: bytes) -> None:
        """End a session."""
        self._by_route.pop(route, None)

    def only(self, session: Session) -> None:
        """End the other sessions of the same robot: it has connected again."""
        for other in self.all():
            if other.robot == session.robot and other is not session:
                self.forget(other.route)

    def silent(self, now_s: float) -> list[Session]:
        """End sessions that are silent for too long, and return those."""
        ended = [s for s in self._by_route.values() if now_s - s.heard_s > SILENT_S]
        for session in ended:
            self.forget(session.route)
        return ended
