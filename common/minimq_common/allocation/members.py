"""Member lists of consumer groups, and the brokers whose lists count: by this brokers and members agree. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


class MemberList(NamedTuple):
    """The members of a group as one broker sees them.

    Attributes:
        client_ids: who is in it.
        topics: what each of them subscribes to; empty while that is the same for all.
    """

    client_ids: Collection[str]
    topics: Mapping[str, Collection[str]]

    def subscribers(self, topic: str) -> tuple[str, ...]:
        """Return who subscribes to a topic that somebody subscribes to, sorted."""
        return tuple(sorted(name for name in self.client_ids if not self.topics or topic in self.topics.get(name, ())))


def deciders(carriers: Mapping[str, Collection[str]], *, same_topics: bool) -> dict[str, str]:
    """Return, by topic, the broker by whose list of members its queues are divided.

    Args:
        carriers: by topic, the brokers that carry it; at least one each.
        same_topics: whether all members subscribe to the same topics. Then one broker decides for all of them, the
            first by name that carries one; otherwise the first that carries the topic.
    """
    first = {topic: min(brokers) for topic, brokers in carriers.items()}
    return dict.fromkeys(first, min(first.values(), default="")) if same_topics else first
