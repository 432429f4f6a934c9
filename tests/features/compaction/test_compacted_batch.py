"""A compacted batch holds exactly the records that remain, at their offsets, with all that they were."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minimq.consuming.received import EncodedRecords, ReceivedBatch, ReceivedMessage
from minimq_broker.features.compaction.compacted_batch import BatchPart, compacted
from minimq_common.batch import builder as batch_builder
from minimq_common.batch import header as batch
from minimq_common.batch.header import SPARSE_VERSION
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import CorruptBatch
from minimq_common.model import Message, MessageQueue
from support.batches import ALWAYS, NOW_MS, compressions, messages, one, sealed
from support.cases import for_each
from support.compacted_batches import BASE, COMPACTED_MS, STORED_MS, compacted_of, parts_of

QUEUE = MessageQueue("t", "broker-a", 0)

sources = st.lists(
    st.lists(st.tuples(messages, st.integers(NOW_MS, NOW_MS + 100_000), st.booleans()), min_size=1, max_size=6),
    min_size=1,
    max_size=4,
)


def encoded(sent: list[list[tuple[Message, int, bool]]], compression: Any = None) -> tuple[list[bytes], list[bool]]:
    made = [
        batch_builder.encode(
            [item[0] for item in each], [item[1] for item in each], 0xFEED, number, 1 << 20, compression
        )
        for number, each in enumerate(sent)
    ]
    return made, [remains for each in sent for _, _, remains in each]


def opened(data: bytes, base_offset: int = BASE, stored_ms: int = STORED_MS) -> ReceivedBatch:
    return ReceivedBatch(QUEUE, EncodedRecords(base_offset, stored_ms, 0, batch.HEADER.unpack_from(data)[3], data))


def all_of(message: ReceivedMessage) -> tuple[Any, ...]:
    return (
        *(message.queue_offset, message.body, message.tag, message.keys, message.properties),
        *(message.message_id, message.born_at, message.stored_at),
    )


def uncompacted(made: list[bytes]) -> list[tuple[Any, ...]]:
    found, at = [], BASE
    for number, data in enumerate(made):
        received = opened(data, at, STORED_MS + number)
        found += [all_of(message) for message in received.messages(0)]
        at = received.end_offset
    return found


@settings(deadline=None)
@given(sent=sources, compression=compressions)
@example(sent=[[(one(keys=["a"]), NOW_MS, False)]], compression=None)
@example(sent=[[(one(keys=["a"]), NOW_MS, False)], [(one(tag="x"), NOW_MS, True)]], compression=ALWAYS)
def test_what_remains_is_what_it_was(sent: list[list[tuple[Message, int, bool]]], compression: Any) -> None:
    made, remains = encoded(sent, compression)

    data = compacted_of(made, remains)

    received = opened(data)
    received.records.check_values()
    wanted = [each for each, is_there in zip(uncompacted(made), remains, strict=True) if is_there]
    assert [all_of(message) for message in received.messages(0)] == wanted
    assert received.end_offset == BASE + len(remains)
    assert received.records.header.remaining == sum(remains)
    for first in range(len(remains) + 1):
        assert [each.queue_offset for each in received.messages(BASE + first)] == [
            each[0] for each in wanted if each[0] >= BASE + first
        ]
    about = batch.verified_header(data)
    assert (about.version, about.count, about.removed) == (SPARSE_VERSION, len(remains), remains.count(False))
    assert about.tag_hashes is not None
    assert set(about.tag_hashes) == {batch.tag_hash(each[2]) for each in wanted}
    assert data[: about.size + 1]


@settings(deadline=None)
@given(sent=sources, data=st.data())
def test_a_compacted_batch_is_compacted_again(sent: list[list[tuple[Message, int, bool]]], data: st.DataObject) -> None:
    made, remains = encoded(sent)
    once = RecordBatch(compacted_of(made, remains))
    behind = batch_builder.encode([one(keys=["b"]), one()], NOW_MS, 9, 9, 1 << 20)
    again = data.draw(st.lists(st.booleans(), min_size=once.remaining, max_size=once.remaining))

    parts = [
        BatchPart(BASE, STORED_MS, COMPACTED_MS - 5, once, again),
        *parts_of([behind], [True, False], BASE + len(once)),
    ]
    received = opened(compacted(parts))

    wanted = [each for each, is_there in zip(uncompacted(made), remains, strict=True) if is_there]
    left = [each for each, is_there in zip(wanted, again, strict=True) if is_there]
    found = received.messages(0)
    assert [all_of(message) for message in found[:-1]] == left
    assert found[-1].queue_offset == BASE + len(remains)
    origins = received.records.origins
    assert origins is not None
    times = [origins.origin(message.index).thinned_ms for message in found]
    first = COMPACTED_MS if len(made) > 1 else COMPACTED_MS - 5
    assert times == [first] * len(left) + [COMPACTED_MS]


HEAD = batch.HEADER_BYTES
#: Behind the number of records that remain and the hash of "no tag".
AT = HEAD + 8


@for_each(
    ("at", "changed", "reason"),
    [
        (HEAD, b"\x07\0\0\x40", "7 of its 6 records remain"),
        (HEAD, b"\x01\0\0\x40", "1 records says that it has 2 origins"),
        (AT, b"\x03\0\0\0", "2 records says that it has 3 origins"),
        (AT, b"\0\0\0\0", "has 0 origins"),
        (AT + 4, b"\x05\0\0\0", "do not ascend"),
        (AT + 8, b"\x07\0\0\0", "do not ascend"),
        (AT + 12, b"\x01\0\0\0", "has no origin"),
        (AT + 12 + 24, b"\xff" * 8, "has a time"),
        (AT + 12 + 40, b"\0\0\0\0", "do not ascend"),
    ],
)
def test_columns_that_contradict_each_other_are_found(at: int, changed: bytes, reason: str) -> None:
    made = batch_builder.encode([one(), one(), one()], NOW_MS, 1, 1, 1 << 20)
    data = bytearray(compacted_of([made, made], [True, False, False, False, False, True])[:-4])
    data[at : at + len(changed)] = changed

    with pytest.raises(CorruptBatch, match=reason):
        RecordBatch(sealed(bytes(data)))


@settings(deadline=None)
@given(sent=st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), min_size=1, max_size=300))
@example(sent=[("a", False), ("b", True)])
@example(sent=[("a", n != 500) for n in range(1000)])
def test_a_batch_does_not_grow_by_what_is_removed(sent: list[tuple[str, bool]]) -> None:
    made = batch_builder.encode([one(body=b"x", keys=[key]) for key, _ in sent], NOW_MS, 1, 1, 1 << 20)
    remains = [is_there for _, is_there in sent]

    data = compacted_of([made], remains)

    assert all(remains) or len(data) <= len(made)
    assert [message.queue_offset - BASE for message in opened(data).messages(0)] == [
        number for number, is_there in enumerate(remains) if is_there
    ]
