"""Large requests: counted as they are taken in, and opened one by one.

A list of empty items takes two bytes for each on the wire, seventy once it is opened, and a call of protobuf for all of
them that nothing comes in between. So a large request stays as it came until it is its turn.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import DecodeError, Message

from minimq_common.bound_check import check_bounds
from minimq_common.errors import InvalidArgument, MessageTooLarge, MiniMQError
from minimq_common.intake import AROUND_REQUEST, Intake, Taken
from minimq_common.list_bounds import ListCut, lists_of

#: Requests from that size on are large.
LARGE_BYTES = 64 << 10
#: Requests that are refused for what they are get their answers at this rate, all together.
REFUSED_BYTES_PER_S = 16 << 20

#: Opening takes no more than one in so many parts of the time, and one more.
_REST = 3

#: Serves a call: takes its request, or requests, and its context.
Serve = Callable[[Any, Any], Awaitable[Any]]


class Decoder:
    """Decodes the requests of one call but for large ones, and counts their bytes for its connection."""

    def __init__(
        self,
        decode: Callable[[bytes], Any] | None,
        most: float,
        opened: float = math.inf,
        large: float = LARGE_BYTES,
    ) -> None:
        self._decode = decode
        self._most = most
        self._opened = opened
        self._large = large
        self._taken = Taken()

    def count_for(self, intake: Intake | None, peer: str) -> None:
        """Count for the connection of a call."""
        if intake is not None:
            self._taken = intake.of(peer)

    def __call__(self, data: bytes) -> Any:  # noqa: ANN401 - of any call
        """Return a request as its handler gets it."""
        size = len(data)
        if size > self._most or self._large <= size <= self._opened:
            return LargeRequest(self, data, self._most)
        self.take(size)
        return self.decode(data) if size <= self._opened else data

    def take(self, size: int) -> None:
        """Count a request."""
        self._taken.bytes += size + AROUND_REQUEST

    def shortening(self, data: bytes) -> ListCut | None:
        """Return what cuts a request where a list has too many items; None for one that has no lists."""
        lists = lists_of(self._decode) if self._decode is not None else None
        return ListCut(data, lists) if lists is not None else None

    def decode(self, data: bytes) -> Any:  # noqa: ANN401 - of any call
        """Return what a request says. Raises `InvalidArgument` when it is no message."""
        if self._decode is None:
            return data
        try:
            return self._decode(data)
        except DecodeError as error:
            reason = f"a request of {len(data)} bytes is no message: {error}"
        del data  # an error remembers what was there when it was raised, for as long as it travels
        raise InvalidArgument(reason)


class LargeRequest:
    """A request that is not opened yet. It counts as taken in once it is, or is given up."""

    __slots__ = ("_data", "_decoder", "_opened_in_s", "refusal", "size")

    def __init__(self, decoder: Decoder, data: bytes, most: float) -> None:
        self.size = len(data)
        self.refusal: MessageTooLarge | None = None
        self._decoder: Decoder | None = decoder
        self._data = data
        self._opened_in_s = 0.0
        if self.size > most:
            self.refusal = MessageTooLarge(
                f"a request of {self.size} bytes is over the limit of this call, {most} bytes"
            )
            self._take()

    async def open(self) -> Any:  # noqa: ANN401 - of any call
        """Return what it says; it is opened once.

        One with a list that is longer than it may be is opened up to the first item beyond that: it breaks its bound,
        and no more is made of it.
        """
        if self.refusal is not None:
            raise self.refusal
        decoder = self._decoder
        assert decoder is not None
        cut = decoder.shortening(self._data)
        if cut is not None:
            for _ in cut.steps():
                await asyncio.sleep(0)
            self._data = cut.kept
            del cut
        began = time.thread_time()
        try:
            return decoder.decode(self._take())
        finally:
            self._opened_in_s = time.thread_time() - began

    async def checked(self) -> Any:  # noqa: ANN401 - of any call
        """Return what it says. Raises as `open` does, and `InvalidArgument` when it is out of its bounds."""
        opened, broken = await self.open(), ""
        if isinstance(opened, Message):
            try:
                check_bounds(opened)
            except InvalidArgument as error:
                broken = error.message
        if broken:
            del opened  # as in `Decoder.decode`
            raise InvalidArgument(broken)
        return opened

    async def rest(self) -> None:
        """Leave time for others, after this was opened and before another one is."""
        await asyncio.sleep(self._opened_in_s * _REST)

    def _take(self) -> bytes:
        decoder, self._decoder = self._decoder, None
        data, self._data = self._data, b""
        if decoder is not None:
            decoder.take(self.size)
        return data

    def __del__(self) -> None:
        self._take()


class Line:
    """Large requests of a server, one after the other. Lives on one event loop.

    One is opened at a time, with a pause for others after it, and one of each call is served at a time.
    """

    def __init__(self) -> None:
        self._opening, self._refusing = asyncio.Lock(), asyncio.Lock()
        self._serving: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def serve(self, method: str, request: LargeRequest, serve: Serve, context: object) -> object:
        """Return the answer of a call. Raises as `open` does."""
        async with self._serving[method]:
            opened, refusal = await self._try_to_open(request)
            if refusal is None:
                return await serve(opened, context)
        raise await self._later(request, refusal)

    async def open(self, request: LargeRequest) -> Any:  # noqa: ANN401 - of any call
        """Return what a request says."""
        opened, refusal = await self._try_to_open(request)
        if refusal is not None:
            raise await self._later(request, refusal)
        return opened

    async def _try_to_open(self, request: LargeRequest) -> tuple[Any, MiniMQError | None]:
        async with self._opening:
            try:
                return await opened_in_turn(request), None
            except (InvalidArgument, MessageTooLarge) as error:
                return None, error

    async def _later(self, request: LargeRequest, refusal: MiniMQError) -> MiniMQError:
        async with self._refusing:
            await asyncio.sleep(request.size / REFUSED_BYTES_PER_S)
        return refusal


async def opened_in_turn(request: LargeRequest) -> Any:  # noqa: ANN401 - of any call
    """Return what a request says, after a pause for others. Raises as `LargeRequest.checked` does."""
    try:
        return await request.checked()
    finally:
        await request.rest()
