"""Bodies that name a schema of a registry, as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from minimq import ReceivedMessage
from minimq_common.errors import MalformedBody


class DecodedBody(NamedTuple):
    """A body that was decoded."""

    json: bytes
    schema: str


Decode = Callable[[ReceivedMessage], DecodedBody | None]


def decoder(url: str) -> Decode:
    """Return the function that decodes messages by a registry; it returns None for bodies that name no schema."""
    from minimq.schemas import SchemaRegistry  # the libraries of an extra
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
