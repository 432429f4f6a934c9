"""The batch format: what goes in comes out, and nothing that is damaged gets through."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minimq_common.batch import builder as batch_builder
from minimq_common.batch import header as batch
from minimq_common.batch.compression import Compression
from minimq_common.batch.header import Section
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import CorruptBatch, InvalidArgument, MessageTooLarge
from minimq_common.model import MESSAGE_GROUP, Message, group_hash_of
from support.batches import LIMIT, NOW_MS, born, compressions, encode, messages, one, sealed
from support.cases import for_each


@given(st.lists(st.tuples(messages, born), min_size=1, max_size=30), compressions, st.data())
def test_what_is_encoded_is_read_back(
    records: list[tuple[Message, int]], compression: Compression | None, data: st.DataObject
) -> None:
    sent, times = [message for message, _ in records], [born_ms for _, born_ms in records]
    opened = RecordBatch(encode(sent, times, compression=compression))

    assert len(opened) == len(sent)
    assert [opened.keys(index) for index in range(len(sent))] == [message.keys for message in sent]
    assert [opened.properties(index) for index in range(len(sent))] == [message.properties for message in sent]
    assert [opened.born_ms(index) for index in range(len(sent))] == times
    first = data.draw(st.integers(0, len(sent)))
    assert opened.bodies(first) == [message.body for message in sent[first:]]
    assert opened.tags(first) == [message.tag for message in sent[first:]]


@given(st.lists(st.tuples(messages, born), min_size=1, max_size=10), compressions)
def test_a_message_group_is_in_the_header_and_with_each_message(
    records: list[tuple[Message, int]], compression: Compression | None
) -> None:
    sent, times = [message for message, _ in records], [born_ms for _, born_ms in records]
    builder = batch_builder.BatchBuilder(LIMIT, compression, "account-17")
    builder.add(sent)
    encoded = builder.build(times, 0xFEED, 7)
    opened, plain = RecordBatch(encoded), RecordBatch(encode(sent, times))

    assert (opened.header.version, plain.header.version) == (batch.FIFO_VERSION, batch.VERSION)
    assert (opened.header.group_hash, plain.header.group_hash) == (group_hash_of("account-17"), 0)
    assert (batch.read_group_hash(encoded), batch.read_group_hash(encode(sent, times))) == (
        group_hash_of("account-17"),
        0,
    )
    assert opened.header.tag_hashes == plain.header.tag_hashes
    assert (opened.bodies(), opened.tags()) == (plain.bodies(), plain.tags())
    for index in range(len(sent)):
        assert opened.keys(index) == plain.keys(index)
        assert opened.properties(index) == {**plain.properties(index), MESSAGE_GROUP: "account-17"}


def test_more_tags_than_a_dictionary_holds_are_rejected() -> None:
    with pytest.raises(InvalidArgument, match="keys, not into tags"):
        encode([one(tag=f"tag-{number}") for number in range(65_537)])


@for_each(("span_ms", "width"), [(0, 0), (255, 1), (256, 2), (65_535, 2), (65_536, 4), ((1 << 32) - 1, 4)])
def test_born_times_take_no_more_room_than_they_need(span_ms: int, width: int) -> None:
    times = [NOW_MS + span_ms, NOW_MS, NOW_MS + span_ms // 2]
    opened = RecordBatch(encode([one()] * 3, times))

    assert len(opened.section(Section.BORN)) == 3 * width
    assert [opened.born_ms(index) for index in range(3)] == times


def test_born_times_too_far_apart_are_rejected() -> None:
    with pytest.raises(InvalidArgument, match="49 days"):
        encode([one()] * 2, [NOW_MS, NOW_MS + (1 << 32)])


def test_the_id_of_a_record_is_that_of_its_batch_and_its_place() -> None:
    opened = RecordBatch(encode([one()] * 2))

    assert opened.message_id(1) == "000000000000feed" + "0000000000000007" + "00000001"
    assert len(opened.message_id(0)) == 40


@given(st.lists(messages, min_size=1, max_size=5), compressions, st.data())
def test_a_flipped_bit_anywhere_is_found(
    sent: list[Message], compression: Compression | None, data: st.DataObject
) -> None:
    encoded = bytearray(encode(sent, compression=compression))
    bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[bit // 8] ^= 1 << bit % 8

    with pytest.raises(CorruptBatch):  # also when the bit made it a later version
        RecordBatch(bytes(encoded))
    with pytest.raises(CorruptBatch):
        batch.verified_header(bytes(encoded))


def test_a_newer_version_says_to_upgrade() -> None:
    encoded = encode([one()])
    with pytest.raises(InvalidArgument, match=r"batch format 5 .* upgrade"):
        RecordBatch(sealed(b"\x05" + encoded[1:-4]))


def test_an_unknown_codec_says_to_upgrade() -> None:
    encoded = encode([one()])
    with pytest.raises(CorruptBatch, match=r"codec 9 .* upgrade"):
        RecordBatch(sealed(encoded[:1] + b"\x09" + encoded[2:-4]))


def test_sections_that_do_not_add_up_are_found() -> None:
    encoded = bytearray(encode([one()])[:-4])
    bodies = batch.HEADER_BYTES + 4 + 4 * Section.BODIES
    struct.pack_into("<I", encoded, bodies, 5)
    with pytest.raises(CorruptBatch, match="end at"):
        RecordBatch(sealed(bytes(encoded)))


@for_each(
    "fields",
    [
        {"body": "text"},
        {"body": None},
        {"tag": "a\0b"},
        {"tag": 5},
        {"tag": "t" * 256},
        {"tag": b"bytes"},
        {"tag": "\ud800"},
        {"keys": ("a\0b",)},
        {"keys": ("a", "b\0")},
        {"keys": "single"},
        {"keys": (1, 2)},
        {"keys": (1,)},
        {"keys": ("\ud800",)},
        {"properties": {"a": 1}},
        {"properties": {1: "a"}},
        {"properties": ["a"]},
        {"properties": {"a": "\ud800"}},
    ],
)
def test_a_message_that_breaks_a_rule_is_rejected_whole(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        encode([one(), one(**fields), one()])


def test_a_body_at_the_limit_passes_and_one_above_is_rejected() -> None:
    assert RecordBatch(encode([one(body=b"x" * 10)], limit=10)).bodies() == [b"x" * 10]
    with pytest.raises(MessageTooLarge, match="11 bytes, the limit is 10"):
        encode([one(body=b"x" * 11)], limit=10)


@settings(max_examples=40)
@given(st.lists(messages, min_size=1, max_size=12), st.data())
def test_a_builder_that_is_split_holds_the_same_messages(sent: list[Message], data: st.DataObject) -> None:
    builder = batch_builder.BatchBuilder(LIMIT)
    cut = data.draw(st.integers(0, len(sent)))
    for part in (sent[:cut], sent[cut:]):
        if part:
            builder.add(part)
    portions = builder.split(data.draw(st.integers(1, len(sent))))

    assert sum(portion.size for portion in portions) == builder.size
    sizes = list(map(len, portions))
    assert max(sizes) - min(sizes) <= 1
    at = 0
    for number, portion in enumerate(portions):
        assert portion.build(NOW_MS, 1, number) == batch_builder.encode(
            sent[at : at + len(portion)], NOW_MS, 1, number, LIMIT
        )
        at += len(portion)
    assert at == len(sent)
