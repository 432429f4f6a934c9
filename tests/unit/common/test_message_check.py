"""A message alone is checked by the rules of a batch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minimq_common.batch_builder import BatchBuilder
from minimq_common.errors import InvalidArgument, MiniMQError
from minimq_common.message_check import check_message
from minimq_common.model import Message

TEXT = st.text(st.characters(codec=None), max_size=4) | st.sampled_from(["", "a\0b", "\ud800", "ä"])
MESSAGES = st.builds(
    Message,
    topic=st.just("t"),
    body=st.binary(max_size=12) | st.sampled_from([bytearray(b"x"), "x", None]),
    tag=st.none() | TEXT | st.just(5),
    keys=st.lists(TEXT | st.just(5), max_size=3) | st.lists(TEXT, max_size=3).map(tuple) | st.just("text"),
    properties=st.dictionaries(TEXT, TEXT | st.just(5), max_size=2),
)


def size_in_a_batch(message: Message) -> int:
    records = BatchBuilder(10)
    records.add([message])
    records.build(0, 0, 0)
    return records.size


def outcome(call: Any) -> object:  # noqa: ANN401 - any function of no argument
    try:
        return call()
    except MiniMQError as error:
        return type(error)


@given(MESSAGES)
@example(Message("t", b"x", keys=["k" * 32_766]))
@example(Message("t", b"x", keys=["k" * 32_767]))
@example(Message("t", b"x", keys=["k" * 32_768]))
@example(Message("t", b"x", keys=["k" * 16_384, "k" * 16_383]))
def test_it_says_what_a_batch_of_that_message_alone_would_say(message: Message) -> None:
    assert outcome(lambda: check_message(message, 10)) == outcome(lambda: size_in_a_batch(message))


@pytest.mark.parametrize("keys", [(), ("a",), ["a", "bc"]])
def test_the_size_counts_body_and_keys(keys: list[str]) -> None:
    assert check_message(Message("t", b"12345", tag="tag", keys=keys), 10) == 5 + len("\0".join(keys))


def test_a_tag_has_at_most_255_characters() -> None:
    check_message(Message("t", b"x", tag="t" * 255), 10)
    with pytest.raises(InvalidArgument, match="256 characters, the limit is 255"):
        check_message(Message("t", b"x", tag="t" * 256), 10)
