"""Shows bodies of messages as text, as JSON or in hexadecimal digits, and decodes those with a schema in a registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from minimq import ReceivedMessage
from minimq.admin.texts import printable
from minimq_common.errors import MalformedBody

#: Maximum bytes of a body that are shown; the rest can be downloaded.
SHOWN_BYTES = 64 * 1024
#: Maximum bytes of a body that a preview reads, and characters that it shows.
_PREVIEW_BYTES, _PREVIEW = 800, 200
#: Deeper JSON would be mostly indentation.
_MAX_JSON_DEPTH = 40
_HEX_BYTES_PER_LINE = 16
#: The ways to show a body.
WAYS = ("auto", "text", "json", "hex")


def preview(body: bytes) -> str:
    cut = body[:_PREVIEW_BYTES]
    text = " ".join(visible(cut.decode(errors="replace")).split())
    return text if len(body) <= _PREVIEW_BYTES and len(text) <= _PREVIEW else f"{text[:_PREVIEW]}..."


def shown(body: bytes, way: str) -> tuple[str, str]:
    """Return the format of a body, "text", "json" or "hex", and the text to show."""
    cut = body[:SHOWN_BYTES]
    if way in ("auto", "json"):
        formatted = _formatted(body)
        if formatted is not None:
            return "json", visible(formatted)
    if way == "hex" or (way == "auto" and not _is_text(cut)):
        return "hex", _digits(cut)
    return "text", visible(cut.decode(errors="replace"))


def visible(text: str) -> str:
    """Escape characters that are invisible, or change the direction of text."""
    return printable(text, keep="\n\t")


def _formatted(body: bytes) -> str | None:
    if len(body) > SHOWN_BYTES or body.lstrip()[:1] not in (b"{", b"[") or _depth(body) > _MAX_JSON_DEPTH:
        return None
    try:
        msgspec.json.decode(body)
        return msgspec.json.format(body, indent=2).decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _depth(body: bytes) -> int:
    depth = deepest = 0
    for byte in body:
        if byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


def _is_text(cut: bytes) -> bool:
    try:
        text = cut.decode()
    except UnicodeDecodeError as error:
        if error.start < len(cut) - 3:  # else the cut may have divided a character
            return False
        text = cut[: error.start].decode()
    return not any((each < " " and each not in "\n\r\t") or "\x7f" <= each <= "\x9f" for each in text)


def _digits(cut: bytes) -> str:
    lines = []
    for start in range(0, len(cut), _HEX_BYTES_PER_LINE):
        line = cut[start : start + _HEX_BYTES_PER_LINE]
        characters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        lines.append(f"{start:08x}  {line.hex(' '):<{3 * _HEX_BYTES_PER_LINE - 1}}  {characters}")
    return "\n".join(lines)


class DecodedBody(NamedTuple):
    json: bytes
    schema: str


Decode = Callable[[ReceivedMessage], DecodedBody | None]


def decoder(url: str) -> Decode:
    """Return a function that decodes messages with a registry; it returns None for bodies without a schema."""
    from minimq.schemas import SchemaRegistry  # needs the libraries of an extra
    from minimq.schemas.plain_reader import PlainReader

    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    basic_auth = (unquote(name), unquote(password)) if user else None
    registry = SchemaRegistry(parts._replace(netloc=host).geturl(), basic_auth=basic_auth, timeout_s=1.0)
    reader = PlainReader(registry)

    def decode(message: ReceivedMessage) -> DecodedBody | None:
        found = reader.read(message)
        if found is None:
            return None
        try:
            return DecodedBody(msgspec.json.encode(found.value, enc_hook=str), f"{found.kind} {found.mark}")
        except (TypeError, ValueError) as error:  # such as integers beyond 64 bits
            raise MalformedBody(f"the value cannot be shown as JSON: {error}") from None

    return decode
