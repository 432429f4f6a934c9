"""Why a server closes each connection: gRPC says only that it does."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

from minimq_common.wire import rpc

if TYPE_CHECKING:
    from minimq_common.security.certificates import Trust

#: Seconds that one question may take.
_ANSWER_S = 1.0


async def why_closed(address: str, trust: Trust | None) -> str:
    """Return why a server closes each connection as soon as it is made; empty if that cannot be said."""
    if trust is None:
        return "" if await _first_byte(address) is None else rpc.WANTS_TLS
    if trust.pair is None and await _first_byte(address) == b"" and await _first_byte(address) == b"":
        return rpc.WANTS_CERTIFICATE  # twice: one that ends closes its connections as well, but only once
    return ""


async def _first_byte(address: str) -> bytes | None:
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context()  # no key is sent, so it does not matter who answers
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
            try:
                return await reader.read(1)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
