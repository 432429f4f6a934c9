"""From the bounds of the queues and the user's wishes to the ranges that tasks read. Decides only, asks nobody."""

from __future__ import annotations

import heapq
import logging
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from pyspark_minimq.errors import MinimqSparkError

log = logging.getLogger(__name__)

#: Fewer messages are not worth a task of their own even where a core is idle.
WORTH_A_CORE = 10_000
#: What stands for an offset in the JSON of the options, as in Spark's Kafka source.
EARLIEST = -2
LATEST = -1


class Carrier(NamedTuple):
    """A topic at one of its brokers."""

    topic: str
    broker_name: str


class QueueName(NamedTuple):
    """A queue of a topic."""

    topic: str
    broker_name: str
    queue_id: int

    @property
    def carrier(self) -> Carrier:
        """Its topic at its broker."""
        return Carrier(self.topic, self.broker_name)

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker_name}/{self.queue_id}"


class TopicId(NamedTuple):
    """Identifies one creation of a topic at one broker; see `minimq.connectors.TopicId`."""

    number: int = 0
    created_ms: int = 0


class StoredOffsets(NamedTuple):
    """The offsets that are stored in a queue."""

    first: int
    end: int
    topic_id: TopicId = TopicId()
    #: Whether consumers see it; one that is hidden by now may hold messages all the same.
    is_shown: bool = True
    #: Whether a slave told, which may not have all.
    from_slave: bool = False
    #: Of the log of which that was told; 0 when it is not known.
    term: int = 0


@dataclass(frozen=True, slots=True)
class LookupResult:
    """The answers of brokers that were asked for the queues of some topics."""

    bounds: Mapping[QueueName, StoredOffsets]
    #: Brokers which say that they do not have the topic any more.
    absent: frozenset[Carrier] = frozenset()
    #: Brokers that are registered and did not answer, each with a sentence that says why.
    silent: Mapping[Carrier, str] = field(default_factory=dict)
    away: Mapping[Carrier, str] = field(default_factory=dict)

    @property
    def unseen(self) -> dict[Carrier, str]:
        """Brokers that may carry queues of which nothing is known."""
        return {**self.silent, **self.away}

    @property
    def told(self) -> set[Carrier]:
        """The brokers of which anything is known."""
        return {queue.carrier for queue in self.bounds} | self.absent | self.silent.keys()

    def and_of(self, other: LookupResult) -> LookupResult:
        """Return what both tell; of queues that are in both what this one tells."""
        return LookupResult(
            {**other.bounds, **self.bounds},
            self.absent | other.absent,
            {**other.silent, **self.silent},
            {**other.away, **self.away},
        )


