"""The share of a member: the topics that are divided together, the members that share them, and its queues: pure.

Usually all members subscribe to the same topics. Then all queues are divided together, by the list of the deciding
broker, the first by name of those that carry one of the topics.

While a deploy rolls that adds or removes a topic they do not. Then each topic is divided among those that subscribe to
it, by the list of the first broker that carries it, where all of them have joined. Topics with the same subscribers are
still divided together, so that a strategy that looks at all topics finds as many of them as possible. All members come
to the same result: a member knows every topic that has the subscribers of one of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from minimq.rebalance import AllocationStrategy, allocate_group
from minimq_common.errors import InvalidArgument
from minimq_common.member_list import MemberList, deciders
from minimq_common.model import MessageQueue


class SharedTopics(NamedTuple):
    """Topics whose queues are divided together among the same members."""

    decider: str
    topics: tuple[str, ...]
    members: tuple[str, ...]


def carriers_of(queues: Mapping[str, Sequence[MessageQueue]], places: Set[str]) -> dict[str, Set[str]]:
    """Return the brokers that carry each topic, as far as members meet there.

    A topic whose brokers are all away goes by the list of another broker; one without queues is left out.
    """
    return {topic: places & {item.broker_name for item in items} or places for topic, items in queues.items() if items}


def shared_topics(
    client_id: str, carriers: Mapping[str, Collection[str]], lists: Mapping[str, MemberList]
) -> list[SharedTopics] | None:
    """Return the topics of a member, grouped by the members that share them."""
    counting = deciders(carriers, same_topics=False)
    if not any(lists[decider].topics for decider in counting.values() if decider in lists):
        counting = deciders(carriers, same_topics=True)
    found: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for topic, decider in counting.items():
        members = lists[decider].subscribers(topic) if decider in lists else ()
        if client_id not in members:
            return None
        found[members].append(topic)
    return [
        SharedTopics(min(counting[topic] for topic in topics), tuple(sorted(topics)), members)
        for members, topics in sorted(found.items())
    ]


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group, or topics of it that the same members subscribe to, as one of these sees it."""

    group: str
    client_id: str
    queues: Mapping[str, Sequence[MessageQueue]]
    members: Sequence[str]
    owners: Mapping[MessageQueue, str]
    version: int
    decider: str


def own_share(strategy: AllocationStrategy, view: GroupView) -> Sequence[MessageQueue]:
    """Return the queues of a member, computed here. All members come to the same result: they start from the same."""
    queues = [queue for items in view.queues.values() for queue in items]
    try:
        return allocate_group(strategy, view.group, view.client_id, queues, view.members, view.owners)
    except Exception as error:  # the strategy may be the user's own
        raise InvalidArgument(f"allocation strategy {strategy.name!r} failed: {error!r}") from error
