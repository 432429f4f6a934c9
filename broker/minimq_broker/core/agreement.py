"""The configuration that the members of a consumer group must share: allocation strategy, filters, hold time.

Members may subscribe to different topics: a deployment that adds a topic replaces one member at a time.
"""

from __future__ import annotations

from typing import NamedTuple

from minimq_common.errors import GroupConflict
from minimq_common.names import retry_topic


class GroupConfig(NamedTuple):
    """The shared part of the configuration, of one member or of a whole group."""

    filters: tuple[tuple[str, str], ...]
    allocation: str
    hold_ms: int = 0

    @property
    def topics(self) -> list[str]:
        """The subscribed topics, sorted."""
        return [topic for topic, _ in self.filters]


def check_agreement(group: str, theirs: GroupConfig, own: GroupConfig) -> None:
    """Raise `GroupConflict` if the configuration of a member conflicts with that of others in its group."""
    if own.allocation != theirs.allocation:
        raise GroupConflict(
            f"group {group!r} allocates queues by {theirs.allocation!r}, this member by {own.allocation!r}: "
            "all members of a group need the same strategy"
        )
    if (retry_topic(group) in own.topics) != (retry_topic(group) in theirs.topics):
        raise GroupConflict(
            f"group {group!r} has {_kind(group, theirs)}, this member is one of {_kind(group, own)}: "
            "all members of a group need to be of one kind"
        )
    filters = dict(theirs.filters)
    for topic, filter_of_member in own.filters:
        filter_of_group = filters.get(topic, filter_of_member)
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


def _kind(group: str, agreement: GroupConfig) -> str:
    return "push consumers" if retry_topic(group) in agreement.topics else "pull consumers"
