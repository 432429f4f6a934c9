"""Limits on the members of groups and their subscriptions, which are kept in memory and sent to every member."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from minimq_broker.core.agreement import GroupConfig
from minimq_common.errors import SystemBusy
from minimq_common.wire.protocol_bounds import MAX_AGREED

#: Members of one group, including refused ones.
MAX_MEMBERS = 1_000
#: Groups that one client id is in: normally just one, as each consumer has its own client id.
MAX_GROUPS_OF_CLIENT = 64


class Share(NamedTuple):
    """The subscriptions of one member, or their sum over several members."""

    topics: int = 0
    characters: int = 0

    @classmethod
    def of(cls, agreement: GroupConfig) -> Share:
        """Return the share of a member with this configuration."""
        return cls(len(agreement.filters), sum(len(topic) + len(text) for topic, text in agreement.filters))

    def changed(self, before: Share, after: Share) -> Share:
        """Return this sum after the share of one member changed."""
        return Share(*(total - old + new for total, old, new in zip(self, before, after, strict=True)))


#: Limits on the sum of one group, and of all groups.
OF_GROUP = Share(topics=65_536, characters=16 << 20)
OF_BROKER = Share(topics=1_000_000, characters=64 << 20)

_NONE = Share()
_REMEDIES = Share._fields, ("subscribe to fewer", "write shorter filters")


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
    """Limits the shares of all members, refused ones included. Used by one thread."""

    def __init__(self) -> None:
        self._shares: dict[str, dict[str, Share]] = {}
        self._of_group: dict[str, Share] = {}
        self._of_broker = _NONE
        self._groups_of: dict[str, int] = {}

    def check(self, group: str, client_id: str, share: Share) -> None:
        """Raise `SystemBusy` if a member cannot be added, or its share cannot change to `share`."""
        shares = self._shares.get(group, {})
        if client_id not in shares:
            if len(shares) >= MAX_MEMBERS:
                raise SystemBusy(
                    f"group {group!r} has {len(shares)} members, the limit is {MAX_MEMBERS}: "
                    "stop some, or let several threads handle the messages of one member",
                    limit="members",
                )
            if self._groups_of.get(client_id, 0) >= MAX_GROUPS_OF_CLIENT:
                raise SystemBusy(
                    f"client {client_id!r} is in {self._groups_of[client_id]} groups, the limit is "
                    f"{MAX_GROUPS_OF_CLIENT}: give each consumer its own client id",
                    limit="client-groups",
                )
        before = shares.get(client_id, _NONE)
        wholes = (
            (f"group {group!r}", self._of_group.get(group, _NONE), OF_GROUP),
            ("this broker", self._of_broker, OF_BROKER),
        )
        for whose, total, most in wholes:
            after = total.changed(before, share)
            for what, had, has, limit, remedy in zip(_REMEDIES[0], total, after, most, _REMEDIES[1], strict=True):
                if has > max(limit, had):
                    raise SystemBusy(
                        f"members of {whose} have {has} {what} in all, the limit is {limit}: {remedy}, or stop members",
                        limit="subscriptions",
                    )

    def put(self, group: str, client_id: str, share: Share) -> None:
        """Set the share of a member."""
        shares = self._shares.setdefault(group, {})
        if client_id not in shares:
            self._groups_of[client_id] = self._groups_of.get(client_id, 0) + 1
        self._change(group, shares.get(client_id, _NONE), share)
        shares[client_id] = share

    def take(self, group: str, client_id: str) -> None:
        """Remove a member."""
        shares = self._shares.get(group, {})
        share = shares.pop(client_id, None)
        if share is None:
            return
        self._change(group, share, _NONE)
        if not shares:
            del self._shares[group], self._of_group[group]
        self._groups_of[client_id] -= 1
        if not self._groups_of[client_id]:
            del self._groups_of[client_id]

    def _change(self, group: str, before: Share, after: Share) -> None:
        self._of_group[group] = self._of_group.get(group, _NONE).changed(before, after)
        self._of_broker = self._of_broker.changed(before, after)
