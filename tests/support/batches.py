"""Batches for tests of their format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import google_crc32c
from hypothesis import strategies as st

from minimq_common.batch import builder as batch_builder
from minimq_common.batch.compression import Compression
from minimq_common.model import Message

LIMIT = 1 << 20
NOW_MS = 1_700_000_000_000

text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
some_text = text.filter(bool)
messages = st.builds(
    Message,
    topic=st.just("t"),
    body=st.binary(min_size=1, max_size=40),
    tag=st.none() | some_text | st.sampled_from(["paid", "refunded"]),
    keys=st.lists(some_text, max_size=3).map(tuple),
    properties=st.dictionaries(text, text, max_size=3),
)
born = st.integers(NOW_MS, NOW_MS + (1 << 32) - 1)


#: Whatever its size; it stays plain only where that is smaller.
ALWAYS = Compression(above_bytes=1)
compressions = st.sampled_from([None, ALWAYS])


def encode(
    items: Sequence[Message],
    born_ms: int | Sequence[int] = NOW_MS,
    limit: int = LIMIT,
    compression: Compression | None = None,
) -> bytes:
    return batch_builder.encode(items, born_ms, 0xFEED, 7, limit, compression)


def one(**fields: Any) -> Message:
    return Message(**{"topic": "t", "body": b"body"} | fields)


def sealed(content: bytes) -> bytes:
    """Return content with the checksum that belongs to it."""
    return content + int(google_crc32c.value(content)).to_bytes(4, "little")
