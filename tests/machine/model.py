"""The expected content of a store, as plain dictionaries with values that never change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: Topic id, queue id.
Queue = tuple[int, int]


class Topic(NamedTuple):
    name: str
    id: int
    queues: int
    #: Which feature made it, so that others leave it alone: plain, fifo, compacted.
    kind: str = "plain"
    #: How long its messages stay, in ms; 0: for ever.
    age_ms: int = 0


class Batch(NamedTuple):
    base: int
    messages: int
    stored_ms: int
    #: When it was stored, by a clock that is never set.
    steady_ms: int
    data: bytes

    @property
    def end(self) -> int:
        return self.base + self.messages


class Clock:
    """The time of day, which may be set, and one that only goes on; both in ms."""

    def __init__(self) -> None:
        self._now_ms = 1_700_000_000_000
        self.steady_ms = 0

    def __call__(self) -> int:
        return self._now_ms

    @property
    def now_ms(self) -> int:
        return self._now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self.steady_ms += max(now_ms - self._now_ms, 0)
        self._now_ms = now_ms


@dataclass
class Model:
    """The content of a store at one log position."""

    topics: dict[str, Topic] = field(default_factory=dict)
    #: Every batch that was ever stored in a queue.
    queues: dict[Queue, tuple[Batch, ...]] = field(default_factory=dict)
    #: By group, topic id and queue id.
    offsets: dict[tuple[str, int, int], int] = field(default_factory=dict)
    #: Ids of deleted topics; groups that were deleted and not used since.
    deleted_topics: frozenset[int] = frozenset()
    deleted_groups: frozenset[str] = frozenset()
    #: What features know, by their name.
    tables: dict[str, dict[Any, Any]] = field(default_factory=dict)

    def copy(self) -> Model:
        tables = {name: table.copy() for name, table in self.tables.items()}
        copies = (self.topics.copy(), self.queues.copy(), self.offsets.copy())
        return Model(*copies, self.deleted_topics, self.deleted_groups, tables)

    def table(self, name: str) -> dict[Any, Any]:
        return self.tables.setdefault(name, {})

    def end(self, queue: Queue) -> int:
        batches = self.queues.get(queue)
        return batches[-1].end if batches else 0

    def append(self, queue: Queue, messages: int, clock: Clock, data: bytes) -> Batch:
        """Add a batch at the end of its queue. Store times in a queue never go back."""
        before = self.queues.get(queue, ())
        stored_ms = max([clock.now_ms, *(each.stored_ms for each in before[-1:])])
        batch = Batch(self.end(queue), messages, stored_ms, clock.steady_ms, data)
        self.queues[queue] = (*before, batch)
        return batch

    def use_group(self, group: str) -> None:
        self.deleted_groups -= {group}

    def delete_topic(self, name: str) -> None:
        topic = self.topics.pop(name)
        self.deleted_topics |= {topic.id}
        self.queues = {queue: batches for queue, batches in self.queues.items() if queue[0] != topic.id}
        self.offsets = {key: offset for key, offset in self.offsets.items() if key[1] != topic.id}
        for forget in FORGET_TOPIC:
            forget(self, topic.id)

    def delete_group(self, group: str) -> None:
        self.deleted_groups |= {group}
        self.offsets = {key: offset for key, offset in self.offsets.items() if key[0] != group}
        for forget in FORGET_GROUP:
            forget(self, group)


#: What features forget with a topic, or with a group.
FORGET_TOPIC: list[Callable[[Model, int], None]] = []
FORGET_GROUP: list[Callable[[Model, str], None]] = []
