"""A message alone is checked by the rules of a batch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minimq_common.batch.builder import BatchBuilder
from minimq_common.batch.single import check_message
from minimq_common.errors import InvalidArgument, MinimqError
from minimq_common.model import Message
from support.cases import for_each

TEXT = st.text(st.characters(codec=None), max_size=4) | st.sampled_from(["", "a\0b", "\ud800", "ä"])
MESSAGES = st.builds(
    Message,
    topic=st.just("t"),
    body=st.binary(max_size=12),
    tag=st.none() | TEXT,
    keys=st.lists(TEXT, max_size=3) | st.lists(TEXT, max_size=3).map(tuple),
    properties=st.dictionaries(TEXT, TEXT, max_size=2),
)


def build(messages: list[Message]) -> int:
    """Return the size of a batch."""
    records = BatchBuilder(10)
    records.add(messages)
    records.build(0, 0, 0)
    return records.size


def size_in_a_batch(message: Message) -> int:
    return build([message])


def outcome(call: Any) -> object:
    try:
        return call()
    except MinimqError as error:
        return type(error)


@given(MESSAGES)
@example(Message("t", bytearray(b"x")))  # type: ignore[arg-type]
@example(Message("t", b"x", keys=["k" * 32_766]))
@example(Message("t", b"x", keys=["k" * 32_767]))
@example(Message("t", b"x", keys=["k" * 32_768]))
@example(Message("t", b"x", keys=["k" * 16_384, "k" * 16_383]))
def test_it_says_what_a_batch_of_that_message_alone_would_say(message: Message) -> None:
    assert outcome(lambda: check_message(message, 10)) == outcome(lambda: size_in_a_batch(message))


def test_a_tag_has_at_most_255_characters() -> None:
    check_message(Message("t", b"x", tag="t" * 255), 10)
    with pytest.raises(InvalidArgument, match="256 characters, the limit is 255"):
        check_message(Message("t", b"x", tag="t" * 256), 10)


@for_each(
    ("field", "said"),
    [
        ({"topic": 5}, "the topic of the message is an int: give text"),
        ({"tag": 5}, "the tag of the message is an int: give text"),
        ({"keys": 5}, "the keys of the message are an int: give a list of texts"),
        ({"keys": "text"}, "the keys of the message are a str: give a list of texts"),
        ({"keys": ["a", 5]}, "a key of the message is an int: give text"),
        ({"properties": {"a": 5}}, "property 'a' of the message is an int: give text"),
        ({"properties": {5: "a"}}, "the name of a property of the message is an int: give text"),
        ({"properties": ["a"]}, "the properties of the message are a list: give a dict of texts"),
    ],
)
def test_a_field_of_a_wrong_type_is_named(field: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument) as rejected:
        check_message(Message(**{"topic": "t", "body": b"x"} | field), 10)
    assert rejected.value.message == said


def test_what_was_changed_since_the_message_was_made_is_named() -> None:
    message = Message("t", b"x", keys=["a"], properties={"a": "b"})
    assert isinstance(message.keys, list)
    message.keys.append("\ud800")
    said = "a key of the message has half a character: give text that UTF-8 can hold"
    with pytest.raises(InvalidArgument, match=said):
        check_message(message, 10)
    with pytest.raises(InvalidArgument, match=said):
        build([Message("t", b"x", keys=["k"]), message])
