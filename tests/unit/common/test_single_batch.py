"""A batch of one message has two ways to be made, and one form."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from minimq_common.batch.builder import BatchBuilder
from minimq_common.batch.single import encode_single
from minimq_common.model import NO_PROPERTIES, Message

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
KEYS = TEXTS.filter(bool)
MESSAGES = st.builds(
    Message,
    st.just("t"),
    st.binary(min_size=1, max_size=200),
    st.none() | TEXTS,
    st.lists(KEYS, max_size=3) | st.lists(KEYS, max_size=3).map(tuple),
    st.just(NO_PROPERTIES) | st.dictionaries(TEXTS, TEXTS, max_size=2),
)
NUMBERS = st.tuples(
    st.integers(0, 1 << 42), st.integers(1, (1 << 64) - 1), st.integers(0, 1 << 63), st.integers(0, 1 << 31)
)


@given(MESSAGES, NUMBERS)
@example(Message("t", b"x"), (1, 2, 3, 4))
@example(Message("t", b"x", "", ["k"]), (1, 2, 3, 4))
def test_a_single_message_is_the_batch_that_a_builder_makes_of_it(
    message: Message, numbers: tuple[int, int, int, int]
) -> None:
    builder = BatchBuilder(1000)
    builder.add([message])
    born_ms, *number = numbers
    single = encode_single(message, 1000, *numbers)
    assert single in (None, builder.build([born_ms], *number))
    texts = "".join([message.tag or "", *message.keys, *message.properties, *message.properties.values()])
    is_mutable = type(message.keys) is not tuple or message.properties is not NO_PROPERTIES
    assert (single is None) == (is_mutable and not texts.isascii())
