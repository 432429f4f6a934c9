"""Bodies of messages as text, as JSON and in hexadecimal digits. Pure.

A body comes from whoever may send: what it shows is bounded, and no character acts on the page.
"""

from __future__ import annotations

import unicodedata

import msgspec

#: Bytes of a body that are shown; the rest is there to download.
SHOWN_BYTES = 64 * 1024
#: Bytes of a body in a list of messages, and the characters that are shown of them.
_PREVIEW_BYTES, _PREVIEW = 800, 200
#: Brackets within brackets: deeper JSON would be mostly blanks.
_DEEPEST = 40
_IN_LINE = 16
#: The ways to show a body.
WAYS = ("auto", "text", "json", "hex")


def preview(body: bytes) -> str:
    """Return the beginning of a body on one line."""
    cut = body[:_PREVIEW_BYTES]
    text = " ".join(visible(cut.decode(errors="replace")).split())
    return text if len(body) <= _PREVIEW_BYTES and len(text) <= _PREVIEW else f"{text[:_PREVIEW]}..."


def shown(body: bytes, way: str) -> tuple[str, str]:
    """Return how a body is shown, "text", "json" or "hex", and the text."""
    cut = body[:SHOWN_BYTES]
    if way in ("auto", "json"):
        formatted = _formatted(body)
        if formatted is not None:
            return "json", visible(formatted)
    if way == "hex" or (way == "auto" and not _is_text(cut)):
        return "hex", _digits(cut)
    return "text", visible(cut.decode(errors="replace"))


def visible(text: str) -> str:
    """Return a text in which characters that are not seen, or turn the direction of others, are escapes."""
    return "".join(character if _is_seen(character) else _escape(character) for character in text)


def _is_seen(character: str) -> bool:
    return character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def _formatted(body: bytes) -> str | None:
    if len(body) > SHOWN_BYTES or body.lstrip()[:1] not in (b"{", b"[") or _depth(body) > _DEEPEST:
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
    for end in range(len(cut), max(len(cut) - 4, -1), -1):
        try:
            text = cut[:end].decode()
        except UnicodeDecodeError:
            continue
        return not any(unicodedata.category(character) == "Cc" and character not in "\n\r\t" for character in text)
    return False


def _digits(cut: bytes) -> str:
    lines = []
    for start in range(0, len(cut), _IN_LINE):
        line = cut[start : start + _IN_LINE]
        characters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        lines.append(f"{start:08x}  {line.hex(' '):<{3 * _IN_LINE - 1}}  {characters}")
    return "\n".join(lines)
