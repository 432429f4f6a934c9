"""Text files that users write: options, credentials, certificates, keys, users and rules."""

from __future__ import annotations

import codecs
from pathlib import Path

from minimq_common.errors import InvalidArgument

#: Bytes of a file of secrets or options.
MAX_BYTES = 256 << 10

# UTF-32 comes first: its little-endian mark begins with the one of UTF-16.
_OTHER_ENCODINGS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def read_text_file(path: Path, most_bytes: int = MAX_BYTES) -> bytes:
    """Return the content without a byte order mark. Raises `InvalidArgument`, also for UTF-16 and UTF-32."""
    try:
        with path.open("rb") as opened:
            data = opened.read(most_bytes + 1)
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}") from None
    if len(data) > most_bytes:
        raise InvalidArgument(f"{path} has more than {most_bytes} bytes: it is too large for secrets or options")
    return without_mark(data, str(path))


def without_mark(data: bytes, where: str) -> bytes:
    """Remove the byte order mark of UTF-8. Raises `InvalidArgument` for the mark of another encoding."""
    for mark, encoding in _OTHER_ENCODINGS.items():
        if data.startswith(mark):
            raise InvalidArgument(f"{where} is in {encoding}, by its byte order mark: save it in UTF-8")
    return data.removeprefix(codecs.BOM_UTF8)
