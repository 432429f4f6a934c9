"""Answers to consumers of work queues: reads delivered batches when a response is written."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import lmdb

from minimq_broker.calls.engine import Engine
from minimq_broker.calls.pull import batch_parts, fill_batch
from minimq_broker.calls.streams import AnswerStream
from minimq_broker.features.work_queues.clock import PopClock
from minimq_broker.features.work_queues.pop_runs import PopKey, PopOutcome, Run, Settle
from minimq_broker.log.rows import BorrowedViews, ReadLimits, StoredBatch
from minimq_broker.state.state import QueueKey
from minimq_common.errors import CorruptEntry, MinimqError
from minimq_common.wire.protocol_bounds import SET_ASIDE_MS
from minimq_common.wire.rpc import LARGE_BYTES, field_head, to_failure
from minimq_common.wire.unsent import UnsentBudget
from minimq_proto.v1 import work_queues_pb2

#: Results that may wait for a client that does not read. Beyond this, the broker stops receiving from it.
MAX_WAITING = 1_000
#: Target size of a response, which one take may exceed.
_RESPONSE_BYTES = 1 << 20


class PopAnswers(AnswerStream):
    """The answers of one stream. Reads the batches of delivered messages when they are written."""

    def __init__(
        self, context: Any, reader: PopReader, soon: Callable[[Callable[[], None]], object], unsent: UnsentBudget
    ) -> None:
        super().__init__(context, soon, unsent)
        self._reader = reader
        #: By take id: answers a waiting take at once, without messages.
        self.cancels: dict[int, Callable[[], None]] = {}

    def next_size(self) -> int:
        return _RESPONSE_BYTES if any(isinstance(answer, DeliveredRuns) for answer in self._answers) else 0

    def add(self, answer: work_queues_pb2.PopResult | DeliveredRuns) -> None:
        """Queue a result. If the stream has ended, give delivered messages back."""
        if self.cancels:
            self.cancels.pop(answer.take_id if isinstance(answer, DeliveredRuns) else answer.id, None)
        if not self._over.done():
            super().add(answer)
        elif isinstance(answer, DeliveredRuns):
            self._reader.give_back(answer)

    def fail(self, number: int, error: Exception) -> None:
        self.add(work_queues_pb2.PopResult(id=number, failure=to_failure(error)))

    def close(self) -> None:
        """Write nothing more, cancel waiting takes, and give back the messages of results that are still queued."""
        super().close()
        for cancel in [*self.cancels.values()]:
            cancel()
        answers, self._answers = self._answers, []
        for answer in answers:
            if isinstance(answer, DeliveredRuns):
                self._reader.give_back(answer)

    def take(self) -> bytes:
        """Return the encoded results, up to the size of a response."""
        parts: list[bytes] = []
        size = taken = 0
        with BorrowedViews() as borrowed:  # copies batches only once, from the file into the response
            for answer in self._answers:
                if size >= _RESPONSE_BYTES:
                    break
                if isinstance(answer, DeliveredRuns):
                    result = self._reader.encode(answer, borrowed)
                else:
                    result = [answer.SerializeToString()]
                result_size = sum(map(len, result))
                parts += field_head(work_queues_pb2.PopResponse.RESULTS_FIELD_NUMBER, result_size), *result
                size += result_size
                taken += 1
            data = b"".join(parts)
        del self._answers[:taken]
        self.expected -= taken
        return data


log = logging.getLogger(__name__)

#: Maximum bytes of one take, whatever it requests. The last batch may exceed it.
_MAX_BYTES = 4 << 20
#: Maximum queues whose latest batch is cached.
_MAX_PLACES = 10_000


class DeliveredRuns(NamedTuple):
    """The result of a take whose batches are not read yet."""

    take_id: int
    max_bytes: int
    have: frozenset[int]
    key: PopKey
    runs: Sequence[Run]
    epoch: int
    #: The queue has more messages to take now.
    has_more: bool


#: Settles messages of a queue for their consumer.
SettleFor = Callable[[PopKey, Settle], None]


class PopReader:
    """Reads the batches of delivered messages. Gives back those that do not fit, and sets aside unreadable ones."""

    def __init__(self, engine: Engine, clock: PopClock, settle: SettleFor) -> None:
        self._engine = engine
        self._clock = clock
        self._settle = settle
        #: The batch of each queue that was delivered last, without its bytes.
        self._places: dict[QueueKey, StoredBatch] = {}

    def encode(self, delivered: DeliveredRuns, borrowed: BorrowedViews) -> list[bytes]:
        """Encode the result of a take. The parts are valid until `borrowed` closes, because large batches are views."""
        key, result = delivered.key, work_queues_pb2.PopResult(id=delivered.take_id)
        queue = QueueKey(key.topic_id, key.queue_id)
        try:
            read, batches = self._read(queue, delivered, borrowed)
        except MinimqError as error:
            result.failure.CopyFrom(to_failure(error))
            return [result.SerializeToString()]
        counters, size = self._engine.counters, sum([len(batch.data) for batch in batches])
        counters.messages_out += sum([run.count for run in read])
        counters.bytes_out += size
        popped = result.popped
        popped.queue_id = queue.queue_id
        popped.epoch = delivered.epoch
        popped.has_more = delivered.has_more
        popped.is_compacted = self._engine.store.state.is_keyed(queue)
        popped.invisible_ms = max(0, delivered.runs[0].until_ms - self._clock.now_ms())
        for run in read:
            popped.runs.add(first=run.first, count=run.count, delivery_count=run.delivery_count, lost=run.lost)
        if size < len(batches) * LARGE_BYTES:
            for batch in batches:
                fill_batch(popped.batches.add(), batch).batch = bytes(batch.data)
            return [result.SerializeToString()]
        # Protobuf merges a message field that occurs twice: the second occurrence adds the batches.
        parts = [*batch_parts(work_queues_pb2.PoppedMessages.BATCHES_FIELD_NUMBER, batches)]
        more = field_head(work_queues_pb2.PopResult.POPPED_FIELD_NUMBER, sum(map(len, parts)))
        return [result.SerializeToString(), more, *parts]

    def give_back(self, delivered: DeliveredRuns) -> None:
        """Return messages whose client is gone. Does not count as a delivery."""
        self._give_back(delivered, [(run.first, run.end) for run in delivered.runs])

    def _give_back(self, delivered: DeliveredRuns, spans: Sequence[tuple[int, int]]) -> None:
        if spans:
            self._settle(delivered.key, Settle(delivered.runs[0].epoch, sorted(spans), PopOutcome.RETURN))

    def _read(
        self, queue: QueueKey, delivered: DeliveredRuns, borrowed: BorrowedViews
    ) -> tuple[list[Run], list[StoredBatch]]:
        room = min(delivered.max_bytes, _MAX_BYTES)
        read, left = list[Run](), list[tuple[int, int]]()
        batches: list[StoredBatch] = []
        gone = list[tuple[int, int]]()  # deleted meanwhile: the next take skips and reports them
        failure: MinimqError | None = None
        for run in delivered.runs:
            begin = at = run.first
            if batches and batches[-1].base_offset <= at < _end(batches[-1]):
                at = min(run.end, _end(batches[-1]))
            while at < run.end and room > 0 and failure is None:
                try:
                    found = self._found(queue, at, ReadLimits(run.end - at, room, borrowed=borrowed), delivered.have)
                except MinimqError as error:
                    stored_from = self._engine.store.bounds(queue)[0]
                    if at >= stored_from:
                        failure = error
                        break
                    behind = min(stored_from, run.end)
                    gone.append((at, behind))
                    begin = at = behind
                    continue
                room -= sum([len(batch.data) for batch in found])
                batches += found
                at = min(run.end, _end(found[-1]))
            if at > begin:
                read.append(run.part(begin, at))
            if at < run.end:
                left.append((at, run.end))
        self._give_back(delivered, gone)
        if failure is not None and not read:
            raise self._set_aside(queue, delivered, left, failure)
        self._give_back(delivered, left)
        return read, batches

    def _found(self, queue: QueueKey, offset: int, limits: ReadLimits, have: frozenset[int]) -> Sequence[StoredBatch]:
        place = self._places.get(queue)
        if place is not None and place.base_offset <= offset < _end(place) and place.position in have:
            return [place]
        try:
            found, _ = self._engine.store.search(queue, offset, limits)
        except (lmdb.Error, struct.error) as error:
            raise CorruptEntry(f"it cannot be read ({error})") from error
        if not found or found[0].base_offset > offset:
            raise CorruptEntry("nothing is found there")
        if len(self._places) >= _MAX_PLACES:
            self._places.clear()
        last = found[-1]
        self._places[queue] = replace(last, data=b"")
        return found

    def _set_aside(
        self, queue: QueueKey, delivered: DeliveredRuns, left: Sequence[tuple[int, int]], reason: MinimqError
    ) -> CorruptEntry:
        first, end = left[0]
        try:
            row = self._engine.store.log.row_at(queue, first)
        except (MinimqError, lmdb.Error, struct.error):
            row = None
        stop = end if row is None else min(end, row.last_offset + 1)
        if row is not None and row.base_offset > first:
            stop = min(end, row.base_offset)
        until_ms = self._clock.now_ms() + SET_ASIDE_MS
        self._settle(delivered.key, Settle(delivered.runs[0].epoch, [(first, stop)], PopOutcome.FREE, until_ms))
        rest = [(first, last) for first, last in [(stop, end), *left[1:]] if first < last]
        self._give_back(delivered, rest)
        where = f"{self._engine.store.state.name_of(queue)} at offsets {first} to {stop - 1}"
        log.error("pop: cannot read group=%s queue=%s error=%s", delivered.key.group, where, reason.message)
        return CorruptEntry(
            f"queue {where} cannot be read: {reason.message}; these messages are set aside for "
            f"{SET_ASIDE_MS // 60_000} minutes and the group continues with others: run minimq-broker check"
        )


def _end(batch: StoredBatch) -> int:
    return batch.base_offset + batch.count
