"""Claims on groups: the consumers of a group share its messages in one way at a time, such as by leases."""

from __future__ import annotations

from collections.abc import Iterable

from minimq_common.errors import GroupConflict

#: The way of members with leases, as errors name it.
LEASES = "divide its queues"


class Claims:
    """The claims of one role: consumers claim their group for their way. Belongs to the event loop."""

    def __init__(self) -> None:
        self._ways: dict[str, str] = {}
        #: The noted topics of each consumer, by group.
        self._clients: dict[str, dict[str, set[str]]] = {}

    def check(self, group: str, way: str) -> None:
        """Raise `GroupConflict` while consumers share the messages of a group in another way."""
        claimed = self._ways.get(group, way)
        if claimed != way:
            raise GroupConflict(
                f"consumers of group {group!r} {claimed}, such as {min(self._clients[group])}: to consume or commit in "
                "another way, use another group, or wait until these are closed"
            )

    def add(self, group: str, client_id: str, way: str, topics: Iterable[str] = ()) -> None:
        """Claim a group for a consumer, and note topics that it reads. Idempotent. Raises `GroupConflict`."""
        self.check(group, way)
        self._ways[group] = way
        self._clients.setdefault(group, {}).setdefault(client_id, set()).update(topics)

    def remove(self, group: str, client_id: str, way: str) -> None:
        """End the claim of a consumer, if it has one."""
        if self._ways.get(group) == way:
            self._clients[group].pop(client_id, None)
            if not self._clients[group]:
                del self._clients[group], self._ways[group]

    def topics(self, group: str, client_id: str) -> list[str]:
        """Return the noted topics of a consumer, sorted."""
        return sorted(self._clients.get(group, {}).get(client_id, ()))

    def clients(self, group: str) -> list[str]:
        """Return the consumers of a group, sorted."""
        return sorted(self._clients.get(group, ()))
