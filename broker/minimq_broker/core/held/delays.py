"""Delayed batches: which of them are published already, and how many wait.

A delayed batch is known by its key, the time at which it is due and its id, and is published in the order of keys. So
one key, the mark, tells all that are published from all that are not, however many there are. If the clock is set
back, the mark is set back with it, and keeps the former key for the batches that were stored before.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from minimq_broker.core.producers import Place

#: The longest delay unless the broker is told otherwise, in ms: 366 days.
MAX_DELAY_MS = 366 * 86_400_000


class DueKey(NamedTuple):
    """The key of a delayed batch: when it is due, in ms since 1970, and its log position, by which it is recalled."""

    due_ms: int
    id: int


#: Before all keys.
NO_KEY = DueKey(0, 0)


class DueMark(msgspec.Struct, frozen=True, array_like=True):
    """Tells which delayed batches are published; also its row in the checkpoint.

    `due_ms` and `id` are the key up to which all batches are published.
    """

    due_ms: int = 0
    id: int = 0
    #: Larger keys from before the clock was set back: due time, id, and the id from which batches are newer.
    former: tuple[tuple[int, int, int], ...] = ()

    @property
    def key(self) -> DueKey:
        """The key up to which all batches are published. Some behind it may be published as well."""
        return DueKey(self.due_ms, self.id)

    def covers(self, key: DueKey) -> bool:
        """Return whether the batch with a key is published or skipped."""
        return key <= self.key or any(key <= former[:2] and key.id < former[2] for former in self.former)

    def moved(self, key: DueKey) -> DueMark:
        """Return the mark after the batch with a key, the first one that waits."""
        return DueMark(*key, tuple(former for former in self.former if former[:2] > key))

    def set_back(self, to: DelaysSetBack) -> DueMark:
        """Return the mark after the clock was set back."""
        return DueMark(*self.key, (*self.former, (*self.key, to.id))).moved(DueKey(to.due_ms, 0))


class Delay(NamedTuple):
    """When a batch is to be published: so long after it is stored, or at a time, in ms since 1970, if there is one."""

    delay_ms: int = 0
    due_ms: int | None = None
    #: Whether it may be taken back.
    recallable: bool = False


class RecallOutcome(IntEnum):
    """The fate of a batch that was to be recalled."""

    #: It will never be published.
    RECALLED = 0
    #: It was recalled before.
    ALREADY_RECALLED = 1
    #: It is published, or there is no such batch.
    TOO_LATE = 2
    #: It waits on: it was stored as one that cannot be recalled.
    NOT_RECALLABLE = 3


class BatchDelayed(NamedTuple):
    """The effect of an entry with a delayed batch; producer id and numbers as in the header of the batch."""

    key: DueKey
    messages: int
    place: Place
    is_recallable: bool
    producer_id: int = 0
    sequence: int = 0
    settled_before: int = 0


class RecalledBatch(msgspec.Struct, frozen=True, array_like=True):
    """A delayed batch that was recalled: its key, and how many messages it has."""

    due_ms: int
    id: int
    messages: int


class BatchesRecalled(msgspec.Struct, frozen=True, tag="recalled"):
    """Delayed batches of a topic were recalled: they are not published when they are due."""

    topic_id: int
    batches: tuple[RecalledBatch, ...]


class DueSkipped(msgspec.Struct, frozen=True, tag="due-skipped"):
    """All delayed batches up to a key are published or need not be: the last one cannot be read, or is not wanted.

    The topic and number of messages of one that is lost; of none 0.
    """

    due_ms: int
    id: int
    topic_id: int = 0
    messages: int = 0


class DelaysSetBack(msgspec.Struct, frozen=True, tag="delays-set-back"):
    """The clock was set back: batches with at least this id are published by their keys from this time on."""

    due_ms: int
    id: int


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """The numbers of batches that wait to be due, and of their messages; also the row of a topic in the checkpoint."""

    batches: int = 0
    messages: int = 0


_NONE = Waiting()


class DelayTable:
    """The mark up to which delayed batches are published, and how many wait. Changed by `State.apply` alone."""

    def __init__(self, changed: set[tuple[Any, ...]]) -> None:
        self._changed = changed
        self.published = DueMark()
        self.saved_mark = NO_KEY
        self.by_topic: dict[int, Waiting] = {}

    @property
    def mark(self) -> DueKey:
        """The key up to which all are published."""
        return self.published.key

    def waiting(self, topic_id: int) -> Waiting:
        """Return how many wait for a topic. Any thread may ask."""
        return self.by_topic.get(topic_id, _NONE)

    def load_mark(self, row: Any) -> None:
        """Take the mark of a checkpoint in."""
        self.published = msgspec.convert(row, DueMark)
        self.saved_mark = self.mark

    def saved(self, mark: DueKey) -> None:
        """Take in the mark that a checkpoint has; the clock may have been set back since."""
        self.saved_mark = min(mark, self.mark)

    def load(self, topic_id: int, row: Any) -> None:
        """Take in how many wait for a topic, of a checkpoint."""
        self.by_topic[topic_id] = msgspec.convert(row, Waiting)

    def apply(self, entry: BatchDelayed | BatchesRecalled | DueSkipped | DelaysSetBack) -> None:
        """Take the effect of an entry in."""
        match entry:
            case BatchDelayed():
                self._count(entry.place.topic_id, 1, entry.messages)
            case BatchesRecalled(topic_id, batches):
                self._count(topic_id, -len(batches), -sum(each.messages for each in batches))
            case DueSkipped(due_ms, id_, topic_id, messages):
                self._set(self.published.moved(DueKey(due_ms, id_)))
                if topic_id:
                    self._count(topic_id, -1, -messages)
            case DelaysSetBack():
                self._set(self.published.set_back(entry))
                self.saved(self.saved_mark)

    def publish(self, key: DueKey, topic_id: int, messages: int) -> None:
        """Take in that the next batch is published."""
        self._set(self.published.moved(key))
        self._count(topic_id, -1, -messages)

    def forget_topic(self, topic_id: int) -> None:
        """Forget what waits for a topic."""
        if self.by_topic.pop(topic_id, None) is not None:
            self._changed.add(("delayed", topic_id))

    def _set(self, published: DueMark) -> None:
        self.published = published
        self._changed.add(("due-mark",))

    def _count(self, topic_id: int, batches: int, messages: int) -> None:
        before = self.by_topic.get(topic_id, _NONE)
        after = Waiting(before.batches + batches, before.messages + messages)
        if after.batches > 0:
            self.by_topic[topic_id] = after
        else:
            self.by_topic.pop(topic_id, None)
        self._changed.add(("delayed", topic_id))
