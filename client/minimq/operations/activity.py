"""The activity of a cluster: what grows, how fast, and what an operator has to look at."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, TypeVar

from minimq.administration.descriptions import BrokerStatus, TopicDescription
from minimq.administration.group_descriptions import GroupDescription
from minimq.operations.replicas import broker_problems
from minimq_common.errors import AccessDenied, MiniMQError
from minimq_common.model import MASTER_ID
from minimq_common.words import count_of

if TYPE_CHECKING:
    from minimq.admin import Admin

Item = TypeVar("Item")

#: Topics that are looked at each time: the busiest ones, and as many others in turn.
_BUSIEST = 20
_IN_TURN = 20
#: Seconds after which no further topic is looked at.
_TOPICS_S = 1.0


@dataclass(frozen=True, slots=True)
class BrokerActivity:
    """A replica of a broker, and its rates."""

    status: BrokerStatus
    #: Messages that it stores in a second; None before the second look, and after a restart.
    in_per_s: float | None
    #: Messages that it sends to consumers in a second; likewise.
    out_per_s: float | None


@dataclass(frozen=True, slots=True)
class TopicActivity:
    """A topic, and its rate."""

    topic: str
    messages: int
    #: Messages that are stored in a second; None before the second look.
    in_per_s: float | None


@dataclass(frozen=True, slots=True)
class GroupActivity:
    """A consumer group, and its rate."""

    group: GroupDescription
    #: Messages that it commits in a second; None before the second look, and when it has gone back.
    out_per_s: float | None


@dataclass(frozen=True, slots=True)
class ActivityProblem:
    """A thing that an operator has to look at."""

    text: str
    #: The group that it is about; None if it is about a broker.
    group: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterActivity:
    """A cluster at one moment."""

    brokers: tuple[BrokerActivity, ...]
    topics: tuple[TopicActivity, ...]
    topic_count: int
    groups: tuple[GroupActivity, ...]
    problems: tuple[ActivityProblem, ...]


class CounterRates:
    """Rates of counters, each known by a key. Not thread-safe."""

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


def problems_of(brokers: Collection[BrokerStatus], groups: Collection[GroupDescription]) -> list[ActivityProblem]:
    """Return what an operator has to look at, brokers first; of one that does not answer there is one sentence."""
    sentences = [sentence for status in brokers for sentence in _of_broker(status)]
    unanswered: dict[str, str] = {}
    for group in groups:
        unanswered.update({name: why for name, why in group.unanswered.items() if name not in unanswered})
    told = _told_of(brokers)
    sentences += [
        f"broker {name} does not answer: {why}" for name, why in sorted(unanswered.items()) if name not in told
    ]
    unread = [
        ActivityProblem(f"group {each.group} has no members, and a lag of {count_of(each.lag, 'message')}", each.group)
        for each in groups
        if each.lag and not each.members
    ]
    return [*map(ActivityProblem, sentences), *unread]


def stored_in(topic: TopicDescription) -> Mapping[str, int]:
    """Return how many messages a topic has ever had, by broker: they grow, whatever retention deletes."""
    found = Counter[str]()
    for queue in topic.queues:
        found[queue.queue.broker_name] += queue.max_offset
    return found


def committed_by(group: GroupDescription) -> Mapping[str, int]:
    """Return how many messages a group has passed, by broker: they grow with each commit."""
    found = Counter[str]()
    for queue in group.queues:
        found[queue.queue.broker_name] += queue.max_offset - queue.lag
    return found


def _told_of(brokers: Collection[BrokerStatus]) -> set[str]:
    answering = {status.broker_name for status in brokers if status.error is None}
    return {
        status.broker_name
        for status in brokers
        if status.error is not None and (status.broker_id == MASTER_ID or status.broker_name not in answering)
    }


def say_about_disk(status: BrokerStatus) -> list[str]:
    """Return sentences about what a broker does since its disk is nearly full."""
    found, report = list[str](), status.report
    if report is not None and report.disk_filled_by_others:
        found.append(f"broker {status.broker_name}: other files fill its disk, so it deletes nothing more early")
    if report is not None and report.bytes_deleted_early:
        found.append(f"broker {status.broker_name}: {say_deleted_early(report.bytes_deleted_early)}")
    return found


def say_deleted_early(size: int) -> str:
    """Return a sentence about messages that a broker has deleted early since its start."""
    return f"its disk was nearly full, and it deleted {size / (1 << 20):,.1f} MiB of messages before their time"


def _of_broker(status: BrokerStatus) -> list[str]:
    name = f"broker {status.broker_name}" + (f", replica {status.broker_id}," if status.broker_id else "")
    if status.error is not None:
        return [f"{name} {'is away' if status.away_since else 'does not answer'}: {status.error}"]
    if status.report is None:
        return []
    found = [f"{name}: {problem}" for problem in broker_problems(status.report)]
    if status.report.disk_level != "normal":
        found.append(f"{name}: the disk is {status.report.disk_used:.0%} full ({status.report.disk_level})")
    return found + say_about_disk(status)


class ActivityReader:
    """Reads the activity of one cluster. Used by one thread at a time."""

    def __init__(self, source: Admin, clock: Callable[[], float] = time.monotonic) -> None:
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
