"""Converts keys and headers of Kafka to the text that minimq stores, and back, without loss.

Text in UTF-8 stays as it is. Other bytes become `base64:` and their Base64, a null becomes `null:`. A repeated header
becomes the property `name#2`, the next one `name#3`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Final

from minimq_common.errors import InvalidArgument

__all__ = ["bytes_of", "headers_of", "properties_of", "text_of"]

_BASE64: Final = "base64:"
_NULL: Final = "null:"
#: A header name that looks like a repeated one.
_NUMBERED: Final = re.compile(r"(.*)#[0-9]+", re.DOTALL)


def text_of(value: str | bytes | None) -> str:
    """Return a key, or the value of a header, as text."""
    if value is None:
        return _NULL
    if isinstance(value, str):
        value = value.encode()
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text or text.startswith((_BASE64, _NULL)):
        return _BASE64 + base64.b64encode(value).decode()
    return text


def bytes_of(text: str) -> bytes | None:
    """Reverse `text_of`. Raises `InvalidArgument` for a text that it cannot have written."""
    if text == _NULL:
        return None
    if not text.startswith(_BASE64):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(_BASE64).encode(), validate=True)
    except binascii.Error as error:
        raise InvalidArgument(f"{text[:40]!r} is no key or header of Kafka: {error}") from None


def properties_of(
    headers: Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]],
) -> dict[str, str]:
    """Return headers as properties. Give pairs, not a mapping, if a name may occur more than once."""
    properties: dict[str, str] = {}
    counts: dict[str, int] = {}
    for name, value in headers.items() if isinstance(headers, Mapping) else headers:
        number = counts[name] = counts.get(name, 0) + 1
        numbered = f"{name}#{number}" if number > 1 or _NUMBERED.fullmatch(name) else name
        properties[numbered] = text_of(value)
    return properties


def headers_of(properties: Mapping[str, str]) -> list[tuple[str, bytes | None]]:
    """Reverse `properties_of`; keeps the order of the headers."""
    names = ((_NUMBERED.fullmatch(name), name, text) for name, text in properties.items())
    return [(found[1] if found else name, bytes_of(text)) for found, name, text in names]
