"""Entries of the log as bytes: their format stays as it is, and none can be taken for another."""

from __future__ import annotations

import google_crc32c
import pytest

from minimq_broker.log.entry import HEADER_BYTES, batch_entry, effect, held_entry, opened, read_header, released_entry
from minimq_broker.state.facts import Topic, TopicSet, decode_fact, encode_fact
from minimq_broker.state.queue_ends import HeldKey
from minimq_broker.state.state import QueueKey, State
from minimq_broker.state.state_rows import load_row
from minimq_common.batch import header as batch
from minimq_common.errors import CorruptEntry, StoreError
from support.cases import for_each
from support.kernel_stores import numbered_batch

QUEUE = QueueKey(5, 3)
AT_MS = 1_700_000_000_000


HEADER_OF_USER = bytes.fromhex("e210664c01000000000000008003000000050000000000000009000000000000000068e5cf8b010000")
BATCH = bytes.fromhex(
    "02000100010000000400000000806e877401000000806e87740100000700000000000000030000000000000000000000"
    + "00000000080000000000000000000000000000000000000000000000000000000000000000000000000000000000000004000000"
    + "0000000004000000626f6479f2a8e445"
)
FACT = bytes.fromhex(
    "1d3ea53e02000000000000000000000000000000000000000000000000000000000068e5cf8b01000082a474797065a9746f7069632d7365"
    "74a5746f70696386a46e616d65a174a8746f7069635f696405ab726561645f71756575657304ac77726974655f71756575657304aa706572"
    "6d697373696f6e06aa637265617465645f6d7301"
)


@for_each(
    "entry",
    [
        held_entry(2, QUEUE, AT_MS, 0, b"note", numbered_batch(7, 3), numbered=False),
        released_entry(2, QUEUE, 9, AT_MS, HeldKey(0, 90), numbered_batch(7, 3)),
        HEADER_OF_USER + BATCH,
        FACT,
    ],
)
def test_every_changed_byte_is_found(entry: bytes) -> None:
    for at in range(len(entry)):
        spoilt = bytearray(entry)
        spoilt[at] ^= 0x55
        with pytest.raises(CorruptEntry):
            opened(bytes(spoilt), 100)
    for end in range(len(entry)):
        with pytest.raises(CorruptEntry):
            opened(entry[:end], 100)


def test_a_kind_of_a_later_release_is_rejected() -> None:
    head = bytes([99]) + batch_entry(QUEUE, 9, AT_MS, BATCH)[5:HEADER_BYTES]
    crc = int(google_crc32c.value(head + BATCH[: batch.HEADER_BYTES])).to_bytes(4, "little")
    with pytest.raises(StoreError, match=r"position 100 is of kind 99, .* newer release") as caught:
        read_header(memoryview(crc + head + BATCH), 100)
    assert not isinstance(caught.value, CorruptEntry)


def test_a_batch_in_an_entry_that_is_none_is_named_by_its_place() -> None:
    whole = batch_entry(QUEUE, 9, AT_MS, b"no batch")

    with pytest.raises(CorruptEntry, match=r"the entry at position 100 has a damaged batch: .* 8 bytes"):
        effect(memoryview(whole), 100)


def test_a_batch_behind_the_last_offset_there_can_be_is_not_taken_over() -> None:
    with pytest.raises(CorruptEntry, match=f"position 100 has offset {(1 << 63) - 1}, which no queue has"):
        opened(batch_entry(QUEUE, (1 << 63) - 1, AT_MS, BATCH), 100)


@pytest.mark.parametrize("end", [1, 5, 20])
def test_a_fact_that_cannot_be_decoded_is_an_error_of_the_store(end: int) -> None:
    with pytest.raises(StoreError, match="the fact is unknown to this release"):
        decode_fact(encode_fact(TopicSet(Topic("t", 5, 1, 1)))[:end])


@for_each(
    ("row", "value"),
    [
        (["offset", "g", 5, 0], "1"),
        (["offset", "g", 5], 1),
        (["offset", 7, 5, 0], 1),
        (["term", "x"], 1),
        (["permission"], None),
        (["producer", {}], [0, 0, [], []]),
        (["ended", "x"], [0, 1, b"", [], -9]),
        ([["offset"]], 1),
        (5, 1),
    ],
)
def test_a_row_of_a_state_that_is_none_is_an_error_of_the_store(row: object, value: object) -> None:
    with pytest.raises(StoreError, match="a row of kind"):
        load_row(State(), row, value)
