"""The consumers that pop, by group, and their filters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from minimq_broker.groups.client_runs import is_newer
from minimq_common.errors import GroupConflict


@dataclass(slots=True)
class _Subscription:
    expression: str
    tags: frozenset[int]
    clients: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _PopGroup:
    #: How often each consumer is counted.
    clients: Counter[str] = field(default_factory=Counter)
    #: Number of open streams. Consumers without one may still return within their grace period.
    streams: Counter[str] = field(default_factory=Counter)
    #: Consumers with a stream. Replaced as a whole, as the writer's thread reads it.
    present: frozenset[str] = frozenset()
    topics: dict[str, _Subscription] = field(default_factory=dict)
    owners: dict[str, Owner] = field(default_factory=dict)


class Owner(NamedTuple):
    """The user of a client id, and the newest run of its consumer."""

    user: str
    run: int


class WorkQueueMembers:
    """Consumers that pop, by group. A consumer is counted: it stays until it has left as often as it came."""

    def __init__(self) -> None:
        self._groups: dict[str, _PopGroup] = {}

    def check_owner(self, group: str, client_id: str, user: str, run: int) -> bool:
        """Return whether an older run has the client id. Raises `Fenced`; `GroupConflict` if another user has it."""
        known = self._groups.get(group)
        owner = known.owners.get(client_id) if known is not None else None
        if owner is None:
            return False
        if owner.user != user:
            raise GroupConflict(
                f"client id {client_id!r} is in use by another client in group {group!r}: give each its own id"
            )
        return is_newer(run, owner.run, client_id)

    def came(self, group: str, client_id: str, user: str = "", run: int = 0) -> None:
        known = self._groups.setdefault(group, _PopGroup())
        known.owners[client_id] = Owner(user, run)
        known.streams[client_id] += 1
        known.present = frozenset(known.streams)
        known.clients[client_id] += 1

    def parted(self, group: str, client_id: str) -> None:
        """Note that a stream of a consumer ended; the consumer still counts."""
        known = self._groups[group]
        known.streams[client_id] -= 1
        known.streams += Counter()  # drops those at 0
        known.present = frozenset(known.streams)

    def is_offline(self, group: str, client_id: str) -> bool:
        """Return whether all streams of a consumer have ended, but it still counts."""
        known = self._groups.get(group)
        return known is not None and client_id in known.clients.keys() - known.streams.keys()

    def present(self, group: str) -> frozenset[str]:
        known = self._groups.get(group)
        return known.present if known is not None else frozenset()

    def subscribe(
        self, group: str, client_id: str, topic: str, expression: str, tags: frozenset[int]
    ) -> frozenset[int]:
        """Set the filter of a consumer for a topic; return the hashes of the wanted tags. Raises `GroupConflict`."""
        topics = self._groups[group].topics
        known = topics.get(topic)
        differs = known is not None and (known.expression, known.tags) != (expression, tags)
        if known is None or (differs and not known.clients - {client_id}):
            known, differs = _Subscription(expression, tags), False
            topics[topic] = known
        if differs:
            raise GroupConflict(
                f"consumers of group {group!r} filter topic {topic!r} by {known.expression!r}, this one by "
                f"{expression!r}: all consumers of a group need the same filter of a topic"
            )
        known.clients.add(client_id)
        return known.tags

    def went(self, group: str, client_id: str) -> bool:
        """Note that a consumer left once; return whether it no longer counts."""
        known = self._groups[group]
        known.clients[client_id] -= 1
        if known.clients[client_id]:
            return False
        del known.clients[client_id]
        known.owners.pop(client_id, None)
        for topic, subscription in [*known.topics.items()]:
            subscription.clients.discard(client_id)
            if not subscription.clients:
                del known.topics[topic]
        if not known.clients:
            del self._groups[group]
        return True

    def has_some(self, group: str) -> bool:
        return group in self._groups

    def has(self, group: str, client_id: str) -> bool:
        known = self._groups.get(group)
        return known is not None and client_id in known.clients
