"""Who is in which consumer group. The member list has a version, so that members know which one is newer.

What the members agree on outlives a start of the broker for a while: otherwise a member that the others contradict
could be the first to come back, and they would be the ones that are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from minimq_common.errors import GroupConflict
from minimq_common.model import MessageQueue

Held = tuple[MessageQueue, ...]


class Agreement(NamedTuple):
    """What all members of a group have to say alike.

    Attributes:
        filters: what the messages of each topic are filtered by, by topic, sorted: these are the subscriptions.
        allocation: name of the allocation strategy.
        hold_ms: for how long a queue is held for its former owner.
        by_server: whether members ask the deciding broker for their shares instead of computing them.
    """

    filters: tuple[tuple[str, str], ...]
    allocation: str
    hold_ms: int = 0
    by_server: bool = False

    @property
    def topics(self) -> list[str]:
        """The topics that the group subscribes to, sorted."""
        return [topic for topic, _ in self.filters]


class Remembered(NamedTuple):
    """What groups agreed on before a start.

    Attributes:
        until: when it does not count any more unless a member has come that agrees.
        agreements: by group.
    """

    until: float = -math.inf
    agreements: Mapping[str, Agreement] = MappingProxyType({})


class Members(NamedTuple):
    """The members of a group.

    Attributes:
        group: name of the group.
        version: larger than that of any list before.
        client_ids: who is in it, sorted.
        held: what each of them held when this version began, on all brokers; those that held nothing are left out.
    """

    group: str
    version: int
    client_ids: tuple[str, ...]
    held: Mapping[str, Held]


class _Group:
    def __init__(self, agreement: Agreement) -> None:
        self.agreement = agreement
        self.version = 0
        #: What each member holds now, as far as it has said.
        self.holding: dict[str, Held] = {}
        #: What each held when the version began.
        self.frozen: dict[str, Held] = {}


class GroupTable:
    """All groups that one broker sees. Used by one thread; a changed member list is returned.

    Args:
        first_version: larger than any version of a run before.
        remembered: what counts for groups though they have no members yet.
    """

    def __init__(self, first_version: int, remembered: Remembered = Remembered()) -> None:  # noqa: B008 - a value
        self._remembered_until = remembered.until
        self._remembered = dict(remembered.agreements)
        self._groups: dict[str, _Group] = {}
        self._version = first_version

    def join(
        self, group: str, client_id: str, agreement: Agreement, held: Iterable[MessageQueue] = (), *, now: float = 0.0
    ) -> Members | None:
        """Add a member, or change what it subscribes to: a lone member may. Returns the list if it changed.

        What the member holds is remembered in any case; alone it makes no new version.

        Raises:
            GroupConflict: the other members say something else than this one, or did until a moment ago. Nothing has
                changed then.
        """
        entry = self._groups.get(group)
        if entry is not None and entry.holding.keys() - {client_id}:
            _check_agreement(group, entry.agreement, agreement)
        if entry is None:
            if group in self._remembered and now < self._remembered_until:
                _check_agreement(group, self._remembered[group], agreement)
            self._remembered.pop(group, None)
            entry = self._groups[group] = _Group(agreement)
        is_same = client_id in entry.holding and entry.agreement == agreement
        entry.agreement = agreement
        entry.holding[client_id] = tuple(sorted(set(held)))
        return None if is_same else self._changed(group, entry)

    def hold(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Remember what a member holds now, for the next version; of others nothing is remembered."""
        entry = self._groups.get(group)
        if entry is not None and client_id in entry.holding:
            entry.holding[client_id] = tuple(sorted(set(queues)))

    def leave(self, group: str, client_id: str) -> Members | None:
        """Remove a member. Returns the list if it changed."""
        entry = self._groups.get(group)
        if entry is None or entry.holding.pop(client_id, None) is None:
            return None
        if not entry.holding:
            del self._groups[group]
        return self._changed(group, entry)

    def is_member(self, group: str, client_id: str) -> bool:
        """Tell whether a client is in a group."""
        entry = self._groups.get(group)
        return entry is not None and client_id in entry.holding

    def holds(self, group: str, client_id: str, queue: MessageQueue) -> bool:
        """Tell whether a member has said that it holds a queue now."""
        entry = self._groups.get(group)
        return entry is not None and queue in entry.holding.get(client_id, ())

    def agreement(self, group: str) -> Agreement | None:
        """Return what the members of a group agree on; None when there are no members."""
        entry = self._groups.get(group)
        return entry.agreement if entry else None

    def names(self) -> list[str]:
        """Return the names of all groups that have members."""
        return list(self._groups)

    def groups_of(self, client_id: str) -> list[str]:
        """Return the groups that a client is in."""
        return [group for group, entry in self._groups.items() if client_id in entry.holding]

    def members(self, group: str) -> Members:
        """Return the members of a group; nobody when there is no such group."""
        entry = self._groups.get(group)
        return _members(group, entry) if entry else Members(group, 0, (), {})

    def _changed(self, group: str, entry: _Group) -> Members:
        self._version += 1
        entry.version = self._version
        entry.frozen = {member: held for member, held in sorted(entry.holding.items()) if held}
        return _members(group, entry)


def _members(group: str, entry: _Group) -> Members:
    return Members(group, entry.version, tuple(sorted(entry.holding)), entry.frozen)


def _check_agreement(group: str, theirs: Agreement, own: Agreement) -> None:
    if own.allocation != theirs.allocation:
        raise GroupConflict(
            f"group {group!r} allocates queues by {theirs.allocation!r}, this member by {own.allocation!r}: "
            "all members of a group need the same strategy"
        )
    if own.by_server != theirs.by_server:
        raise GroupConflict(
            f"group {group!r} has its queues assigned by {_assigner(theirs)}, this member by {_assigner(own)}: "
            "all members of a group need the same assignment"
        )
    if own.topics != theirs.topics:
        raise GroupConflict(
            f"group {group!r} subscribes to {theirs.topics}, this member to {own.topics}: "
            "all members of a group need the same subscriptions"
        )
    for (topic, filter_of_group), (_, filter_of_member) in zip(theirs.filters, own.filters, strict=True):
        if filter_of_member != filter_of_group:
            raise GroupConflict(
                f"group {group!r} filters topic {topic!r} by {filter_of_group!r}, this member by {filter_of_member!r}: "
                "all members of a group need the same filters"
            )
    if own.hold_ms != theirs.hold_ms:
        raise GroupConflict(
            f"group {group!r} holds queues for {theirs.hold_ms} ms after a release, this member for {own.hold_ms} ms: "
            "all members of a group need the same hold time"
        )


def _assigner(agreement: Agreement) -> str:
    return "the server" if agreement.by_server else "each client itself"
