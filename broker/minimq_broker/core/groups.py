"""The members of consumer groups. Each member list has a version, so that members know which one is newer.

A member whose configuration conflicts with the others is refused. It is remembered, so that the broker can notify it
once the conflict is over.

After a restart of the broker, the former agreement of a group stays valid for a while. Otherwise the first member to
return could be one in conflict with all others, and these would be refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from minimq_broker.core.agreement import GroupConfig, check_agreement
from minimq_broker.core.group_room import GroupQuota, Share, check_size
from minimq_common.errors import GroupConflict
from minimq_common.model import MessageQueue

Held = tuple[MessageQueue, ...]

#: Held queues remembered per group and in total, as each member list contains them. The rest is ignored and allocated
#: like queues that no member holds.
MAX_HELD_OF_GROUP = 50_000
MAX_HELD = 400_000


class Members(NamedTuple):
    """The member list of a group."""

    group: str
    #: Larger than that of any earlier list.
    version: int
    client_ids: tuple[str, ...]
    held: Mapping[str, Held]
    #: Sorted topics of each member; empty while all subscribe to the same.
    topics: Mapping[str, tuple[str, ...]] = MappingProxyType({})


class _Member(NamedTuple):
    config: GroupConfig
    #: The queues that it has reported to hold: an ordered set.
    holding: Mapping[MessageQueue, None]


class _Group:
    def __init__(self) -> None:
        self.members: dict[str, _Member] = {}
        self.version = 0
        #: Number of queues that the members hold.
        self.held = 0
        self.agreement: GroupConfig | None = None
        #: See `Members.topics`.
        self.topics: dict[str, tuple[str, ...]] = {}
        #: The queues that each member held when the current version was made.
        self.frozen: dict[str, Held] = {}


class GroupTable:
    """All groups with members at one broker. Used by one thread. Methods return a changed member list."""

    def __init__(
        self,
        first_version: int,
        remembered_until: float = -math.inf,
        remembered: Mapping[str, GroupConfig] = MappingProxyType({}),
    ) -> None:
        #: Agreements from before the start of the broker, and until when they count for groups without members.
        self.remembered_until, self._remembered = remembered_until, dict(remembered)
        self._groups: dict[str, _Group] = {}
        self._version = first_version
        #: Number of held queues that are remembered, of all groups.
        self._held = 0
        #: Members refused for a conflict, by group.
        self._refused: dict[str, dict[str, GroupConfig]] = {}
        self._quota = GroupQuota()

    # ---- join and leave -------------------------------------------------------------------------

    def join(
        self, group: str, client_id: str, config: GroupConfig, held: Iterable[MessageQueue] = (), *, now: float = 0.0
    ) -> Members | None:
        """Add a member, or change its configuration; return the list if it changed.

        A lone member may change everything. Raises `GroupConflict`, `SystemBusy`.
        """
        holding = self._remembered_of(group, client_id, held)
        self._forget_refused(group, client_id)
        share = Share.of(config)
        self._quota.check(group, client_id, share)
        known = self.agreement(group)
        check_size(group, {*config.filters, *(known.filters if known is not None else ())})
        former = self._member(group, client_id)
        if former is not None and former.config == config:
            self._put(self._groups[group], client_id, _Member(config, holding))
            return None
        if former is not None and former.config == known:  # its own configuration was all of the agreement
            self._remembered.pop(group, None)
        try:
            self._check(group, client_id, config, now)
        except GroupConflict:
            if former is None:
                self._quota.put(group, client_id, share)
            self._refused.setdefault(group, {})[client_id] = config
            raise
        self._quota.put(group, client_id, share)
        entry = self._groups.setdefault(group, _Group())
        self._put(entry, client_id, _Member(config, holding))
        return self._changed(group, entry)

    def hold(self, group: str, client_id: str, queues: Iterable[MessageQueue], *, adds: bool = False) -> None:
        """Set, or add to, the queues that a member holds, for the next member list. Ignores non-members."""
        member = self._member(group, client_id)
        if member is not None:
            holding = self._remembered_of(group, client_id, dict.fromkeys((*(member.holding if adds else ()), *queues)))
            self._put(self._groups[group], client_id, member._replace(holding=holding))

    def leave(self, group: str, client_id: str) -> Members | None:
        """Remove a member, also a refused one. Return the member list if it changed."""
        self._forget_refused(group, client_id)
        entry = self._groups.get(group)
        if entry is None or client_id not in entry.members:
            return None
        self._put(entry, client_id, None)
        self._quota.take(group, client_id)
        if not entry.members:
            del self._groups[group]
            self._remembered.pop(group, None)
        return self._changed(group, entry)

    def admissible(self, group: str, now: float = 0.0) -> list[str]:
        """Return the refused members that would be accepted now, each once unless it is refused again."""
        refused = self._refused.get(group, {}).items()
        admitted = [client_id for client_id, config in refused if self._admits(group, client_id, config, now)]
        for client_id in admitted:
            self._forget_refused(group, client_id)
        return admitted

    def end_recovery(self) -> list[str]:
        """Drop the agreements from before the start; return the groups whose members or refused members it affects."""
        returned = self._remembered.keys() & self._groups.keys()
        self._remembered.clear()
        for group in returned:
            self._summarize(group, self._groups[group])
        return sorted(returned | self._refused.keys())

    # ---- lookups --------------------------------------------------------------------------------

    def is_member(self, group: str, client_id: str) -> bool:
        """Return whether a client is a member of a group."""
        return self._member(group, client_id) is not None

    def holds(self, group: str, client_id: str, queue: MessageQueue) -> bool:
        """Return whether a member has reported that it holds a queue."""
        member = self._member(group, client_id)
        return member is not None and queue in member.holding

    def agreement(self, group: str) -> GroupConfig | None:
        """Return the agreement of a group, for a while with topics from before a start; None without members."""
        entry = self._groups.get(group)
        return entry.agreement if entry else None

    def topics(self, group: str, client_id: str) -> list[str]:
        """Return the sorted topics of a member; none if it is not in the group."""
        member = self._member(group, client_id)
        return member.config.topics if member else []

    @property
    def count(self) -> int:
        """Number of groups that have members."""
        return len(self._groups)

    def names(self) -> list[str]:
        """Return the names of all groups that have members."""
        return list(self._groups)

    def members(self, group: str) -> Members:
        """Return the members of a group; an empty list if there is no such group."""
        entry = self._groups.get(group)
        return _members(group, entry) if entry else Members(group, 0, (), {})

    # ---- helpers --------------------------------------------------------------------------------

    def _remembered_of(self, group: str, client_id: str, held: Iterable[MessageQueue]) -> Mapping[MessageQueue, None]:
        entry, member = self._groups.get(group), self._member(group, client_id)
        own = len(member.holding) if member else 0
        room = own + min(MAX_HELD_OF_GROUP - (entry.held if entry else 0), MAX_HELD - self._held)
        return dict.fromkeys(sorted(set(islice(held, room))))

    def _put(self, entry: _Group, client_id: str, member: _Member | None) -> None:
        former = entry.members.pop(client_id, None)
        if member is not None:
            entry.members[client_id] = member
        more = (len(member.holding) if member else 0) - (len(former.holding) if former else 0)
        entry.held += more
        self._held += more

    def _member(self, group: str, client_id: str) -> _Member | None:
        entry = self._groups.get(group)
        return entry.members.get(client_id) if entry else None

    def _check(self, group: str, client_id: str, own: GroupConfig, now: float) -> None:
        entry = self._groups.get(group)
        others = {member.config for name, member in entry.members.items() if name != client_id} if entry else set()
        for theirs in sorted(others):
            check_agreement(group, theirs, own)
        if group in self._remembered and now < self.remembered_until:
            check_agreement(group, self._remembered[group], own)

    def _admits(self, group: str, client_id: str, config: GroupConfig, now: float) -> bool:
        try:
            self._check(group, client_id, config, now)
        except GroupConflict:
            return False
        return True

    def _forget_refused(self, group: str, client_id: str) -> None:
        refused = self._refused.get(group, {})
        if refused.pop(client_id, None) is not None and self._member(group, client_id) is None:
            self._quota.take(group, client_id)
        if not refused:
            self._refused.pop(group, None)

    def _changed(self, group: str, entry: _Group) -> Members:
        self._version += 1
        entry.version = self._version
        self._summarize(group, entry)
        entry.frozen = {name: tuple(member.holding) for name, member in sorted(entry.members.items()) if member.holding}
        return _members(group, entry)

    def _summarize(self, group: str, entry: _Group) -> None:
        agreements = [member.config for member in entry.members.values()]
        filters = {item for agreement in set(agreements) for item in agreement.filters}
        if group in self._remembered:
            filters.update(self._remembered[group].filters)
        entry.agreement = agreements[0]._replace(filters=tuple(sorted(filters))) if agreements else None
        topics = {name: tuple(self.topics(group, name)) for name in sorted(entry.members)}
        entry.topics = topics if len(set(topics.values())) > 1 else {}


def _members(group: str, entry: _Group) -> Members:
    return Members(group, entry.version, tuple(sorted(entry.members)), entry.frozen, entry.topics)
