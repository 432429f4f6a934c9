"""Reads the activity of a cluster again and again, within a bounded time however many topics there are."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from itertools import chain, islice, zip_longest
from typing import Protocol, TypeVar

from minimq.administration.activity import (
    BrokerActivity,
    ClusterActivity,
    CounterRates,
    GroupActivity,
    TopicActivity,
    committed_by,
    problems_of,
    stored_in,
)
from minimq.administration.descriptions import BrokerStatus, TopicDescription
from minimq.administration.group_descriptions import GroupDescription
from minimq_common.errors import AccessDenied, MiniMQError

Item = TypeVar("Item")

#: Topics that are looked at each time: the busiest ones, and as many others in turn.
_BUSIEST = 20
_IN_TURN = 20
#: Seconds after which no further topic is looked at.
_TOPICS_S = 1.0


class ActivitySource(Protocol):
    """The calls of `Admin` that are used."""

    def broker_status(self) -> list[BrokerStatus]:
        """Return the status of each replica of each broker."""

    def list_topics(self) -> list[str]:
        """Return the names of all topics."""

    def describe_topic(self, name: str) -> TopicDescription:
        """Return where the queues of a topic begin and end."""

    def describe_groups(self) -> list[GroupDescription]:
        """Return the descriptions of all groups."""


class ActivityReader:
    """Reads the activity of one cluster. Used by one thread at a time."""

    def __init__(self, source: ActivitySource, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._rates = CounterRates()
        self._topics: dict[str, TopicActivity] = {}
        #: The last one that was looked at because it was its turn.
        self._last = ""

    def read(self) -> ClusterActivity:
        """Look at the cluster. What you may not describe is left out."""
        statuses = _allowed(self._source.broker_status)
        names = [name for name in self._source.list_topics() if not name.startswith("%")]
        self._topics = {name: self._topics[name] for name in names if name in self._topics}
        self._look_at_topics(names)
        groups = _allowed(self._source.describe_groups)
        now = self._clock()
        brokers = tuple(self._broker(status, now) for status in statuses)
        active = [
            GroupActivity(each, self._rates.rate(("group", each.group), committed_by(each), now)) for each in groups
        ]
        kept: set[Hashable] = {("topic", name) for name in names} | {("group", each.group) for each in groups}
        kept |= {(way, *_replica(status)) for status in statuses for way in ("in", "out")}
        self._rates.keep(kept)
        return ClusterActivity(
            brokers=brokers,
            topics=tuple(self._by_rate()),
            topic_count=len(names),
            groups=tuple(sorted(active, key=lambda each: (-each.group.lag, each.group.group))),
            problems=tuple(problems_of(statuses, groups)),
        )

    def _broker(self, status: BrokerStatus, now: float) -> BrokerActivity:
        report = status.report
        if report is None:
            return BrokerActivity(status, None, None)
        return BrokerActivity(
            status,
            self._rates.rate(("in", *_replica(status)), {status.broker_name: report.messages_in}, now),
            self._rates.rate(("out", *_replica(status)), {status.broker_name: report.messages_out}, now),
        )

    def _look_at_topics(self, names: Sequence[str]) -> None:
        until = self._clock() + _TOPICS_S
        busiest = [each.topic for each in islice(self._by_rate(), _BUSIEST)]
        others = sorted(set(names) - set(busiest))
        begin = bisect_right(others, self._last)
        in_turn = (others[begin:] + others[:begin])[:_IN_TURN]
        # One of each, so that the time is not over before any of the others is looked at.
        for name in filter(None, chain(*zip_longest(in_turn, busiest))):
            if name not in busiest:
                self._last = name
            try:
                topic = self._source.describe_topic(name)
            except MiniMQError:  # deleted meanwhile, or its brokers are away, which is told of them
                continue
            rate = self._rates.rate(("topic", name), stored_in(topic), self._clock())
            self._topics[name] = TopicActivity(name, sum(queue.messages for queue in topic.queues), rate)
            if self._clock() >= until:
                break

    def _by_rate(self) -> list[TopicActivity]:
        return sorted(self._topics.values(), key=lambda each: (-(each.in_per_s or 0.0), -each.messages, each.topic))


def _replica(status: BrokerStatus) -> tuple[str, str, str]:
    return status.cluster, status.broker_name, status.address


def _allowed(ask: Callable[[], list[Item]]) -> list[Item]:
    try:
        return ask()
    except AccessDenied:
        return []
