"""The first request of each call: it has to come soon, and only some are received at once.

gRPC receives a request when a server asks for it, as a whole, and as large as it may be. What is not asked for stays
within the window of its stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from minimq_common.errors import InvalidArgument, SystemBusy

#: Seconds after which to repeat a call that gave way.
_RETRY_S = 0.1


class Begun:
    """Requests of a stream, the first of which has to come soon. The others are handed on as they are.

    Args:
        requests: as gRPC gives them.
        method: the name of the stream, for texts.
        first_s: time that the first one may take, in seconds.
        turns: streams whose first request is received at the same time; others wait. None: any number.
    """

    def __init__(
        self, requests: AsyncIterator[Any], method: str, first_s: float, turns: asyncio.Semaphore | None = None
    ) -> None:
        self._requests = requests
        self._next: Callable[[], Awaitable[Any]] | None = None  # gRPC warns of what is begun and never read
        self._method = method
        self._first_s = first_s
        self._turns = turns

    def __aiter__(self) -> Begun:
        return self

    def __anext__(self) -> Awaitable[Any]:
        return self._first() if self._next is None else self._next()

    async def _first(self) -> Any:  # noqa: ANN401 - of any stream
        async with self._turns or contextlib.nullcontext():
            self._next = aiter(self._requests).__anext__
            reading = _read(self._next)
            await asyncio.wait((reading,), timeout=self._first_s)
            if not reading.done():
                raise InvalidArgument(
                    f"the {self._method} stream is ended: no request came within {self._first_s:g} s of its begin"
                )
            return await reading


class Arrivals:
    """Requests of calls that are not there yet: nobody knows how large they are.

    A further one takes the place of another one: of the connection that has most of them, the one that has waited
    longest. Lives on one event loop.

    Args:
        most: how many are received at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[asyncio.Future[None], str] = {}  # the peer of each, the oldest first

    async def receive(self, requests: AsyncIterator[Any], method: str, peer: str) -> Any:  # noqa: ANN401 - of any call
        """Return the only request of a call of a peer when all of it is there.

        Raises:
            SystemBusy: others came after it, and it is not there yet.
            InvalidArgument: the call came without.
        """
        if len(self._waiting) >= self._most:
            [(busiest, _)] = Counter(self._waiting.values()).most_common(1)
            oldest = next(waiting for waiting, its_peer in self._waiting.items() if its_peer == busiest)
            del self._waiting[oldest]
            oldest.set_result(None)
        gives_way: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[gives_way] = peer
        reading = _read(aiter(requests).__anext__)
        try:
            await asyncio.wait((reading, gives_way), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting.pop(gives_way, None)
        if not reading.done():
            raise SystemBusy(
                "many requests come in at once, and this one was not there when others were", retry_after_s=_RETRY_S
            )
        try:
            return await reading
        except StopAsyncIteration:
            raise InvalidArgument(f"{method} came without a request") from None


def _read(anext_: Callable[[], Awaitable[Any]]) -> asyncio.Future[Any]:
    """Begin to read a request. Whoever waits no longer lets it come to its end, which it does with the call.

    gRPC never gives back the memory of a request that comes after its reader was cancelled.
    """
    reading = asyncio.ensure_future(anext_())
    reading.add_done_callback(_forget)
    return reading


def _forget(reading: asyncio.Future[Any]) -> None:
    if not reading.cancelled():
        reading.exception()  # nobody may be there to ask for it
