"""Compressed batches: the same columns as in plain ones, and nothing that a frame says is taken on trust."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from minimq_common.batch import header as batch
from minimq_common.batch.compression import MAX_CONTENT_BYTES, Compression
from minimq_common.batch.header import Section
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import CorruptBatch
from minimq_common.model import Message
from support.batches import ALWAYS, born, encode, messages, one, sealed
from support.cases import for_each


def frame_of(encoded: bytes) -> bytes:
    return encoded[batch.read_header(encoded).size : -4]


def with_frame(frame: bytes, codec: int = batch.CODEC_ZSTD) -> bytes:
    """Return a batch of two records with a checksum that is right."""
    encoded = encode([one(), one()])
    return sealed(encoded[:1] + bytes([codec]) + encoded[2 : batch.read_header(encoded).size] + frame)


def content_of(count: int = 2) -> bytes:
    """Return the directory and the sections of a plain batch."""
    return frame_of(encode([one()] * count))


@given(st.lists(st.tuples(messages, born), min_size=1, max_size=30), st.integers(1, 3))
def test_compressed_is_the_same_in_every_column(records: list[tuple[Message, int]], level: int) -> None:
    # Repeated, so that it becomes smaller whatever it is.
    sent, times = [message for message, _ in records] * 9, [born_ms for _, born_ms in records] * 9
    plain = encode(sent, times)
    encoded = encode(sent, times, compression=Compression(1, level))
    opened, expected = RecordBatch(encoded), RecordBatch(plain)

    assert opened.header.codec == batch.CODEC_ZSTD
    assert len(encoded) < len(plain)
    assert encoded[: opened.header.size] == plain[:1] + b"\x01" + plain[2 : opened.header.size]
    for section in Section:
        assert opened.section(section) == expected.section(section)
        assert opened.has(section) == expected.has(section)


def test_what_compression_does_not_make_smaller_stays_plain() -> None:
    noise = random.Random(1).randbytes(10_000)
    for zeros, smaller in ((0, False), (300, False), (1000, True)):
        sent = [one(body=noise + bytes(zeros))]
        encoded, plain = encode(sent, compression=ALWAYS), encode(sent)
        assert (encoded != plain) is (len(encoded) < len(plain)) is smaller


def test_a_batch_at_the_limit_of_its_content_is_read() -> None:
    body = bytes(MAX_CONTENT_BYTES - 48 - 8)
    encoded = encode([one(body=body)], limit=MAX_CONTENT_BYTES, compression=ALWAYS)
    assert batch.read_header(encoded).codec == batch.CODEC_ZSTD
    assert RecordBatch(encoded).bodies() == [body]


def without_size(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(content)


def claiming(size: int, content: bytes) -> bytes:
    """Return a frame which says that its content has another size: 8 bytes of it in the header, one block, as it is."""
    block = (len(content) << 3 | 1).to_bytes(3, "little")
    return struct.pack("<IBBQ", 0xFD2FB528, 0xC0, 0x88, size) + block + content


@for_each(
    "frame",
    [
        b"",
        b"\0",
        b"not a frame at all",
        zstandard.compress(content_of())[:-1],
        zstandard.compress(content_of())[:3],
        zstandard.compress(content_of()) + b"\0",
        zstandard.compress(content_of()) * 2,
        zstandard.compress(content_of()[:100]) + zstandard.compress(content_of()[100:]),
        zstandard.compress(content_of() + b"\0"),
        zstandard.compress(content_of()[:-1]),
        zstandard.compress(content_of()[:47]),
        zstandard.compress(b""),
        zstandard.compress(content_of(count=3)),
        struct.pack("<II", 0x184D2A50, 4) + b"skip",
        without_size(content_of()),
        claiming(len(content_of()) + 1, content_of()),
        claiming(len(content_of()) - 1, content_of()),
        claiming(0, content_of()),
        claiming(1 << 62, content_of()),
        claiming((1 << 64) - 1, content_of()),
    ],
)
def test_a_frame_that_is_wrong_is_found(frame: bytes) -> None:
    with pytest.raises(CorruptBatch):
        RecordBatch(with_frame(frame))


def test_a_bomb_is_rejected_before_there_is_room_for_it() -> None:
    bombs = [
        zstandard.compress(bytes(MAX_CONTENT_BYTES + 1)),  # true to its word
        claiming(MAX_CONTENT_BYTES + 1, content_of()),
        without_size(bytes(4 * MAX_CONTENT_BYTES)),
    ]
    tracemalloc.start()
    try:
        for bomb in bombs:
            with pytest.raises(CorruptBatch, match="the limit is 67108864"):
                RecordBatch(with_frame(bomb))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_window_over_the_limit_is_rejected() -> None:
    """A frame that breaks off is read through a window of the size it asks for: here 128 MiB."""
    wide = struct.pack("<IBBQ", 0xFD2FB528, 0xC0, 17 << 3, 100) + b"\0"
    with pytest.raises(CorruptBatch, match="too much memory"):
        RecordBatch(with_frame(wide))


def test_who_does_not_compress_does_not_load_the_library() -> None:
    program = """if True:
        import sys
        from minimq_common.batch import header as batch
        from minimq_common.batch.records import RecordBatch
        from minimq_common.batch import builder as batch_builder
        from minimq_common.model import Message
        RecordBatch(batch_builder.encode([Message("t", bytes(9999))], 0, 0, 0, 9999))
        print("zstandard" in sys.modules)"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
