"""The share of a member: when it is computed, which queues it has, and where its group begins to read: pure.

Usually all members subscribe to the same topics. Then all queues are divided together, by the member list of the
deciding broker: the first by name that carries any of the topics.

During a rolling deploy that adds or removes a topic, subscriptions differ. Then each topic is divided among its
subscribers, by the list of the first broker that carries it, since all of them have joined there. Topics with the same
subscribers are still divided together, so that strategies see as many topics at once as possible. All members compute
the same result, since a member knows all topics that are divided together with one of its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from typing import NamedTuple

from minimq_common.model import MemberList, MessageQueue, deciders


class SharedTopics(NamedTuple):
    """Topics whose queues are divided together among the same members."""

    decider: str
    topics: tuple[str, ...]
    members: tuple[str, ...]


def carriers_of(queues: Mapping[str, Sequence[MessageQueue]], places: Set[str]) -> dict[str, Set[str]]:
    """Return, for each topic, the brokers in `places` that carry it; if none of them does, all of `places`."""
    return {topic: places & {item.broker_name for item in items} or places for topic, items in queues.items() if items}


def shared_topics(
    client_id: str, carriers: Mapping[str, Collection[str]], lists: Mapping[str, MemberList]
) -> list[SharedTopics] | None:
    """Return the topics of a member, grouped by their subscribers; None if a needed list is missing or lacks it."""
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


class RebalanceSchedule:
    """Decides when a member recomputes its allocation: soon after a change, but at most once per `gap_s`."""

    def __init__(self, *, gap_s: float, interval_s: float, now: float) -> None:
        self._gap_s = gap_s
        self._interval_s = interval_s
        self._earliest = now
        self._due = now
        self._full_at = now + interval_s

    def want(self, at: float) -> None:
        """Request a round at `at` or earlier."""
        self._due = min(self._due, at)

    @property
    def due_at(self) -> float:
        return max(self._due, self._earliest)

    def is_due(self, now: float) -> bool:
        return now >= self.due_at

    def begin(self, now: float) -> bool:
        """Begin a round; return whether it is a periodic one, which is made even if nothing has changed."""
        full = now >= self._full_at
        if full:
            self._full_at = now + self._interval_s
        self._due = self._full_at
        self._earliest = now + self._gap_s
        return full


#: How long to wait for brokers that are offline.
OFFLINE_TIMEOUT_S = 5.0
#: An age in ms that includes every message.
EVER_MS = 1 << 50


class InitialOffsets:
    """Keeps since when a group has read its topics, in seconds on any monotonic clock.

    Each broker decides for its own queues where a group begins. If a topic comes to a broker later, members report
    since when the group has read it, so that no message sent since then is skipped. So a member asks for no queue until
    it knows that the group has begun, or until all brokers of the topic have reported that it has not. Brokers that are
    offline are waited for up to `OFFLINE_TIMEOUT_S`; then the others begin at their first message, which may repeat
    messages.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        #: For each broker that has reported: its Unix time minus the monotonic clock, in seconds.
        self._reported: dict[str, float] = {}
        #: By topic, until when to wait for brokers that have not reported.
        self._wait_until: dict[str, float] = {}

    def reported(self, broker: str, begun: Mapping[str, float], ahead_s: float = 0.0) -> None:
        """Record since when a group has read topics at a broker, and how far that broker's clock is ahead."""
        self._reported[broker] = ahead_s
        for topic, since in begun.items():
            self.began(topic, since)

    def began(self, topic: str, since: float) -> None:
        """Record that the group has read a topic since `since` or longer."""
        self._since[topic] = min(since, self._since.get(topic, since))

    def undecided(self, carriers: Mapping[str, Collection[str]], now: float) -> set[str]:
        """Return the topics whose queues must not be asked for yet."""
        waiting: set[str] = set()
        for topic, brokers in carriers.items():
            if topic in self._since or self._reported.keys() >= {*brokers}:
                self._wait_until.pop(topic, None)
            elif now < self._wait_until.setdefault(topic, now + OFFLINE_TIMEOUT_S):
                waiting.add(topic)
        return waiting

    def has_reported(self, broker: str) -> bool:
        """Return whether a broker has reported. Before that, no queue of it is asked for: it might begin too late."""
        return broker in self._reported

    def time_ms(self, broker: str, now: float) -> int:
        """Return the time of a broker in ms since 1970, or an earlier one; 0 if it has not reported."""
        return int((now + self._reported.get(broker, -now)) * 1000)

    def ago_ms(self, topic: str, now: float) -> int | None:
        """Return for how many ms the group has read a topic; None if it has not begun."""
        if (since := self._since.get(topic)) is not None:
            return max(round((now - since) * 1000), 0)
        return EVER_MS if now >= self._wait_until.get(topic, math.inf) else None
