"""Who is in which consumer group. The member list has a version, so that members know which one is newer."""

from __future__ import annotations

from typing import NamedTuple

from minimq_common.errors import GroupConflict


class Members(NamedTuple):
    """The sorted members of a group."""

    group: str
    version: int
    client_ids: tuple[str, ...]


class _Group:
    def __init__(self, allocation: str) -> None:
        self.allocation = allocation
        self.version = 0
        self.topics: dict[str, frozenset[str]] = {}


class GroupTable:
    """All groups that one broker sees. Used by one thread; a changed member list is returned.

    Args:
        first_version: larger than any version of a run before.
    """

    def __init__(self, first_version: int) -> None:
        self._groups: dict[str, _Group] = {}
        self._version = first_version

    def join(self, group: str, client_id: str, topics: frozenset[str], allocation: str) -> Members | None:
        """Add a member, or change what it subscribes to. Returns the list if it changed.

        Raises:
            GroupConflict: the other members use another allocation strategy or subscribe to other topics.
        """
        entry = self._groups.get(group)
        if entry is None:
            entry = self._groups[group] = _Group(allocation)
        others = {topic for member, topics in entry.topics.items() if member != client_id for topic in topics}
        if others and allocation != entry.allocation:
            raise GroupConflict(
                f"group {group!r} allocates queues by {entry.allocation!r}, this member by {allocation!r}: "
                "all members of a group need the same strategy"
            )
        if others and others != topics:
            raise GroupConflict(
                f"group {group!r} subscribes to {sorted(others)}, this member to {sorted(topics)}: "
                "all members of a group need the same subscriptions"
            )
        entry.allocation = allocation
        if entry.topics.get(client_id) == topics:
            return None
        entry.topics[client_id] = topics
        return self._changed(group, entry)

    def leave(self, group: str, client_id: str) -> Members | None:
        """Remove a member. Returns the list if it changed."""
        entry = self._groups.get(group)
        if entry is None or entry.topics.pop(client_id, None) is None:
            return None
        if not entry.topics:
            del self._groups[group]
        return self._changed(group, entry)

    def is_member(self, group: str, client_id: str) -> bool:
        """Tell whether a client is in a group."""
        entry = self._groups.get(group)
        return entry is not None and client_id in entry.topics

    def groups_of(self, client_id: str) -> list[str]:
        """Return the groups that a client is in."""
        return [group for group, entry in self._groups.items() if client_id in entry.topics]

    def members(self, group: str) -> Members:
        """Return the members of a group; nobody when there is no such group."""
        entry = self._groups.get(group)
        return Members(group, entry.version, tuple(sorted(entry.topics))) if entry else Members(group, 0, ())

    def _changed(self, group: str, entry: _Group) -> Members:
        self._version += 1
        entry.version = self._version
        return Members(group, entry.version, tuple(sorted(entry.topics)))
