"""What listens where a name server was called in vain: asked when a call has failed as if there were another server."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

import grpc.aio

from minimq_common import rpc

if TYPE_CHECKING:
    from minimq_common.security.certificates import Trust

#: Seconds that one question may take.
_ANSWER_S = 1.0


async def why_closed(address: str, trust: Trust | None) -> str:
    """Return why a server closes each connection as soon as it is made; empty if that cannot be said.

    Args:
        address: HOST:PORT.
        trust: with which it was called.
    """
    if trust is None:
        return "" if await _first_byte(address) is None else rpc.WANTS_TLS
    if trust.pair is None and await _first_byte(address) == b"" and await _first_byte(address) == b"":
        return rpc.WANTS_CERTIFICATE  # twice: one that ends closes its connections as well, but only once
    return ""


async def _first_byte(address: str) -> bytes | None:
    """Return what a server says first over TLS; nothing if it closes the connection, None if it speaks no TLS."""
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


async def not_a_name_server(address: str, trust: Trust | None) -> str:
    """Return what a server is that does not know a call to name servers, and what to do about it.

    Its health tells, for which nobody needs a key.
    """
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: PLC0415 - for who has a wrong address

    async with rpc.open_aio_channel(address, trust) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)

        async def serves(service: str) -> bool:
            try:
                await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=_ANSWER_S)
            except grpc.aio.AioRpcError:
                return False
            return True

        if await serves("minimq.v1.NameServer"):
            return (
                f"name server {address} does not know this call: it is of an older release than this client, upgrade it"
            )
        if await serves("minimq.v1.Broker"):
            return (
                f"{address} is a broker, not a name server: give the address that brokers have as --nameserver, with "
                "port 9876 unless you have chosen another"
            )
    return f"{address} is no name server of minimq: check the address"
