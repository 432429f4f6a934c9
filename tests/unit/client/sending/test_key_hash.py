"""The numbers that a Java program makes of a key."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minimq.sending.selectors import consistent_hash, java_hash
from minimq_common.errors import InvalidArgument
from support.cases import for_each


def by_definition(text: str) -> int:
    """31 times what was before plus the next UTF-16 code unit, in 32 bits."""
    data = text.encode("utf-16-be", "surrogatepass")
    total = 0
    for (unit,) in struct.iter_unpack(">H", data):
        total = (31 * total + unit) % 2**32
    return total if total < 2**31 else total - 2**32


@for_each(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("123", 48_690),
        ("234", 49_683),
        ("polygenelubricants", -(2**31)),
        ("GydZG_", -(2**31)),
        ("DESIGNING WORKHOUSES", -(2**31)),
        ("order-1", -1_207_111_310),
        ("order-2", -1_207_111_309),
        ("user-42", -147_182_656),
        ("TagA", 2_598_919),
        ("TagB", 2_598_920),
        ("é", 0xE9),
        ("訂", 0x8A02),
        ("😀", 31 * 0xD83D + 0xDE00),  # two units, a surrogate pair
        ("\ud83d", 0xD83D),  # half of it, which Java allows as well
    ],
)
def test_known_hashes(text: str, expected: int) -> None:
    assert java_hash(text) == expected


@given(st.text(st.characters(codec=None)))
@example("x" * 64)
@example("x" * 65)
@example("x" * 255)
@example("x" * 256)
@example("訂" * 10_000)
def test_every_hash_is_that_of_the_definition(text: str) -> None:
    assert java_hash(text) == by_definition(text)
    assert java_hash(text) == by_definition(text)  # also when it is remembered


@for_each(
    ("key", "of_eight", "of_four"),
    [("G1", 5, 0), ("G2", 6, 2), ("order-1", 3, 3), ("order-2", 2, 2), ("user-42", 1, 1)],
)
def test_known_buckets(key: str, of_eight: int, of_four: int) -> None:
    assert (consistent_hash(key, 8), consistent_hash(key, 4)) == (of_eight, of_four)


@given(st.text(), st.integers(1, 1_000))
def test_a_key_stays_or_goes_to_the_new_bucket(key: str, buckets: int) -> None:
    before, after = consistent_hash(key, buckets), consistent_hash(key, buckets + 1)
    assert 0 <= before < buckets
    assert after in (before, buckets)


def test_buckets_get_about_as_many_keys_each() -> None:
    counts = [0] * 8
    for number in range(8_000):
        counts[consistent_hash(f"user-{number}", 8)] += 1
    assert min(counts) > 800
    assert max(counts) < 1_200


@pytest.mark.parametrize("buckets", [0, -1])
def test_there_must_be_a_bucket(buckets: int) -> None:
    with pytest.raises(InvalidArgument, match=f"{buckets} buckets: there must be at least one"):
        consistent_hash("a", buckets)
