"""Batches that no producer makes: their checksum is right, and what it covers is not."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import zstandard
from hypothesis import strategies as st

from minimq_common.batch.header import CODEC_NONE, CODEC_ZSTD, DIRECTORY, HEADER, VERSION, Section
from support.batches import NOW_MS, sealed

#: What numbers at the edges of their types do is what matters.
_edges = st.sampled_from([-(1 << 31), -1, 0, 1, 2, 3, 255, 256, 1 << 16, 1 << 20, (1 << 31) - 1])
_offsets = st.lists(st.integers(-2, 12) | _edges, max_size=6).map(
    lambda numbers: struct.pack(f"<{len(numbers)}i", *numbers)
)
_bytes = st.binary(max_size=12) | st.sampled_from([b"", b"\0", b"\0\0", b"ab", b"\xff", "\u00fc".encode(), b"a\0b"])

#: Sections whose lengths and contents contradict each other in any way.
sections: st.SearchStrategy[dict[Section, bytes]] = st.dictionaries(
    st.sampled_from(list(Section)), st.one_of(_offsets, _bytes), max_size=len(Section)
)


def offsets(*numbers: int) -> bytes:
    """Return a section of offsets."""
    return struct.pack(f"<{len(numbers)}i", *numbers)


def raw_batch(found: Mapping[Section, bytes], count: int, *, is_compressed: bool = False, **header: Any) -> bytes:
    """Return a batch with just these sections.

    Args:
        found: the sections; those that are missing are empty.
        count: of records, as the header has it.
        is_compressed: directory and sections are one frame.
        header: other fields of the header by their names in `Header`.
    """
    fields = {"largest_body": 0, "born_first_ms": NOW_MS, "born_last_ms": NOW_MS, "producer_id": 1, "sequence": 1}
    fields |= header
    all_sections = [found.get(section, b"") for section in Section]
    content = DIRECTORY.pack(*map(len, all_sections)) + b"".join(all_sections)
    if is_compressed:
        content = zstandard.ZstdCompressor().compress(content)
    codec = header.get("codec", CODEC_ZSTD if is_compressed else CODEC_NONE)
    head = HEADER.pack(
        VERSION,
        codec,
        1,
        count,
        fields["largest_body"],
        fields["born_first_ms"],
        fields["born_last_ms"],
        fields["producer_id"],
        fields["sequence"],
        0,
    )
    return sealed(head + struct.pack("<I", 0) + content)
