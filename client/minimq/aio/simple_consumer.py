"""The simple consumer for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from minimq.receiving.interceptor import Operation
from minimq.receiving.listening.redelivery import REJECTED
from minimq.receiving.transaction_inputs import PoppedInput
from minimq.receiving.work_queues.popped import PoppedMessage, Receivables, each_of
from minimq.receiving.work_queues.settler import DONE, Settlement
from minimq.receiving.work_queues.simple_consumer import SimpleFace
from minimq.receiving.work_queues.simple_reader import Reception

T = TypeVar("T")


class SimpleConsumer(SimpleFace):
    """Receives messages one by one; arguments, behavior and guarantees are those of `minimq.SimpleConsumer`.

    The work is done on the event loop of the connection, and nothing blocks that of the caller. Any number of tasks may
    receive and settle concurrently. Messages that a cancelled `receive` would have returned go to others.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def receive(
        self, max_messages: int = 32, *, invisible_s: float | None = None, timeout: float = 10.0
    ) -> list[PoppedMessage]:
        """Return messages, all of one queue; see `minimq.SimpleConsumer.receive`."""
        found = Reception()
        try:
            if self._interceptors:
                with self._interceptors.receive() as call:
                    await self._receive(max_messages, invisible_s, timeout, found)
                    call.found(found)
            else:
                await self._receive(max_messages, invisible_s, timeout, found)
        except BaseException:  # such as a cancellation, which may come when the messages are here
            self._reader.abandon(found)
            raise
        return found

    async def _receive(self, max_messages: int, invisible_s: float | None, timeout: float, found: Reception) -> None:
        if self._reader.receive_prefetched(max_messages, invisible_s, timeout, found):
            await asyncio.sleep(0)  # other tasks have their turn
        else:
            await self._run(lambda: self._reader.receive(max_messages, invisible_s, timeout, found))

    async def __aiter__(self) -> AsyncIterator[PoppedMessage]:
        """Yield messages forever, each received by itself."""
        while True:
            for message in await self.receive(1):
                yield message

    async def ack(self, messages: Receivables) -> None:
        """Acknowledge messages, and wait until that is on disk; see `minimq.SimpleConsumer.ack`."""
        await self._settle("ack", messages, DONE)

    async def ack_async(self, messages: Receivables) -> asyncio.Future[None]:
        """Acknowledge messages without waiting; return a future that raises what `ack` would."""
        if self._interceptors:
            later = self._interceptors.settle_later("ack", [*each_of(messages)], self._reader.settler.ack_soon)
            return asyncio.wrap_future(later)
        return asyncio.wrap_future(self._reader.settler.ack_soon(messages))

    async def release(self, messages: Receivables, delay_s: float = 0.0) -> None:
        """Release failed messages; see `minimq.SimpleConsumer.release`."""
        await self._settle("release", messages, self._reader.freed(delay_s))

    async def extend(self, messages: Receivables, invisible_s: float | None = None) -> None:
        """Restart the invisible duration of messages; see `minimq.SimpleConsumer.extend`."""
        await self._settle("extend", messages, self._reader.extended(invisible_s))

    async def reject(self, messages: PoppedMessage | Iterable[PoppedMessage], reason: str = REJECTED) -> None:
        """Send messages to the dead letters of the group; see `minimq.SimpleConsumer.reject`."""
        given = [*each_of(messages)]
        with self._interceptors.settle("reject", given):
            await self._run(lambda: self._reader.reject(given, reason))

    def transaction_input(self) -> PoppedInput:
        """Return what one transaction takes from this consumer, for `Producer.transaction`."""
        self._reader.check_open()

        def receive(timeout: float, max_messages: int) -> Coroutine[Any, Any, list[PoppedMessage]]:
            return self.receive(max_messages, timeout=timeout)

        return PoppedInput(self._reader.client, self.group, self._reader.settler, receive, self._reader.let_go)

    async def close(self) -> None:
        """Leave the group, and end; see `minimq.SimpleConsumer.close`. Idempotent."""
        self._when_dropped.closed()
        await asyncio.to_thread(self._reader.end)

    async def _settle(self, operation: Operation, messages: Receivables, how: Settlement) -> None:
        if not self._interceptors:
            await self._reader.settler.settle_elsewhere(messages, how)
            return
        given = [*each_of(messages)]
        with self._interceptors.settle(operation, given):
            await self._reader.settler.settle_elsewhere(given, how)

    async def _run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._reader.client.check_open()
        return await self._reader.client.result(make, cancels=True)
