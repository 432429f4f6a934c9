"""Compression of batches, with zstd: one frame that says how large its content is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minimq_common.errors import CorruptBatch

#: Most bytes that a frame may open to. A batch has that many at most when nothing is compressed, at a broker with the
#: largest `--max-body-bytes` there is: 32 MiB of body and 32 MiB of everything else. So whatever can be stored plain
#: can be stored compressed, and a few bytes of a hostile sender cost a reader no more than a plain batch would.
MAX_CONTENT_BYTES = 64 << 20

#: A frame has to be smaller than this part of its content: every reader pays for opening it.
WORTHWHILE = 0.95


@dataclass(frozen=True, slots=True)
class Compression:
    """Settings of compression."""

    #: Smaller content stays as it is.
    above_bytes: int = 4096
    #: Of zstd. On JSON, 3 takes half as long again as 1, and saves 11 % more of bodies of 1 KiB, nothing of 100 bytes.
    level: int = 1

    def compress(self, parts: Sequence[bytes]) -> bytes | None:
        """Return the parts, one after the other, as one frame; None when they are better left as they are."""
        size = sum(map(len, parts))
        if not self.above_bytes <= size <= MAX_CONTENT_BYTES:
            return None
        # Loading it takes 10 ms, which only those pay who use it.
        import zstandard

        # One for each frame: they may not be shared between threads, and making one takes 3 microseconds.
        frame = zstandard.ZstdCompressor(level=self.level).compress(b"".join(parts))
        return frame if len(frame) < WORTHWHILE * size else None


def content_size(frame: bytes | memoryview) -> int:
    """Return how many bytes a frame says that it opens to, without opening it."""
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
    """Return the content of a frame."""
    import zstandard  # see above

    content_size(frame)
    # A frame that breaks off is read through a window, whose size it chooses as well.
    opener = zstandard.ZstdDecompressor(max_window_size=MAX_CONTENT_BYTES)
    try:
        return opener.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise _not_opened(frame, error) from None


def beginning(frame: bytes | memoryview, size: int) -> bytes:
    """Return the first bytes of the content of a frame, so many or all; the rest is not opened. Raises as `decompress`.

    Whether the rest is damaged is not found.
    """
    import zstandard  # see above

    opener = zstandard.ZstdDecompressor(max_window_size=MAX_CONTENT_BYTES)
    try:
        with opener.stream_reader(frame) as reader:
            return reader.read(min(size, content_size(frame)))
    except zstandard.ZstdError as error:
        raise _not_opened(frame, error) from None


def _not_opened(frame: bytes | memoryview, error: Exception) -> CorruptBatch:
    return CorruptBatch(f"a compressed batch of {len(frame)} bytes cannot be opened: {error}")
