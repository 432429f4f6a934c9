"""The activity of a cluster: counters and their rates."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from minimq.admin.descriptions import BrokerStatus, TopicDescription
from minimq.admin.group_descriptions import GroupDescription
from minimq.admin.problems import Problem, problems_of
from minimq_common.errors import AccessDenied

if TYPE_CHECKING:
    from minimq.admin.admin import Admin
    from minimq.admin.descriptions import BrokerStatus

Item = TypeVar("Item")

#: Topics described in each read: the busiest ones, and others in turn. Together they are as many as concurrent calls to
#: a broker, so that a silent broker costs one timeout.
_BUSIEST = 16
_IN_TURN = 16


@dataclass(frozen=True, slots=True)
class BrokerActivity:
    """A replica of a broker, and its rates."""

    status: BrokerStatus
    #: Messages stored per second; None until the second read, and after a restart.
    in_per_s: float | None
    #: Messages sent to consumers per second; None likewise.
    out_per_s: float | None


@dataclass(frozen=True, slots=True)
class TopicActivity:
    """A topic, and its rate."""

    topic: str
    messages: int
    #: Messages stored per second; None until the second read.
    in_per_s: float | None


@dataclass(frozen=True, slots=True)
class GroupActivity:
    """A consumer group, and its rate."""

    group: GroupDescription
    #: Messages committed per second; None until the second read, and after a reset to earlier offsets.
    out_per_s: float | None


@dataclass(frozen=True, slots=True)
class ClusterActivity:
    brokers: tuple[BrokerActivity, ...] = ()
    topics: tuple[TopicActivity, ...] = ()
    topic_count: int = 0
    groups: tuple[GroupActivity, ...] = ()
    problems: tuple[Problem, ...] = ()


class CounterRates:
    """Computes the rates of counters, by key. Not thread-safe."""

    def __init__(self) -> None:
        self._last: dict[Hashable, dict[str, tuple[float, int]]] = {}

    def rate(self, key: Hashable, values: Mapping[str, int], at: float) -> float | None:
        """Return the growth per second since the last call, summed over brokers; None if it is not known."""
        known = self._last.setdefault(key, {})
        rates = []
        for broker, value in values.items():
            last, known[broker] = known.get(broker), (at, value)
            if last is not None and at > last[0] and value >= last[1]:
                rates.append((value - last[1]) / (at - last[0]))
        return sum(rates) if rates else None

    def keep(self, keys: Collection[Hashable]) -> None:
        """Forget all counters but these."""
        self._last = {key: last for key, last in self._last.items() if key in keys}


def stored_in(topic: TopicDescription) -> Mapping[str, int]:
    """Return how many messages were ever stored in a topic, by broker. Retention does not lower the numbers."""
    found = Counter[str]()
    for queue in topic.queues:
        found[queue.queue.broker_name] += queue.max_offset
    return found


def committed_by(group: GroupDescription) -> Mapping[str, int]:
    """Return how far a group has committed, in messages by broker. The numbers grow with each commit."""
    found = Counter[str]()
    for queue in group.queues:
        found[queue.queue.broker_name] += queue.max_offset - queue.lag
    return found


class ActivityReader:
    """Reads the activity of one cluster. Used by one thread at a time."""

    def __init__(self, source: Admin, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._rates = CounterRates()
        self._topics: dict[str, TopicActivity] = {}
        #: Name of the last topic that was described in turn.
        self._last = ""

    def read(self) -> ClusterActivity:
        """Take a snapshot. Objects that the user may not describe are missing."""
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
        busiest = [each.topic for each in islice(self._by_rate(), _BUSIEST)]
        others = sorted(set(names) - set(busiest))
        begin = bisect_right(others, self._last)
        in_turn = (others[begin:] + others[:begin])[:_IN_TURN]
        self._last = in_turn[-1] if in_turn else ""
        now = self._clock()
        for topic in self._source.describe_topics([*in_turn, *busiest]):
            if topic.settings:  # else its brokers are offline or silent, which is reported for them, or reject
                rate = self._rates.rate(("topic", topic.topic), stored_in(topic), now)
                self._topics[topic.topic] = TopicActivity(topic.topic, topic.messages, rate)

    def _by_rate(self) -> list[TopicActivity]:
        return sorted(self._topics.values(), key=lambda each: (-(each.in_per_s or 0.0), -each.messages, each.topic))


def _replica(status: BrokerStatus) -> tuple[str, str, str]:
    return status.cluster, status.broker_name, status.address


def _allowed(ask: Callable[[], list[Item]]) -> list[Item]:
    try:
        return ask()
    except AccessDenied:
        return []
