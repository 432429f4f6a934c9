"""Delayed batches: which of them are published, and how many wait.

The key of a delayed batch is its due time and its log position. Batches are published in the order of keys, so a single
key, the mark, separates published batches from waiting ones, however many there are. If the clock is set back, the mark
is set back too, and remembers its former key for the batches that were stored before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

import msgspec

from minimq_broker.features.feature import KernelState, Table
from minimq_broker.state.facts import Topic
from minimq_broker.state.queue_ends import BatchApplied, BatchHeld, HeldKey

NAME = "delayed"
#: Of held entries.
TAG = 1
#: Default of the longest delay: 366 days.
MAX_DELAY_MS = 366 * 86_400_000


#: Before all keys.
NO_KEY = HeldKey(0, 0)


class DueMark(msgspec.Struct, frozen=True, array_like=True):
    """Separates published from waiting delayed batches; also its row in the checkpoint."""

    due_ms: int = 0
    id: int = 0
    #: Larger keys from before the clock was set back: due time, id, and the first id that was stored afterwards.
    former: tuple[tuple[int, int, int], ...] = ()

    @property
    def key(self) -> HeldKey:
        """The key up to which all batches are published. Some after it may be published as well."""
        return HeldKey(self.due_ms, self.id)

    def covers(self, key: HeldKey) -> bool:
        return key <= self.key or any(key <= former[:2] and key.position < former[2] for former in self.former)

    def moved(self, key: HeldKey) -> DueMark:
        """Return the mark after the batch with this key, the first waiting one, is published or skipped."""
        return DueMark(*key, tuple(former for former in self.former if former[:2] > key))

    def set_back(self, to: DelaysSetBack) -> DueMark:
        """Return the mark after the clock was set back."""
        return DueMark(*self.key, (*self.former, (*self.key, to.id))).moved(HeldKey(to.due_ms, 0))


@dataclass(frozen=True, slots=True)
class Delay:
    """When a batch is to be published; see `Hold`."""

    feature: ClassVar[str] = NAME
    numbered: ClassVar[bool] = True

    #: Counts from the time at which it is stored.
    delay_ms: int = 0
    #: In ms since 1970; overrides `delay_ms`.
    due_ms: int | None = None
    recallable: bool = False


class RecallOutcome(IntEnum):
    #: It will never be published.
    RECALLED = 0
    ALREADY_RECALLED = 1
    #: It is published, or does not exist.
    TOO_LATE = 2
    #: It was not stored as recallable, and still waits.
    NOT_RECALLABLE = 3


def note_of(delay: Delay) -> bytes:
    """Return what the entry of a delayed batch has besides its due time."""
    return bytes([delay.recallable])


def is_recallable(held: BatchHeld) -> bool:
    return held.note == b"\1"


class RecalledEntry(msgspec.Struct, frozen=True, array_like=True):
    """A recalled batch: its key, and its number of messages."""

    due_ms: int
    id: int
    messages: int


class BatchesRecalled(msgspec.Struct, frozen=True, tag="delayed.recalled"):
    """Delayed batches of a topic were recalled, so they will not be published."""

    topic_id: int
    batches: tuple[RecalledEntry, ...]


class DueSkipped(msgspec.Struct, frozen=True, tag="delayed.skipped"):
    """The mark moves to a key without a publication: what waited up to it is lost, recalled, or of a deleted topic."""

    due_ms: int
    id: int
    #: Topic and number of messages of the batch with this key if it is lost, else 0.
    topic_id: int = 0
    messages: int = 0


class DelaysSetBack(msgspec.Struct, frozen=True, tag="delayed.set-back"):
    """The clock was set back: the mark moves back to this time, for batches with at least this id."""

    due_ms: int
    id: int


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """Waiting batches and messages of a topic; also its row in the checkpoint."""

    batches: int = 0
    messages: int = 0


_NONE = Waiting()


class DelayTable(Table):
    """The mark of published batches, and how many wait per topic. Index rows of segments have the batches."""

    def __init__(self) -> None:
        super().__init__()
        self.published = DueMark()
        self.saved_mark = NO_KEY
        self.by_topic: dict[int, Waiting] = {}

    @property
    def mark(self) -> HeldKey:
        """The key up to which all batches are published."""
        return self.published.key

    def waiting(self, topic_id: int) -> Waiting:
        """Return how many batches and messages wait for a topic. Any thread may call this."""
        return self.by_topic.get(topic_id, _NONE)

    # ---- changes ------------------------------------------------------------------------------------

    def held(self, held: BatchHeld, state: KernelState) -> None:
        self._count(held.place.topic_id, 1, held.messages)

    def released(self, key: HeldKey, batch: BatchApplied, state: KernelState) -> None:
        self._set(self.published.moved(key))
        self._count(batch.queue.topic_id, -1, batch.place.base_offset - batch.end.offset)

    def apply(self, fact: Any, at_ms: int, state: KernelState) -> None:
        match fact:
            case BatchesRecalled(topic_id, batches):
                self._count(topic_id, -len(batches), -sum(each.messages for each in batches))
            case DueSkipped(due_ms, id_, topic_id, messages):
                self._set(self.published.moved(HeldKey(due_ms, id_)))
                if topic_id:
                    self._count(topic_id, -1, -messages)
            case DelaysSetBack():
                self._set(self.published.set_back(fact))
                self._saved(self.saved_mark)

    def topic_deleted(self, topic: Topic, state: KernelState) -> None:
        if self.by_topic.pop(topic.topic_id, None) is not None:
            self.changed.add(("waiting", topic.topic_id))

    def _set(self, published: DueMark) -> None:
        self.published = published
        self.changed.add(("mark",))

    def _count(self, topic_id: int, batches: int, messages: int) -> None:
        before = self.waiting(topic_id)
        after = Waiting(before.batches + batches, before.messages + messages)
        if after.batches > 0:
            self.by_topic[topic_id] = after
        else:
            self.by_topic.pop(topic_id, None)
        self.changed.add(("waiting", topic_id))

    # ---- checkpoint ---------------------------------------------------------------------------------

    def row(self, key: tuple[Any, ...]) -> DueMark | Waiting | None:
        return self.published if key == ("mark",) else self.by_topic.get(key[1])

    def load(self, key: tuple[Any, ...], value: Any) -> None:
        match key:
            case ("mark",):
                self.published = msgspec.convert(value, DueMark)
            case ("waiting", int(topic_id)):
                self.by_topic[topic_id] = msgspec.convert(value, Waiting)
            case _:
                raise ValueError(f"{key} is not a row of delayed messages")

    def saving(self) -> Callable[[], None]:
        mark = self.mark
        return lambda: self._saved(mark)

    def _saved(self, mark: HeldKey) -> None:
        self.saved_mark = min(mark, self.mark)  # the clock may have been set back since
