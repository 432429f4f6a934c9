"""Computes the ranges that tasks read from the bounds of the queues and the options. Pure."""

from __future__ import annotations

import heapq
import logging
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from minimq.consuming.stored_offsets import StoredOffsets, TopicOnBroker
from minimq_common.model import MessageQueue, TopicId
from pyspark_minimq.errors import MinimqSparkError

log = logging.getLogger(__name__)

#: Fewer messages do not get a task of their own, even if a core is idle.
MIN_RECORDS_PER_CORE = 10_000
#: Special offsets in the JSON of the options, as in the Kafka source of Spark.
EARLIEST = -2
LATEST = -1


def place_of(queue: MessageQueue) -> TopicOnBroker:
    return TopicOnBroker(queue.topic, queue.broker_name)


@dataclass(frozen=True, slots=True)
class LookupResult:
    bounds: Mapping[MessageQueue, StoredOffsets]
    #: Brokers that answered that they do not have the topic any more.
    absent: frozenset[TopicOnBroker] = frozenset()
    #: Registered brokers that did not answer, with the reason.
    silent: Mapping[TopicOnBroker, str] = field(default_factory=dict)
    #: Brokers that have gone, with a sentence about that.
    offline: Mapping[TopicOnBroker, str] = field(default_factory=dict)

    @property
    def unseen(self) -> dict[TopicOnBroker, str]:
        return {**self.silent, **self.offline}

    @property
    def told(self) -> set[TopicOnBroker]:
        return {place_of(queue) for queue in self.bounds} | self.absent | self.silent.keys()

    def merged_with(self, other: LookupResult) -> LookupResult:
        """Merge with another result; for a queue in both, this result wins."""
        return LookupResult(
            {**other.bounds, **self.bounds},
            self.absent | other.absent,
            {**other.silent, **self.silent},
            {**other.offline, **self.offline},
        )


@dataclass(frozen=True, slots=True)
class Subscription:
    """The choice of what to read. Exactly one field is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    queues: frozenset[MessageQueue] = frozenset()

    def names(self, existing: Iterable[str] = ()) -> list[str]:
        """Return the topics; for a pattern, those of the existing ones that match."""
        if self.pattern is None:
            return list(self.topics) or sorted({queue.topic for queue in self.queues})
        return sorted(name for name in existing if self._matches(name))

    def includes(self, queue: MessageQueue) -> bool:
        """Tell whether the subscription includes a queue, even if that is hidden."""
        if self.pattern is not None:
            return self._matches(queue.topic)
        return queue in self.queues or queue.topic in self.topics

    def chosen(self, bounds: Mapping[MessageQueue, StoredOffsets]) -> dict[MessageQueue, StoredOffsets]:
        if self.queues:
            return {queue: at for queue, at in bounds.items() if queue in self.queues}
        return {queue: at for queue, at in bounds.items() if at.is_shown}

    def unseen(self, missing: Mapping[TopicOnBroker, str]) -> dict[TopicOnBroker, str]:
        """Return those of the missing brokers that may carry queues to read, sorted."""
        chosen = {place_of(queue) for queue in self.queues}
        return {place: text for place, text in sorted(missing.items()) if not chosen or place in chosen}

    def _matches(self, topic: str) -> bool:
        assert self.pattern is not None
        is_meant = self.pattern.startswith("%") or not topic.startswith("%")
        return is_meant and re.fullmatch(self.pattern, topic) is not None

    def check(self, existing: Set[MessageQueue], *, fail_on_data_loss: bool) -> None:
        """Raise `MinimqSparkError` if a chosen queue does not exist; without `fail_on_data_loss`, if none exists."""
        is_fatal = fail_on_data_loss or not self.queues & existing
        _check_known("assign", self.queues, existing, is_fatal=is_fatal)


class OffsetRange(NamedTuple):
    """The offsets of a queue from `start` up to but not including `end`."""

    queue: MessageQueue
    start: int
    end: int
    #: Term of the log to which the offsets belong; 0 for any.
    term: int = 0
    #: Id of the topic to which the offsets belong; None for any.
    topic_id: TopicId | None = None

    def __len__(self) -> int:
        return self.end - self.start

    def cut(self, start: int, end: int) -> OffsetRange:
        """Return the part from `start` up to but not including `end`."""
        return OffsetRange(self.queue, start, end, self.term, self.topic_id)


@dataclass(frozen=True, slots=True)
class TimesByQueue:
    """A time for each queue: the read begins or ends at the first message stored at or after it."""

    option: str
    times: Mapping[MessageQueue, datetime]

    def check(self, bounds: Mapping[MessageQueue, StoredOffsets], *, fail_on_data_loss: bool) -> None:
        """Raise `MinimqSparkError` unless there is a time for each queue to read, and for no other queue."""
        _check_named(
            self.option,
            "time",
            "name every queue that is read",
            self.times,
            bounds,
            fail_on_data_loss=fail_on_data_loss,
        )


#: One offset for all queues (`EARLIEST` or `LATEST`), or one for each.
Offsets = int | Mapping[MessageQueue, int]


def plan_ranges(
    bounds: Mapping[MessageQueue, StoredOffsets], starting: Offsets, ending: Offsets, *, fail_on_data_loss: bool
) -> list[OffsetRange]:
    """Return the non-empty ranges to read, sorted. Raises `MinimqSparkError`."""
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
    option: str, offsets: Offsets, bounds: Mapping[MessageQueue, StoredOffsets], *, fail_on_data_loss: bool
) -> dict[MessageQueue, int]:
    """Return an offset within the bounds for each queue. Raises `MinimqSparkError`."""
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
    named: Mapping[MessageQueue, object],
    bounds: Mapping[MessageQueue, StoredOffsets],
    *,
    fail_on_data_loss: bool,
) -> None:
    missing = sorted(bounds.keys() - named.keys())
    if missing:
        raise MinimqSparkError(f"{option} has no {what} for {_some(missing)}: {remedy}")
    _check_known(option, named.keys(), bounds.keys(), is_fatal=fail_on_data_loss)


def _check_known(option: str, named: Set[MessageQueue], existing: Set[MessageQueue], *, is_fatal: bool) -> None:
    unknown = sorted(named - existing)
    if unknown and is_fatal:
        raise MinimqSparkError(f"{option} names {_some(unknown)}, which does not exist: there are {_some(existing)}")
    if unknown:
        log.warning("going on with what is left: %s names %s, which does not exist", option, _some(unknown))


def _some(queues: Iterable[MessageQueue]) -> str:
    names = [f"queue {queue}" for queue in sorted(queues)]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def split_ranges(
    ranges: Iterable[OffsetRange], min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Cut ranges into partitions of about the same size, at least one for each range.

    Neighbors in the result are on different brokers if possible, since Spark runs neighbors at the same time.
    """
    ordered = sorted(ranges, key=lambda part: (part.queue.topic, part.queue.queue_id, part.queue.broker_name))
    counts = [-(-len(part) // max_records) if max_records else 1 for part in ordered]
    # Always cut the range with the largest partitions, so that all partitions become as equal as possible.
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
    """Let small ranges share a partition, since a task costs as much as reading thousands of messages."""
    small = [index for index, part in enumerate(ranges) if len(part) < min_records]
    groups = [[index] for index, part in enumerate(ranges) if len(part) >= min_records]
    total = sum(len(ranges[index]) for index in small)
    for_cores = min(total // MIN_RECORDS_PER_CORE, cores - len(groups))
    count = min(max(total // min_records, for_cores, (min_partitions or 0) - len(groups), 1), len(small))
    # Put each range, largest first, into the smallest partition, so that all become about equal.
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
