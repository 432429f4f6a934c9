"""Member lists of consumer groups, and the brokers whose lists count: by this brokers and members agree. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


class MemberList(NamedTuple):
    """The members of a group as one broker sees them."""

    client_ids: Collection[str]
    #: What each of them subscribes to; empty while that is the same for all.
    topics: Mapping[str, Collection[str]]

    def subscribers(self, topic: str) -> tuple[str, ...]:
        """Return who subscribes to a topic that somebody subscribes to, sorted."""
        return tuple(sorted(name for name in self.client_ids if not self.topics or topic in self.topics.get(name, ())))


def deciders(carriers: Mapping[str, Collection[str]], *, same_topics: bool) -> dict[str, str]:
    """Return, by topic, the broker by whose list of members its queues are divided."""
    first = {topic: min(brokers) for topic, brokers in carriers.items()}
    return dict.fromkeys(first, min(first.values(), default="")) if same_topics else first
