"""The first request of each call: it has to come soon, and only some are received at once.

gRPC receives a request when a server asks for it, as a whole, and as large as it may be. What is not asked for stays
within the window of its stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from minimq_common.errors import InvalidArgument, SystemBusy
from minimq_common.large_requests import LargeRequest

#: Seconds after which to repeat a call that gave way.
_RETRY_S = 0.1
#: So long a request may keep others waiting; and when that is over, to be read if it is there by then. In seconds.
_PATIENCE_S, _LAST_CHANCE_S = 0.1, 0.005
#: Peers that are known to be prompt.
_MOST_PROMPT = 5_000

#: Calls that wait, by peer.
_Waiting = dict[str, deque[asyncio.Future[None]]]


class Begun:
    """Requests of a stream, the first of which has to come soon. The others are handed on as they are."""

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


class AwaitedRequests:
    """Requests of calls that are not there yet: nobody knows how large they are. Lives on one event loop.

    Further calls wait, in turn by connection: those of one that makes many wait for each other. While somebody waits,
    a request has to come soon. Half of the places are for connections whose latest request came soon and was not
    too large: they do not wait for those of others.
    """

    def __init__(self, most: int, patience_s: float = _PATIENCE_S) -> None:
        self._free = most
        self._kept_free = most // 2
        self._patience_s = patience_s
        self._prompt: dict[str, None] = {}  # peers whose latest request was, the latest at the end
        #: By peer, whose turn it is is the first: those that were not prompt, and those that were.
        self._waiting: tuple[_Waiting, _Waiting] = ({}, {})
        self._is_odd = False
        self._receiving: dict[asyncio.Future[None], float] = {}  # when each began, the oldest first
        self._timer: asyncio.TimerHandle | None = None

    async def receive(self, requests: AsyncIterator[Any], method: str, peer: str) -> Any:  # noqa: ANN401 - of any call
        """Return the only request of a call of a peer when all of it is there."""
        await self._turn(peer)
        loop = asyncio.get_running_loop()
        gives_way: asyncio.Future[None] = loop.create_future()
        self._receiving[gives_way] = loop.time()
        reading = _read(aiter(requests).__anext__)
        try:
            self._look_at_oldest()
            await asyncio.wait((reading, gives_way), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():  # it may have come while the loop did something else
                await asyncio.wait((reading,), timeout=_LAST_CHANCE_S)
        finally:
            del self._receiving[gives_way]
            self._free += 1
            self._let_in()
        self._prompt.pop(peer, None)
        if not reading.done():
            raise SystemBusy(
                "many requests come in at once, and this one was not there when others were", retry_after_s=_RETRY_S
            )
        try:
            request = await reading
        except StopAsyncIteration:
            raise InvalidArgument(f"{method} came without a request") from None
        if isinstance(request, LargeRequest) and request.refusal is not None:
            return request  # too large: whoever sends such ones waits with the others
        self._prompt[peer] = None
        if len(self._prompt) > _MOST_PROMPT:
            del self._prompt[next(iter(self._prompt))]
        return request

    async def _turn(self, peer: str) -> None:
        is_prompt = peer in self._prompt
        waiting = self._waiting[is_prompt]
        if self._free > (0 if is_prompt else self._kept_free) and not waiting:
            self._free -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.setdefault(peer, deque()).append(waiter)
        self._look_at_oldest()
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # it had its turn already
                self._free += 1
                self._let_in()
            raise

    def _let_in(self) -> None:
        while waiting := self._next():
            peer = next(iter(waiting))
            waiters = waiting.pop(peer)
            waiter = waiters.popleft()
            if waiters:
                waiting[peer] = waiters  # behind those of others
            if not waiter.done():
                self._free -= 1
                waiter.set_result(None)

    def _next(self) -> _Waiting | None:
        others, prompt = self._waiting
        if others and self._free > self._kept_free:
            self._is_odd = not self._is_odd
            return prompt if prompt and self._is_odd else others
        return prompt if self._free else None

    def _look_at_oldest(self) -> None:
        if self._timer is None and any(self._waiting) and self._receiving:
            began = next(iter(self._receiving.values()))
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(began + self._patience_s, loop.time() + _LAST_CHANCE_S), self._end_oldest)

    def _end_oldest(self) -> None:
        self._timer = None
        if any(self._waiting):
            over = asyncio.get_running_loop().time() - self._patience_s
            for gives_way, began in self._receiving.items():
                if began <= over and not gives_way.done():
                    gives_way.set_result(None)
        self._look_at_oldest()


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
