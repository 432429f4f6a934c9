"""Expiry of consumer groups that nobody uses any more."""

from __future__ import annotations

from dataclasses import dataclass

from minimq_broker.core.state import State

_DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class GroupExpiry:
    """Time for which a group without members and commits is kept."""

    idle_ms: int = 0
    #: When the broker began to look, in ms since 1970: nobody could use a group while it was away, so none is deleted
    #: before it was warned of.
    since_ms: int = 0

    @property
    def notice_ms(self) -> int:
        """Time between the warning and the deletion of a group, in ms: a day, or a tenth of a time below ten days."""
        return min(_DAY_MS, self.idle_ms // 10)

    def expires_ms(self, state: State, group: str, *, has_members: bool) -> int | None:
        """Return when a group is deleted unless it is used before, in ms since 1970; None when it is not idle.

        A group whose agreement is recorded has members, or had some that no start of the broker has given up yet. Of a
        group that is not in `State.used` it is not known how long it has been idle.
        """
        used_ms = state.used.get(group)
        if not self.idle_ms or has_members or used_ms is None or group in state.agreements:
            return None
        return max(used_ms + self.idle_ms, self.since_ms + self.notice_ms)