@dataclass(frozen=True, slots=True)
class Subscription:
    """The choice of topics or queues to read: one of these."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    queues: frozenset[QueueName] = frozenset()

    def names(self, existing: Iterable[str] = ()) -> list[str]:
        """Return the topics, for a pattern those of the existing ones that match.

        Topics that groups make for themselves begin with `%`: they are meant by a pattern only if it does so as well.
        """
        if self.pattern is None:
            return list(self.topics) or sorted({queue.topic for queue in self.queues})
        return sorted(name for name in existing if self._matches(name))

    def includes(self, queue: QueueName) -> bool:
        """Tell whether a queue belongs to it, also one that is hidden by now."""
        if self.pattern is not None:
            return self._matches(queue.topic)
        return queue in self.queues or queue.topic in self.topics

    def chosen(self, bounds: Mapping[QueueName, StoredOffsets]) -> dict[QueueName, StoredOffsets]:
        """Return the queues to read among those of its topics."""
        if self.queues:
            return {queue: at for queue, at in bounds.items() if queue in self.queues}
        return {queue: at for queue, at in bounds.items() if at.is_shown}

    def unseen(self, missing: Mapping[Carrier, str]) -> dict[Carrier, str]:
        """Return those of some brokers that carry queues to read, sorted."""
        chosen = {queue.carrier for queue in self.queues}
        return {carrier: text for carrier, text in sorted(missing.items()) if not chosen or carrier in chosen}

    def _matches(self, topic: str) -> bool:
        assert self.pattern is not None
        is_meant = self.pattern.startswith("%") or not topic.startswith("%")
        return is_meant and re.fullmatch(self.pattern, topic) is not None

    def check(self, existing: Set[QueueName], *, fail_on_data_loss: bool) -> None:
        """Raise `MinimqSparkError` if a chosen queue does not exist; without `fail_on_data_loss` if none exists."""
        is_fatal = fail_on_data_loss or not self.queues & existing
        _check_known("assign", self.queues, existing, is_fatal=is_fatal)


class OffsetRange(NamedTuple):
    """The offsets of a queue from `start` up to but not including `end`."""

    queue: QueueName
    start: int
    #: The one after the last.
    end: int
    #: Of the log in which the range was found; 0: any.
    term: int = 0
    #: Of the topic in which the range was found; None: any.
    topic_id: TopicId | None = None

    def __len__(self) -> int:
        return self.end - self.start

    def cut(self, start: int, end: int) -> OffsetRange:
        """Return the part from `start` up to but not including `end`."""
        return OffsetRange(self.queue, start, end, self.term, self.topic_id)


@dataclass(frozen=True, slots=True)
class TimesByQueue:
    """A moment for each queue, where a read begins or ends: at the first message stored at or after it."""

    option: str
    times: Mapping[QueueName, datetime]

    def check(self, bounds: Mapping[QueueName, StoredOffsets], *, fail_on_data_loss: bool) -> None:
        """Raise `MinimqSparkError` unless there is a moment for each queue to read, and for no other.

        Without `fail_on_data_loss` those of other queues are logged.
        """
        _check_named(
            self.option,
            "time",
            "name every queue that is read",
            self.times,
            bounds,
            fail_on_data_loss=fail_on_data_loss,
        )


#: One offset for all queues (`EARLIEST` or `LATEST`), or one for each.
Offsets = int | Mapping[QueueName, int]


def plan_ranges(
    bounds: Mapping[QueueName, StoredOffsets], starting: Offsets, ending: Offsets, *, fail_on_data_loss: bool
) -> list[OffsetRange]:
    """Return the range to read of each queue, sorted, without queues that have nothing to read."""
    starts = resolve("startingOffsets", starting, bounds, fail_on_data_loss=fail_on_data_loss)
    ends = resolve("endingOffsets", ending, bounds, fail_on_data_loss=fail_on_data_loss)
    for queue, start in starts.items():
        if start > ends[queue] and not isinstance(starting, int) and not isinstance(ending, int):
            raise MinimqSparkError(
                f"queue {queue} would be read from offset {start} to {ends[queue]}, backwards: startingOffsets or "
                "startingTimestamp is after endingOffsets or endingTimestamp"
            )
    ranges = [
        OffsetRange(queue, starts[queue], ends[queue], at.term, at.topic_id) for queue, at in sorted(bounds.items())
    ]
    return [part for part in ranges if part.start < part.end]


def resolve(
    option: str, offsets: Offsets, bounds: Mapping[QueueName, StoredOffsets], *, fail_on_data_loss: bool
) -> dict[QueueName, int]:
    """Return an offset that is stored, or the end, for each queue."""
    if isinstance(offsets, int):
        offsets = dict.fromkeys(bounds, offsets)
    remedy = "name every queue that is read, with -2 for the earliest offset and -1 for the latest"
    _check_named(option, "offset", remedy, offsets, bounds, fail_on_data_loss=fail_on_data_loss)
    resolved = {}
    for queue, (first, end, *_) in bounds.items():
        offset = offsets[queue]
        if offset < 0:
            resolved[queue] = first if offset == EARLIEST else end
        elif first <= offset <= end or not fail_on_data_loss:
            resolved[queue] = min(max(offset, first), end)
        else:
            raise MinimqSparkError(
                f"{option} has offset {offset} for queue {queue}, which has {first} to {end}: correct it, or read "
                "what is there with failOnDataLoss=false"
            )
    return resolved


def _check_named(
    option: str,
    what: str,
    remedy: str,
    named: Mapping[QueueName, object],
    bounds: Mapping[QueueName, StoredOffsets],
    *,
    fail_on_data_loss: bool,
) -> None:
    missing = sorted(bounds.keys() - named.keys())
    if missing:
        raise MinimqSparkError(f"{option} has no {what} for {_some(missing)}: {remedy}")
    _check_known(option, named.keys(), bounds.keys(), is_fatal=fail_on_data_loss)


def _check_known(option: str, named: Set[QueueName], existing: Set[QueueName], *, is_fatal: bool) -> None:
    unknown = sorted(named - existing)
    if unknown and is_fatal:
        raise MinimqSparkError(f"{option} names {_some(unknown)}, which does not exist: there are {_some(existing)}")
    if unknown:
        log.warning("going on with what is left: %s names %s, which does not exist", option, _some(unknown))


def _some(queues: Iterable[QueueName]) -> str:
    names = [f"queue {queue}" for queue in sorted(queues)]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def split_ranges(
    ranges: Iterable[OffsetRange], min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Cut ranges into partitions of about the same size, at least one for each range.

    Neighbours in the result are of different brokers where that can be: Spark runs neighbours at the same time.
    """
    ordered = sorted(ranges, key=lambda part: (part.queue.topic, part.queue.queue_id, part.queue.broker_name))
    counts = [-(-len(part) // max_records) if max_records else 1 for part in ordered]
    # Always cuts the range whose partitions are the largest: so they end up as equal as whole cuts allow.
    largest = [(-len(part) / count, index) for index, (part, count) in enumerate(zip(ordered, counts, strict=True))]
    heapq.heapify(largest)
    for _ in range((min_partitions or 0) - sum(counts)):
        if not largest or largest[0][0] >= -1:
            break
        index = largest[0][1]
        counts[index] += 1
        heapq.heapreplace(largest, (-len(ordered[index]) / counts[index], index))
    return [cut for part, count in zip(ordered, counts, strict=True) for cut in _cut(part, count)]


def _cut(part: OffsetRange, count: int) -> Iterable[OffsetRange]:
    edges = [part.start + len(part) * number // count for number in range(count + 1)]
    return (part.cut(start, end) for start, end in pairwise(edges))


def group_ranges(
    ranges: Sequence[OffsetRange],
    min_records: int,
    min_partitions: int | None = None,
    max_records: int | None = None,
    cores: int = 1,
) -> list[tuple[OffsetRange, ...]]:
    """Let small ranges share a partition, since a task costs as much as reading thousands of messages.

    Ranges stay whole and in order, also those of a partition.
    """
    small = [index for index, part in enumerate(ranges) if len(part) < min_records]
    groups = [[index] for index, part in enumerate(ranges) if len(part) >= min_records]
    total = sum(len(ranges[index]) for index in small)
    for_cores = min(total // WORTH_A_CORE, cores - len(groups))
    count = min(max(total // min_records, for_cores, (min_partitions or 0) - len(groups), 1), len(small))
    # The largest first, each into the partition that has the least: so they end up about equal.
    shared = [(0, number) for number in range(count)]
    members: list[list[int]] = [[] for _ in range(count)]
    for index in sorted(small, key=lambda index: -len(ranges[index])):
        size, number = shared[0]
        if max_records is not None and size and size + len(ranges[index]) > max_records:
            number = len(members)
            members.append([])
            heapq.heappush(shared, (len(ranges[index]), number))
        else:
            heapq.heapreplace(shared, (size + len(ranges[index]), number))
        members[number].append(index)
    groups += [sorted(group) for group in members if group]
    return [tuple(ranges[index] for index in group) for group in sorted(groups)]
