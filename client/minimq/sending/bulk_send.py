"""The implementation of `send_many`: large batches from an iterable, receipts in the order of the messages."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, count, islice, repeat
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from minimq.sending.chosen_queues import takes_only_tombstones
from minimq.sending.destination_queues import MIN_SPLIT_MESSAGES
from minimq.sending.hold import Hold, HoldOf
from minimq.sending.interceptor import Interceptors, reason_of
from minimq.sending.pending_batch import PendingRecords, UserCall
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import BatchReceipt, SendReceipt
from minimq.sending.sender import Sender
from minimq_common.batch.builder import MESSAGE_BYTES, BatchBuilder, lengths_of_bodies
from minimq_common.errors import MinimqError, SendFailed
from minimq_common.model import Message, MessageQueue, TopicRoute
from minimq_common.names import check_topic

#: Messages read from the iterable at a time: few enough to stay in the processor's cache.
_PART = 512
#: The first part is small: it shows how large the messages are.
_FIRST_PART = 16
#: Limit because an open batch costs more memory than the buffer counts for its messages.
_MAX_OPEN_BATCHES = 1_000

#: Indexes of messages among all messages of a call.
Slots = Sequence[int]


#: Topic, fixed queue, message group and bucket of the hold that the messages of a batch share.
Destination = tuple[str, MessageQueue | None, str | None, Hashable]


class _OpenBatch(NamedTuple):
    """A batch that is being filled."""

    destination: Destination
    records: BatchBuilder
    slots: list[Slots]
    key: int
    #: It has the room, and is sent once the records are complete.
    batch: PendingRecords


class BulkSend:
    """One call of `send_many`. Runs on the thread of the caller; only outcomes of batches arrive on other threads."""

    def __init__(
        self,
        sender: Sender,
        options: ProducerOptions,
        find: Callable[[str], TopicRoute],
        choose: Callable[[Message], MessageQueue | None],
        hold_of: HoldOf,
        interceptors: Interceptors,
        *,
        is_bound: bool,
        may_move: bool,
        cancelled: threading.Event | None = None,
    ) -> None:
        self._sender = sender
        self._options = options
        self._find = find
        self._choose = choose
        self._hold_of = hold_of
        self._is_bound = is_bound
        self._may_move = may_move
        self._cancelled = cancelled or threading.Event()
        self._open: dict[Destination, _OpenBatch] = {}
        #: Destinations that have had a full batch.
        self._filled: set[Destination] = set()
        self._count = 0
        self._interceptors = interceptors
        #: Messages, by index, whose outcome the interceptors have not received yet.
        self._watched: dict[int, Message] = {}
        #: The error that ended the call early.
        self._failure: MinimqError | None = None
        #: Batches without an outcome, sent or not; `_ends` reports outcomes.
        self._unfinished: dict[int, PendingRecords] = {}
        self._keys = count()
        self._ends: SimpleQueue[None] = SimpleQueue()
        self._outcomes: list[tuple[list[Slots], BatchReceipt | MinimqError]] = []

    def _intercepted(self, messages: Iterable[Message]) -> Iterator[Message]:
        for place, message in enumerate(messages):
            made = self._watched[place] = self._interceptors.before_send(message)
            yield made

    def send(self, messages: Iterator[Message]) -> None:
        """Send all messages. Raises as `Producer.send_many`."""
        try:
            self._send_all(self._intercepted(messages) if self._interceptors else messages)
        except BaseException as error:
            self._failure = reason_of(error)
            for batch in [*self._unfinished.values()]:
                if not self._sender.take_back(batch, self._failure):
                    self._unfinished.clear()  # what was sent has failed
            raise

    def _send_all(self, messages: Iterator[Message]) -> None:
        wanted = _FIRST_PART
        while not self._cancelled.is_set() and (part := list(islice(messages, wanted))):
            lengths, are_alike = _lengths(part)
            size = sum(lengths)
            if size > 2 * self._options.batch_bytes:  # messages are suddenly much larger: add them one by one
                for message, length in zip(part, lengths, strict=True):
                    self._add([message], [length], are_alike=are_alike)
            else:
                self._add(part, lengths, are_alike=are_alike)
            wanted = max(
                1, min(_PART, self._options.batch_bytes * len(part) // max(size, 1), self._options.batch_messages)
            )
        for each in self._open.values():
            for portion in self._spread(each):
                self._send(portion)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the outcomes of all sent batches; if `send` failed, messages without one get its error."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with suppress(Empty):
            while self._unfinished:
                left_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                self._ends.get(timeout=left_s)
        if self._failure is not None:
            self._tell([*self._watched], self._failure)

    def receipts(self) -> list[SendReceipt]:
        """Return the receipts of all messages, in order. Raises `SendFailed` if a batch failed."""
        receipts: list[Any] = [None] * self._count
        failures: list[MinimqError] = []
        for slots, outcome in self._outcomes:
            if isinstance(outcome, BatchReceipt):
                _fill(receipts, slots, outcome)
            else:
                failures.append(outcome)
        if failures:
            raise self._failed(failures)
        return receipts

    def _add(self, messages: list[Message], lengths: list[int], *, are_alike: bool) -> None:
        start = self._count
        self._count += len(messages)
        if not are_alike or self._is_bound or self._find(messages[0].topic).key_queues:
            self._add_each(messages, lengths, start)
        else:
            hold = self._hold_of(messages[0], time.monotonic(), time.time())
            shared = messages[0].topic, None, None, None if hold is None else hold.bucket
            self._add_to(shared, messages, range(start, self._count), lengths, hold)

    def _add_each(self, messages: list[Message], lengths: list[int], start: int) -> None:
        monotonic_s, time_s = time.monotonic(), time.time()
        groups: defaultdict[Destination, list[int]] = defaultdict(list)
        holds: dict[Destination, Hold] = {}
        for index, message in enumerate(messages):
            if not isinstance(message.topic, str):  # could be unhashable
                check_topic(message.topic)
            is_chosen = self._is_bound or message.message_group is not None or self._find(message.topic).key_queues
            queue = self._choose(message) if is_chosen else None
            hold = self._hold_of(message, monotonic_s, time_s)
            destination = message.topic, queue, message.message_group, None if hold is None else hold.bucket
            groups[destination].append(index)
            if hold is not None:
                holds[destination] = holds.get(destination, hold).merged(hold)
        for destination, group in groups.items():
            chosen = [messages[index] for index in group]
            slots = [start + index for index in group]
            self._add_to(destination, chosen, slots, [lengths[index] for index in group], holds.get(destination))
        if len(self._open) > _MAX_OPEN_BATCHES:
            self._send_open()

    def _add_to(
        self, destination: Destination, messages: list[Message], slots: Slots, lengths: list[int], hold: Hold | None
    ) -> None:
        size = sum(lengths) + MESSAGE_BYTES * len(messages)
        found = self._open.get(destination) or self._begin(destination, messages[0], hold)
        if self._sender.reserve(found.batch, size) is not None:
            self._send_open()  # open batches hold room that only sending frees
            found = self._begin(destination, messages[0], hold)
            while (freed := self._sender.reserve(found.batch, size)) is not None:
                self._sender.wait_for_room(freed)
        batch, records = found.batch, found.records
        if hold is not None and batch.hold is not None:
            batch.hold = batch.hold.merged(hold)
        before, held = records.size, records.memory
        records.add(messages, lengths)
        found.slots.append(slots)
        grown = records.size - before
        self._sender.grow(batch, records.memory - held - size)  # keys and properties
        # A batch is full if another part of this size would not fit.
        is_full = records.size + grown > self._options.batch_bytes
        if is_full or len(records) + len(messages) > self._options.batch_messages:
            self._filled.add(destination)
            self._send(found)
            del self._open[destination]

    def _begin(self, destination: Destination, first: Message, hold: Hold | None) -> _OpenBatch:
        topic, _, message_group, _ = destination
        records = BatchBuilder(
            self._options.max_body_bytes,
            self._options.batch_compression,
            message_group,
            is_compacted=takes_only_tombstones(self._find(topic)),
        )
        made = self._open[destination] = self._new(destination, records, [], hold)
        return made

    def _new(
        self, destination: Destination, records: BatchBuilder, slots: list[Slots], hold: Hold | None
    ) -> _OpenBatch:
        topic, queue, message_group, _ = destination
        key = next(self._keys)
        batch = self._unfinished[key] = PendingRecords(
            topic,
            queue,
            completion=partial(self._complete, key, slots),
            may_move=self._may_move and queue is not None,
            message_group=message_group,
            hold=hold,
        )
        return _OpenBatch(destination, records, slots, key, batch)

    def _send_open(self) -> None:
        for each in self._open.values():
            self._send(each)
        self._open.clear()

    def _send(self, filled: _OpenBatch) -> None:
        filled.batch.count = len(filled.records)
        if filled.batch.count:
            self._sender.send_batch(filled.batch, filled.records)
        else:  # there was no room for its first messages
            self._end(filled.key)

    def _spread(self, whole: _OpenBatch) -> list[_OpenBatch]:
        """Divide messages for any queue among the queues, unless they have filled batches before."""
        topic, queue, _, _ = whole.destination
        portions = math.ceil(len(whole.records) / MIN_SPLIT_MESSAGES)
        if portions > 1 and queue is None and whole.destination not in self._filled:
            portions = min(portions, self._find(topic).write_queue_count())
        else:
            portions = 1
        return self._split(whole, portions) if portions > 1 else [whole]

    def _split(self, whole: _OpenBatch, count: int) -> list[_OpenBatch]:
        portions: list[_OpenBatch] = []
        begin, slots_of_whole = 0, [*whole.slots]
        for records in whole.records.split(count):
            if portions:
                portion = self._new(whole.destination, records, [], whole.batch.hold)
            else:
                portion = whole._replace(records=records)
                portion.slots.clear()
            at, end = 0, begin + len(records)
            for slots in slots_of_whole:
                portion.slots.append(slots[max(begin - at, 0) : max(end - at, 0)])
                at += len(slots)
            begin = end
            self._sender.grow(portion.batch, records.memory - portion.batch.memory)
            portions.append(portion)
        return portions

    def _complete(self, key: int, slots: list[Slots], outcome: BatchReceipt | MinimqError) -> UserCall | None:
        self._outcomes.append((slots, outcome))
        if self._interceptors:
            return partial(self._notify_and_end, key, slots, outcome)
        self._end(key)
        return None

    def _notify_and_end(self, key: int, slots: list[Slots], outcome: BatchReceipt | MinimqError) -> None:
        try:
            self._tell(chain.from_iterable(slots), outcome)
        finally:
            self._end(key)

    def _end(self, key: int) -> None:
        self._unfinished.pop(key, None)
        self._ends.put(None)

    def _tell(self, places: Iterable[int], outcome: BatchReceipt | MinimqError) -> None:
        for index, place in enumerate(places if self._interceptors else ()):
            message = self._watched.pop(place, None)
            if message is None:
                continue
            if isinstance(outcome, MinimqError):
                self._interceptors.after_send(message, None, outcome)
            else:
                self._interceptors.after_send(message, SendReceipt(outcome, index), None)

    def _failed(self, failures: list[MinimqError]) -> SendFailed:
        first = failures[0]
        stored = sum(outcome.count for _, outcome in self._outcomes if isinstance(outcome, BatchReceipt))
        in_doubt = sum(failure.may_be_stored for failure in failures if isinstance(failure, SendFailed))
        return SendFailed(
            f"{len(failures)} of {len(self._outcomes)} batches failed: of {self._count} messages, {stored} are stored, "
            f"{in_doubt} may be stored; the first failure: {first.message.splitlines()[0]}",
            first.attempts if isinstance(first, SendFailed) else (),
            stored=stored,
            may_be_stored=in_doubt,
            not_stored=self._count - stored - in_doubt,
        )


def _fill(receipts: list[Any], slots: list[Slots], receipt: BatchReceipt) -> None:
    index = 0
    for part in slots:
        made = map(SendReceipt, repeat(receipt), range(index, index + len(part)))
        if isinstance(part, range):
            receipts[part.start : part.stop] = made
        else:
            for slot, single in zip(part, made, strict=True):
                receipts[slot] = single
        index += len(part)


def _lengths(messages: Sequence[Message]) -> tuple[list[int], bool]:
    """Return the length of each body, and whether all may share a batch. Raises as `lengths_of_bodies`."""
    first = messages[0]
    with suppress(TypeError, AttributeError):  # an item is not a message
        topic, delay, moment = first.topic, first.deliver_after_s, first.deliver_at
        alike = [  # the hot loop of `send_many`: one pass, times compared by identity
            len(message.body)
            for message in messages
            if message.topic == topic
            and message.message_group is None
            and message.deliver_after_s is delay
            and message.deliver_at is moment
            and not message.recallable
        ]
        if len(alike) == len(messages) and isinstance(topic, str):
            return alike, True
    return lengths_of_bodies(messages), False
