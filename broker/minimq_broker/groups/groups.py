"""The members of consumer groups. Each member list has a version, so that members know which one is newer."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from minimq_common.errors import GroupConflict, SystemBusy
from minimq_common.model import MessageQueue
from minimq_common.wire.protocol_bounds import MAX_AGREED

Held = tuple[MessageQueue, ...]

#: Held queues remembered per group and in total, as each member list contains them. The rest is ignored and allocated
#: like queues that no member holds.
MAX_HELD_OF_GROUP = 50_000
MAX_HELD = 400_000
#: Members of one group, including rejected ones.
MAX_MEMBERS = 1_000
#: Characters of topics and filters that all members subscribe to, rejected ones included; each topic counts as further
#: ones.
MAX_SUBSCRIBED = 128 << 20
_TOPIC_CHARACTERS = 64


class GroupConfig(NamedTuple):
    """The shared part of the configuration, of one member or of a whole group."""

    filters: tuple[tuple[str, str], ...]
    allocation: str
    handover_timeout_ms: int = 0

    @property
    def topics(self) -> list[str]:
        return [topic for topic, _ in self.filters]


def check_agreement(group: str, theirs: GroupConfig, own: GroupConfig) -> None:
    """Raise `GroupConflict` if the configuration of a member conflicts with that of others in its group."""
    if own.allocation != theirs.allocation:
        raise GroupConflict(
            f"group {group!r} allocates queues by {theirs.allocation!r}, this member by {own.allocation!r}: "
            "all members of a group need the same strategy"
        )
    filters = dict(theirs.filters)
    for topic, filter_of_member in own.filters:
        filter_of_group = filters.get(topic, filter_of_member)
        if filter_of_member != filter_of_group:
            raise GroupConflict(
                f"group {group!r} filters topic {topic!r} by {filter_of_group!r}, this member by {filter_of_member!r}: "
                "all members of a group need the same filters"
            )
    if own.handover_timeout_ms != theirs.handover_timeout_ms:
        raise GroupConflict(
            f"group {group!r} has a handover timeout of {theirs.handover_timeout_ms / 1000:g} s, "
            f"this member one of {own.handover_timeout_ms / 1000:g} s: "
            "all members of a group need the same handover_timeout_s"
        )


class Members(NamedTuple):
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
        #: Members rejected for a conflict, by group.
        self._rejected: dict[str, dict[str, GroupConfig]] = {}
        self._quota = GroupQuota()

    # ---- join and leave -------------------------------------------------------------------------

    def join(
        self, group: str, client_id: str, config: GroupConfig, held: Iterable[MessageQueue] = (), *, now: float = 0.0
    ) -> Members | None:
        """Add a member, or change its configuration; return the list if it changed."""
        holding = self._remembered_of(group, client_id, held)
        self._forget_rejected(group, client_id)
        self._quota.check(group, client_id, config)
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
                self._quota.put(group, client_id, config)
            self._rejected.setdefault(group, {})[client_id] = config
            raise
        self._quota.put(group, client_id, config)
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
        """Remove a member, also a rejected one. Return the member list if it changed."""
        self._forget_rejected(group, client_id)
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
        """Return the rejected members that would be accepted now, each once unless it is rejected again."""
        rejected = self._rejected.get(group, {}).items()
        admitted = [client_id for client_id, config in rejected if self._admits(group, client_id, config, now)]
        for client_id in admitted:
            self._forget_rejected(group, client_id)
        return admitted

    def end_recovery(self) -> list[str]:
        """Drop the agreements from before the start; return the groups whose members or rejected members it affects."""
        returned = self._remembered.keys() & self._groups.keys()
        self._remembered.clear()
        for group in returned:
            self._summarize(group, self._groups[group])
        return sorted(returned | self._rejected.keys())

    # ---- lookups --------------------------------------------------------------------------------

    def is_member(self, group: str, client_id: str) -> bool:
        return self._member(group, client_id) is not None

    def holds(self, group: str, client_id: str, queue: MessageQueue) -> bool:
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
        return len(self._groups)

    def names(self) -> list[str]:
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

    def _forget_rejected(self, group: str, client_id: str) -> None:
        rejected = self._rejected.get(group, {})
        if rejected.pop(client_id, None) is not None and self._member(group, client_id) is None:
            self._quota.take(group, client_id)
        if not rejected:
            self._rejected.pop(group, None)

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


def check_size(group: str, filters: Collection[tuple[str, str]]) -> None:
    """Raise `SystemBusy` if topics and filters of a group, over all its members, are too long."""
    characters = sum(len(topic) + len(text) for topic, text in filters)
    if characters > MAX_AGREED:
        raise SystemBusy(
            f"topics and filters of group {group!r} have {characters} characters, the limit is {MAX_AGREED}: "
            "write shorter filters, or divide the topics among several groups",
            limit="filters",
        )


class GroupQuota:
    """Limits members and their subscriptions, rejected members included. Used by one thread."""

    def __init__(self) -> None:
        #: The size of the subscriptions of each member, by group and client id.
        self._sizes: dict[str, dict[str, int]] = {}
        self._total = 0

    def check(self, group: str, client_id: str, config: GroupConfig) -> None:
        """Raise `SystemBusy` if a member cannot be added, or cannot change its configuration."""
        members = self._sizes.get(group, {})
        if client_id not in members and len(members) >= MAX_MEMBERS:
            raise SystemBusy(
                f"group {group!r} has {len(members)} members, the limit is {MAX_MEMBERS}: "
                "stop some, or let several threads handle the messages of one member",
                limit="members",
            )
        more = _size(config) - members.get(client_id, 0)
        if more > 0 and self._total + more > MAX_SUBSCRIBED:
            raise SystemBusy(
                f"members of this broker subscribe to topics with {self._total:,} characters of names and filters, the "
                f"limit is {MAX_SUBSCRIBED:,}: subscribe to fewer, write shorter filters, or stop members",
                limit="subscriptions",
            )

    def put(self, group: str, client_id: str, config: GroupConfig) -> None:
        self.take(group, client_id)
        size = self._sizes.setdefault(group, {})[client_id] = _size(config)
        self._total += size

    def take(self, group: str, client_id: str) -> None:
        members = self._sizes.get(group, {})
        self._total -= members.pop(client_id, 0)
        if not members:
            self._sizes.pop(group, None)


def _size(config: GroupConfig) -> int:
    return sum(_TOPIC_CHARACTERS + len(topic) + len(text) for topic, text in config.filters)
