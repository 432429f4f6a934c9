"""The criterion of a search picks exactly the messages that match, also of compacted batches; so do addresses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq.consuming.received import EncodedRecords, ReceivedBatch
from minimq.features.search.message_search import by_id, by_key, by_property, is_id
from minimq.features.search.search_bounds import parse_address
from minimq_common.batch import builder as batch_builder
from minimq_common.batch import header as batch
from minimq_common.errors import InvalidArgument
from minimq_common.model import Message, MessageQueue
from support.batches import NOW_MS, messages
from support.cases import for_each
from support.compacted_batches import BASE, STORED_MS, compacted_of

QUEUE = MessageQueue("t", "broker-a", 0)
parts_of_batches = st.lists(st.lists(messages, min_size=1, max_size=4), min_size=1, max_size=3)


@given(parts=parts_of_batches, data=st.data())
def test_exactly_the_messages_that_match_are_picked(parts: list[list[Message]], data: st.DataObject) -> None:
    made = [batch_builder.encode(part, NOW_MS, 0xFEED, number, 1 << 20, None) for number, part in enumerate(parts)]
    count = sum(map(len, parts))
    remains = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    for stored in (made[0], compacted_of(made, remains)):
        opened = ReceivedBatch(QUEUE, EncodedRecords(BASE, STORED_MS, 0, batch.HEADER.unpack_from(stored)[3], stored))
        found = opened.messages(BASE)
        for message in found:
            assert list(by_id(message.message_id.upper()).numbers_in(opened)) == [message.index]
            for key in message.keys:
                assert list(by_key(key).numbers_in(opened)) == [each.index for each in found if key in each.keys]
            for name, value in message.properties.items():
                if value:
                    wanted = [each.index for each in found if each.properties.get(name) == value]
                    assert list(by_property(name, value).numbers_in(opened)) == wanted
        assert list(by_id("f" * 40).numbers_in(opened)) == []


@for_each("wrong", ["", "a\0b", "x" * 40_000, "\ud800", None, b"k"])
def test_what_no_message_has_as_a_key_is_rejected(wrong: object) -> None:
    with pytest.raises(InvalidArgument):
        by_key(wrong)


@for_each("wrong", ["", "f" * 39, "f" * 41, "g" * 40, "٣" * 40, None, "f" * 40 + "\n"])
def test_what_is_no_id_is_rejected(wrong: object) -> None:
    assert not is_id(wrong)
    with pytest.raises(InvalidArgument):
        by_id(wrong)


@for_each(
    "wrong",
    [
        "",
        "orders/3@1",
        "o/b/3",
        "o/b/3@",
        "o/b/x@1",
        "o/b/3@-1",
        "o/b/3@1_0",
        "o/b/3@٣",
        7,
        "@" * 2_000,
        f"o/b/{1 << 31}@0",
        f"o/b/3@{1 << 63}",
    ],
)
def test_what_is_no_address_is_rejected(wrong: object) -> None:
    with pytest.raises(InvalidArgument, match="is not the address of a message"):
        parse_address(wrong)
