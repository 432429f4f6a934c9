"""A broker finds in the bytes of a batch what a reader finds in its messages, and never misses anything."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minimq_broker.features.search.batch_search import key_search, number_search, value_search, verified
from minimq_common.batch import builder as batch_builder
from minimq_common.batch.header import HEADER_BYTES
from minimq_common.model import Message
from support.batches import ALWAYS, NOW_MS, compressions, encode, one
from support.compacted_batches import compacted_of

#: Few letters, so that keys are parts of others and stand side by side.
keys = st.text("aß1,", min_size=1, max_size=4)
keyed = st.lists(st.lists(keys, max_size=3).map(lambda found: one(keys=tuple(found))), min_size=1, max_size=6)


@given(sent=keyed, wanted=keys, compression=compressions)
@example(sent=[one(keys=("ab",)), one(keys=("cd",))], wanted="bc", compression=None)
@example(sent=[one(keys=("a", "b")), one(keys=("ab",))], wanted="ab", compression=ALWAYS)
@example(sent=[one()], wanted="a", compression=None)
def test_a_key_is_found_where_a_message_has_it(sent: list[Message], wanted: str, compression: Any) -> None:
    data = encode(sent, compression=compression)
    has = any(wanted in message.keys for message in sent)
    assert key_search(wanted)(memoryview(data)) == has
    assert verified(key_search(wanted))(memoryview(data)) == has


@given(parts=st.lists(keyed, min_size=1, max_size=3), wanted=keys, data=st.data())
def test_compacted_batches_are_searched_by_what_remains(
    parts: list[list[Message]], wanted: str, data: st.DataObject
) -> None:
    made = [batch_builder.encode(part, NOW_MS, 0xFEED, number, 1 << 20, None) for number, part in enumerate(parts)]
    whole = [message for part in parts for message in part]
    remains = data.draw(st.lists(st.booleans(), min_size=len(whole), max_size=len(whole)))
    compacted = memoryview(compacted_of(made, remains))
    left = [message for message, is_there in zip(whole, remains, strict=True) if is_there]
    assert key_search(wanted)(compacted) == any(wanted in message.keys for message in left)
    at = 0
    for number, part in enumerate(parts):
        if any(remains[at : at + len(part)]) or len(parts) == 1:
            assert number_search(0xFEED, number)(compacted)
        at += len(part)
    assert not number_search(0xFEED, 99)(compacted)


def test_a_key_of_which_there_are_too_many_parts_may_be_there() -> None:
    many = [one(keys=(f"{number}1x",)) for number in range(2_000)]
    assert key_search("1")(memoryview(encode(many)))
    assert not key_search("1")(memoryview(encode(many[:9])))


@given(sent=keyed, compression=compressions, at=st.integers(0, 10_000), value=st.integers(0, 255))
def test_damage_raises_nothing_and_is_seen_if_asked_for(
    sent: list[Message], compression: Any, at: int, value: int
) -> None:
    data = bytearray(encode(sent, compression=compression))
    at %= len(data)
    before, data[at] = data[at], value
    damaged = memoryview(bytes(data))
    for search in (key_search("a"), value_search("a"), number_search(1, 2)):
        search(damaged)
        assert before == value or verified(search)(damaged)


@pytest.mark.parametrize("version", [0, 5, 255])
def test_what_cannot_be_looked_into_may_hold_it(version: int) -> None:
    data = bytearray(encode([one(keys=("k",))]))
    data[0] = version
    assert key_search("other")(memoryview(bytes(data)))
    assert key_search("other")(memoryview(bytes(data[: HEADER_BYTES - 1])))
