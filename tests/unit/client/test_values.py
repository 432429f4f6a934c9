"""Messages, receipts and errors are values: they are kept, copied, compared, hashed and sent to other processes."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from collections.abc import Callable, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import pytest

from minimq import Message, MessageQueue
from minimq.consuming.received import EncodedRecords, ReceivedBatch, ReceivedMessage
from minimq.features.dead_letters.dead_letter import DeadLetter
from minimq.features.listeners.retries import repeated
from minimq.features.work_queues.copies import dead_letter_of
from minimq.features.work_queues.work_queue_message import OpenedMessages, WorkQueueMessage
from minimq_common import errors
from minimq_common.batch.builder import encode
from minimq_common.errors import MinimqError
from support.compacted_batches import BASE, STORED_MS, compacted_of

QUEUE = MessageQueue("t", "broker-a", 3)
COUNT = 2_000
BORN_MS = 1_700_000_000_000
COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle 2": lambda value: pickle.loads(pickle.dumps(value, 2)),
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}
copied = pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)


@cache
def sent(count: int) -> Sequence[Message]:
    return [
        Message("t", b"%d" % i * 40, ("red", None)[i % 2], [f"k{i}", "é"][: i % 3], {"name": f"ü{i}"} if i % 5 else {})
        for i in range(count)
    ]


def stored(messages: Sequence[Message], base_offset: int = 100) -> EncodedRecords:
    born_ms = [BORN_MS + index for index in range(len(messages))]
    data = encode(messages, born_ms, 7, base_offset, 1 << 22)
    return EncodedRecords(base_offset, BORN_MS, 1, len(messages), data, due_ms=5)


def opened(messages: Sequence[Message], base_offset: int = 100) -> ReceivedBatch:
    return ReceivedBatch(QUEUE, stored(messages, base_offset))


def popped(messages: Sequence[Message]) -> list[WorkQueueMessage]:
    return OpenedMessages(QUEUE, stored(messages)).messages(100, 100 + len(messages), 2, 9, "g")


def told(message: ReceivedMessage) -> tuple[object, ...]:
    place = (message.topic, message.queue, message.queue_offset, message.message_id)
    content = (message.body, message.tag, message.keys, message.properties, message.is_tombstone, message.group_hash)
    return place, content, (message.born_ms, message.stored_at, message.due_at, message.delivery_count)


@copied
@pytest.mark.parametrize(
    "message",
    [
        Message("t", b"x"),
        Message("t", b"x", "red", ["a", "b"], {"n": "v"}, "group", 3.0, None, True),
        Message("t", b"x", properties=MappingProxyType({"n": "v"})),
    ],
    ids=["plain", "full", "view"],
)
def test_a_message_is_a_value(message: Message, copied: Callable[[Any], Any]) -> None:
    again = copied(message)
    assert again == message
    assert hash(again) == hash(message)
    assert encode([again, Message("t", b"y")], 1, 1, 1, 9) == encode([message, Message("t", b"y")], 1, 1, 1, 9)


@copied
@pytest.mark.parametrize("index", [0, 1, 1_345, COUNT - 1])
def test_a_received_message_is_a_value(index: int, copied: Callable[[Any], Any]) -> None:
    whole, taken = opened(sent(COUNT)), OpenedMessages(QUEUE, stored(sent(COUNT)))
    for message in (
        whole.messages(0)[index],
        whole.messages(100 + index)[0],
        *taken.messages(100 + index, 101 + index, 2, 9, "g"),
    ):
        again = copied(message)
        assert again == message
        assert hash(again) == hash(message)
        assert isinstance(again, type(message))
        assert told(again) == told(message)
        assert again != whole.messages(100 + COUNT - 3)[0]


@pytest.mark.parametrize("read", [lambda given: opened(given).messages(0), popped], ids=["received", "popped"])
def test_a_message_that_is_kept_or_pickled_leaves_its_batch_behind(
    read: Callable[[list[Message]], list[ReceivedMessage]],
) -> None:
    given = [Message("t", b"x" * 150, keys=[f"key-{i}"], properties={"n": f"{i}"}) for i in range(COUNT)]
    read(given)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = [read(given)[1_234] for _ in range(10)]
        size = (tracemalloc.get_traced_memory()[0] - before) / len(kept)
    finally:
        tracemalloc.stop()
    assert size < 30_000, "the batch has 370,000 bytes, of which 60,000 are keys and properties"
    assert len(pickle.dumps(kept[0])) < 1_000
    assert kept[0].keys == ("key-1234",)
    assert kept[0].properties == {"n": "1234"}


@copied
def test_a_message_of_a_compacted_batch_is_a_value(copied: Callable[[Any], Any]) -> None:
    batches = [encode(sent(COUNT), BORN_MS, producer, 3, 1 << 22) for producer in (5, 6)]
    data = compacted_of(batches, [number % 3 == 0 for number in range(2 * COUNT)])
    stored = EncodedRecords(BASE, STORED_MS, 1, 2 * COUNT, data)
    whole = ReceivedBatch(QUEUE, stored)
    messages = whole.messages(0)
    assert len(messages) == 2 * COUNT // 3 + 1
    for message in (messages[0], messages[COUNT // 3 + 1], messages[-1]):
        again = copied(message)
        assert again == message
        assert told(again) == told(message)
        assert message.message_id == whole.records.message_id(message.index)
        assert message.properties == whole.records.properties(message.index)


@copied
def test_a_redelivered_message_and_a_dead_letter_are_values(copied: Callable[[Any], Any]) -> None:
    message = opened(sent(COUNT)).messages(100)[77]
    letter = dead_letter_of(message, "g", "why", 3)
    for value in (repeated(message), DeadLetter(opened([letter] * COUNT).messages(0)[5])):
        again = copied(value)
        assert again == value
        assert hash(again) == hash(value)
        assert again.properties == message.properties


@copied
@pytest.mark.parametrize("cls", errors.BY_CODE.values(), ids=errors.BY_CODE)
def test_an_error_is_a_value(cls: type[MinimqError], copied: Callable[[Any], Any]) -> None:
    error = cls("why", retry_after_s=2.0) if cls is not errors.SendFailed else errors.SendFailed("why", ("first",))
    if isinstance(error, errors.DamagedMessages):
        error.at(QUEUE, 5, 9)
    again = copied(error)
    assert type(again) is cls
    assert (str(again), vars(again)) == (str(error), vars(error))
