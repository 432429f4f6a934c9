"""Salvage of what can still be read of some queues of a segment, with how much is lost to damage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from minimq_broker.core.state import QueueKey
from minimq_broker.store.lmdb_file import DAMAGE
from minimq_broker.store.rows import Batch, Row, check_row, unpack_row
from minimq_broker.store.segment import Segment


class Salvage:
    """The batches of some topics in a segment, as far as they can be read. Used by one thread at a time."""

    def __init__(self, segment: Segment, topics: Mapping[int, int], span: Callable[[QueueKey], range]) -> None:
        self.lost: Counter[QueueKey] = Counter()
        self.damage = ""
        self._segment = segment
        segment.pages.is_over = True  # what can be read is read, whatever the others are like
        self._span = span
        found = {QueueKey(topic_id, number) for topic_id, queues in topics.items() for number in range(queues)}
        for topic_id in topics:
            try:
                found.update(segment.queues_of(topic_id))
            except DAMAGE as error:
                self.damage = self.damage or str(error)
        self.queues = [queue for queue in sorted(found) if self._may_hold(queue)]

    def rows(self, queue: QueueKey) -> Iterator[Row]:
        """Yield the rows of a queue that can be read."""
        del self.lost[queue]
        end: int | None = None
        try:
            for last, key, value in self._segment.values_of(queue):
                try:
                    check_row(key, value)
                    row = unpack_row(last, value)
                except DAMAGE as error:
                    self._lose(queue, end, last + 1, error)
                else:
                    yield row
                end = last + 1
        except DAMAGE as error:
            self._lose(queue, end, self._span(queue).stop, error)

    def batches(self, queue: QueueKey) -> Iterator[Batch]:
        """Yield the batches of a queue that can be read."""
        for row in self.rows(queue):
            try:
                entry = self._segment.entry_of(queue, row)
            except DAMAGE as error:
                self._lose(queue, row.base_offset, row.last_offset + 1, error)
            else:
                yield Batch(queue, row, entry)

    def _may_hold(self, queue: QueueKey) -> bool:
        try:
            return next(iter(self._segment.values_of(queue)), None) is not None
        except DAMAGE:
            return True

    def _lose(self, queue: QueueKey, first: int | None, end: int, error: Exception) -> None:
        start = self._span(queue).start if first is None else first
        self.lost[queue] += max(end - start, 0)
        self.damage = self.damage or str(error)
