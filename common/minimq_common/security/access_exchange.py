"""The stream on which two servers tell each other of users and rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable

from minimq_common.security.shared_access import AccessConversation, AccessRank, AccessSaid, SharedAccess
from minimq_common.wire.bound_check import check_bounds
from minimq_proto.v1.nameserver_pb2 import AccessNotice


async def exchange(
    own: SharedAccess,
    peer: str,
    heard: AsyncIterable[AccessNotice | bytes],
    write: Callable[[AccessNotice], Awaitable[object]],
    agreed: Callable[[], None] = lambda: None,
) -> None:
    """Talk until the other side ends the stream."""
    conversation = AccessConversation(own, peer)
    wake = asyncio.Event()

    async def say() -> None:
        while True:
            wake.clear()
            said = conversation.due()
            if said is None:
                await wake.wait()
            else:
                await write(AccessNotice(version=said.rank.version, digest=said.rank.digest, document=said.document))

    def in_agreement() -> None:
        own.age.agreed(conversation)
        agreed()

    own.listen(wake.set)
    saying = asyncio.create_task(say(), name=f"access-say-{peer}")
    hearing = asyncio.create_task(_hear(conversation, heard, wake, in_agreement), name=f"access-hear-{peer}")
    try:
        done, _ = await asyncio.wait((hearing, saying), return_when=asyncio.FIRST_COMPLETED)
        for task in (hearing, saying):  # the one that hears knows why a stream broke
            if task in done:
                task.result()
    finally:
        own.ignore(wake.set)
        own.age.lost(conversation)
        for task in (saying, hearing):
            task.cancel()
        await asyncio.gather(saying, hearing, return_exceptions=True)


async def _hear(
    conversation: AccessConversation,
    heard: AsyncIterable[AccessNotice | bytes],
    wake: asyncio.Event,
    agreed: Callable[[], None],
) -> None:
    async for notice in heard:
        said = notice
        if isinstance(said, bytes):
            said = AccessNotice.FromString(said)
            check_bounds(said)
        conversation.hear(AccessSaid(AccessRank(said.version, said.digest), said.document))
        wake.set()
        if conversation.agreed:
            agreed()
