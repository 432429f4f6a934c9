"""Answers to one stream of a consumer that takes messages one by one, gathered into responses."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from minimq_broker.services.pop_reader import DeliveredRuns, PopReader
from minimq_common.rpc import to_failure
from minimq_proto.v1 import broker_pb2

#: Results that may wait for a client that does not read; with more, nothing is received from it.
MAX_WAITING = 1_000
#: A response is about this large, and never larger by more than what one take brings.
_RESPONSE_BYTES = 1 << 20


class PopAnswers:
    """Results that wait to be written to one stream, combined in one response."""

    def __init__(self, reader: PopReader) -> None:
        self._reader = reader
        self._results: deque[broker_pb2.PopResult | DeliveredRuns] = deque()
        self._ended = self._is_closed = False
        self._waiter: asyncio.Future[None] | None = None
        self._taken = asyncio.Event()
        #: Takes and settles that are not answered.
        self.expected = 0
        #: Has a take that waits answered at once, by its id.
        self.cancels: dict[int, Callable[[], None]] = {}

    @property
    def is_closed(self) -> bool:
        """True when nothing is written any more."""
        return self._is_closed

    def size_hint(self) -> int:
        """Return how large the next response will be, about, in bytes."""
        return _RESPONSE_BYTES if any(isinstance(result, DeliveredRuns) for result in self._results) else 0

    async def fewer(self) -> None:
        """Return when not too many results wait."""
        while len(self._results) >= MAX_WAITING:
            self._taken.clear()
            await self._taken.wait()

    def add(self, result: broker_pb2.PopResult | DeliveredRuns) -> None:
        """Write a result; messages that were delivered to a client that is gone go to others."""
        if self.cancels:
            self.cancels.pop(result.take_id if isinstance(result, DeliveredRuns) else result.id, None)
        if not self._is_closed:
            self._results.append(result)
            self._wake()
        elif isinstance(result, DeliveredRuns):
            self._reader.give_back(result)

    def fail(self, number: int, error: Exception) -> None:
        """Answer a take or a settle by an error."""
        self.add(broker_pb2.PopResult(id=number, failure=to_failure(error)))

    def end(self) -> None:
        """No further request will come."""
        self._ended = True
        self._wake()

    def close(self) -> None:
        """Write no more."""
        self._is_closed = True
        for cancel in [*self.cancels.values()]:
            cancel()
        results, self._results = self._results, deque()
        for result in results:
            if isinstance(result, DeliveredRuns):
                self._reader.give_back(result)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def some(self) -> bool:
        """Wait until there are some; False once all is answered and no request will come."""
        while not self._results:
            if self._ended and self.expected <= 0:
                return False
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return True

    def take(self) -> broker_pb2.PopResponse:
        """Return the waiting results, up to the size of a response."""
        response, size = broker_pb2.PopResponse(), 0
        while self._results and size < _RESPONSE_BYTES:
            result = self._results.popleft()
            self.expected -= 1
            if isinstance(result, DeliveredRuns):
                size += self._reader.write(result, response.results.add(id=result.take_id))
            else:
                response.results.append(result)
        self._taken.set()
        return response
