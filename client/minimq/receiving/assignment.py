"""The share of a member: when it is computed, which queues it has, and in which topics its group has begun: pure.

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
from minimq_common.model import MemberList, MessageQueue, deciders


class SharedTopics(NamedTuple):
    """Topics whose queues are divided together among the same members."""

    decider: str
    topics: tuple[str, ...]
    members: tuple[str, ...]


def carriers_of(queues: Mapping[str, Sequence[MessageQueue]], places: Set[str]) -> dict[str, Set[str]]:
    """Return the brokers that carry each topic and where members meet; if all of a topic are away, the others."""
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


class RebalanceSchedule:
    """The times at which a member looks at the allocation: at once after a change, but not for every one of many."""

    def __init__(self, *, gap_s: float, interval_s: float, now: float) -> None:
        self._gap_s = gap_s
        self._interval_s = interval_s
        self._earliest = now
        self._due = now
        self._full_at = now + interval_s

    def want(self, at: float) -> None:
        """Ask for a round at that time, or before."""
        self._due = min(self._due, at)

    @property
    def due_at(self) -> float:
        """The time of the next round."""
        return max(self._due, self._earliest)

    def is_due(self, now: float) -> bool:
        """Tell whether a round is to begin."""
        return now >= self.due_at

    def begin(self, now: float) -> bool:
        """Begin a round; return whether it is one that is made though nothing may have happened."""
        full = now >= self._full_at
        if full:
            self._full_at = now + self._interval_s
        self._due = self._full_at
        self._earliest = now + self._gap_s
        return full


#: Seconds to wait for brokers that are away.
AWAY_TIMEOUT_S = 5.0
#: Longer ago than anything was sent.
EVER_MS = 1 << 50


class InitialOffsets:
    """The times since when a group reads its topics, in seconds on any clock that does not go back.

    Each broker decides for its own queues where a group begins. One to which a topic comes later hears from members
    since when the group reads it, so that nothing sent since then is passed over. So a member asks for no queue before
    it knows that the group has begun, or all brokers of the topic have reported that it has not. Those that are away
    are waited for only so long: then the others begin with all that they have, which may repeat messages.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        #: The brokers that have reported where the group has begun, and what is to be added for their time in seconds.
        self._reported: dict[str, float] = {}
        #: Until when topics wait for brokers that have not.
        self._wait_until: dict[str, float] = {}
        self._unknown: set[str] = set()

    def reported(self, broker: str, begun: Mapping[str, float], ahead_s: float = 0.0) -> None:
        """Note in which topics a group has begun at a broker, since when, and how far its clock is ahead."""
        self._reported[broker] = ahead_s
        for topic, since in begun.items():
            self.began(topic, since)

    def began(self, topic: str, since: float) -> None:
        """Note that the group has read a topic since then, or longer."""
        self._since[topic] = min(since, self._since.get(topic, since))
        self._unknown.discard(topic)

    def undecided(self, carriers: Mapping[str, Collection[str]], now: float) -> set[str]:
        """Return the topics of whose queues none is to be asked for yet."""
        waiting: set[str] = set()
        for topic, brokers in carriers.items():
            if topic in self._since or self._reported.keys() >= {*brokers}:
                self._wait_until.pop(topic, None)
                self._unknown.discard(topic)
            elif now < self._wait_until.setdefault(topic, now + AWAY_TIMEOUT_S):
                waiting.add(topic)
            else:
                self._unknown.add(topic)
        return waiting

    def has_reported(self, broker: str) -> bool:
        """Return whether a broker has reported; before that it is asked for nothing that it might begin too late."""
        return broker in self._reported

    def time_ms(self, broker: str, now: float) -> int:
        """Return the time of a broker that has reported, or an earlier one, in ms since 1970."""
        return int((now + self._reported.get(broker, -now)) * 1000)

    def ago_ms(self, topic: str, now: float) -> int | None:
        """Return for how long the group has read a topic; None when it has not begun."""
        if topic in self._unknown:
            return EVER_MS
        since = self._since.get(topic)
        return None if since is None else max(round((now - since) * 1000), 0)
