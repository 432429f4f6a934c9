"""Compression of batches with zstd: one frame, which states the size of its content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minimq_common.errors import CorruptBatch

#: Limit of the decompressed content. It is the size of the largest uncompressed batch: 32 MiB of body (the maximum of
#: `--max-body-bytes`) and 32 MiB of everything else. So compression excludes no batch that could be stored plain, and
#: a small hostile frame costs a reader no more than a plain batch.
MAX_CONTENT_BYTES = 64 << 20

#: A larger ratio is not worth it, since every reader has to decompress the frame.
MAX_COMPRESSED_RATIO = 0.95


@dataclass(frozen=True, slots=True)
class Compression:
    """Settings of compression."""

    #: Content smaller than this is not compressed.
    above_bytes: int = 4096
    #: For zstd. On JSON, 3 takes 1.5 times as long as 1; it saves 11 % more of bodies of 1 KiB, nothing of 100 bytes.
    level: int = 1

    def compress(self, parts: Sequence[bytes]) -> bytes | None:
        """Return the concatenated parts as one frame; None if compressing them is not worth it."""
        size = sum(map(len, parts))
        if not self.above_bytes <= size <= MAX_CONTENT_BYTES:
            return None
        # Imported here because it takes 10 ms, and not every process needs it.
        import zstandard

        # A compressor must not be shared between threads. Creating one takes only 3 microseconds.
        frame = zstandard.ZstdCompressor(level=self.level).compress(b"".join(parts))
        return frame if len(frame) < MAX_COMPRESSED_RATIO * size else None


def content_size(frame: bytes | memoryview) -> int:
    """Return the decompressed size that the frame states, without decompressing it. Raises `CorruptBatch`."""
    import zstandard  # see above

    try:
        size = zstandard.frame_content_size(frame)
    except zstandard.ZstdError as error:
        raise _not_opened(frame, error) from None
    if not 0 <= size <= MAX_CONTENT_BYTES:
        said = f"{size} bytes" if size >= 0 else "no size"
        raise CorruptBatch(f"a compressed batch says {said} of its content, the limit is {MAX_CONTENT_BYTES}")
    return int(size)


def decompress(frame: bytes | memoryview) -> bytes:
    """Return the content of a frame. Raises `CorruptBatch`."""
    import zstandard  # see above

    content_size(frame)
    # The frame chooses the size of its window, and a truncated frame would make the decompressor allocate it.
    opener = zstandard.ZstdDecompressor(max_window_size=MAX_CONTENT_BYTES)
    try:
        return opener.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise _not_opened(frame, error) from None


def beginning(frame: bytes | memoryview, size: int) -> bytes:
    """Return at most the first `size` bytes of the content of a frame. Raises `CorruptBatch`."""
    import zstandard  # see above

    opener = zstandard.ZstdDecompressor(max_window_size=MAX_CONTENT_BYTES)
    try:
        with opener.stream_reader(frame) as reader:
            return reader.read(min(size, content_size(frame)))
    except zstandard.ZstdError as error:
        raise _not_opened(frame, error) from None


def _not_opened(frame: bytes | memoryview, error: Exception) -> CorruptBatch:
    return CorruptBatch(f"a compressed batch of {len(frame)} bytes cannot be opened: {error}")
