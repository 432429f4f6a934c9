"""Expiry of unused consumer groups."""

from __future__ import annotations

from dataclasses import dataclass

from minimq_broker.state.state import State

_DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class GroupExpiry:
    """The time for which a group without members and commits is kept."""

    #: 0: forever.
    idle_ms: int = 0
    #: When the broker started, in ms since 1970. Groups could not be used before, so all stay for up to a day.
    since_ms: int = 0

    def expires_ms(self, state: State, group: str, *, has_members: bool) -> int | None:
        """Return when an idle group will be deleted, in ms since 1970; None if it is not idle."""
        used_ms = state.used.get(group)
        if not self.idle_ms or has_members or used_ms is None or group in state.agreements:
            return None
        return max(used_ms + self.idle_ms, self.since_ms + min(_DAY_MS, self.idle_ms // 10))
