"""The exchange of users and rules between a broker and its name servers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import grpc.aio

from minimq_common.errors import Unavailable
from minimq_common.retry_log import RetryLog
from minimq_common.security.channel_security import ChannelSecurity
from minimq_common.security.shared_access import SharedAccess, exchange
from minimq_common.wire.channels import NAMESERVER_OPTIONS, Channels, explained
from minimq_proto.v1 import nameserver_pb2_grpc

if TYPE_CHECKING:
    from minimq_proto.v1.nameserver_pb2_grpc import NameServerAsyncStub

log = logging.getLogger(__name__)

_RETRY_S = 0.5
#: A broker that has reached no name server this long after its start uses the document that it has.
_SETTLE_S = 5.0


class AccessLinks:
    """Keeps a stream to each name server. Belongs to the event loop on which `start` was called."""

    def __init__(self, nameservers: Sequence[str], shared: SharedAccess, security: ChannelSecurity) -> None:
        self._nameservers = nameservers
        self._shared = shared
        self._security = security
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start exchanging in the background. Settles the document once one name server agrees, or after a while."""
        self._tasks = [
            asyncio.create_task(self._run(address), name=f"access-{address}") for address in self._nameservers
        ]

        asyncio.get_running_loop().call_later(_SETTLE_S if self._nameservers else 0.0, self._shared.settled.set)

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, address: str) -> None:
        peer, outage = f"name server {address}", RetryLog(log)
        channels: Channels[NameServerAsyncStub] = Channels(
            lambda channel: cast("NameServerAsyncStub", nameserver_pb2_grpc.NameServerStub(channel)),
            NAMESERVER_OPTIONS,
            security=self._security,
        )

        def agreed() -> None:
            outage.worked("access: in touch again nameserver=%s", address)
            self._shared.settled.set()

        async with contextlib.aclosing(channels):
            while True:
                stream = channels.stub(address).SyncAccess()
                try:
                    await exchange(self._shared, peer, stream, stream.write, agreed)
                    raise Unavailable(f"{peer} ended the stream")
                except grpc.RpcError as error:
                    cause: Exception = await explained(error, "name server", address, self._security.trust())
                except Exception as error:  # noqa: BLE001 - any error: without the stream the broker misses all changes
                    cause = error
                finally:
                    stream.cancel()
                text = "access: out of touch, trying again nameserver=%s reason=%s"
                outage.failed(text, address, cause, cause=cause)
                await asyncio.sleep(_RETRY_S)
