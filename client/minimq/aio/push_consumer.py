"""The push consumer for asyncio: its listener is a coroutine function."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self, TypeVar, Unpack

from minimq.connection.cluster import Cluster
from minimq.filtering.tag_filter import TagExpression
from minimq.rebalance import AllocationStrategy
from minimq.receiving.consumer import ConsumerFace
from minimq.receiving.consumer_options import ConsumerChanges, ConsumerOptions
from minimq.receiving.interceptor import ReceiveInterceptor
from minimq.receiving.listening.listener import AsyncListener
from minimq.receiving.listening.push_consumer import Balance
from minimq.receiving.listening.push_consumer import PushConsumer as PlainPushConsumer
from minimq.transport.start_position import Start

T = TypeVar("T")


class PushConsumer(ConsumerFace):
    """Awaits a listener on one event loop for the messages of the queues that its group gives it.

    Arguments, behavior and guarantees are those of `minimq.PushConsumer`; `threads` limits the concurrent calls of the
    listener. Each is a task on that loop, or reuses the task of one that has returned.
    """

    _reader: PlainPushConsumer

    def __init__(  # noqa: PLR0913 - by name
        self,
        nameserver: str | Sequence[str] | Cluster | None = None,
        *,
        group: str,
        allocation: str | AllocationStrategy = "averagely",
        start: Start = "earliest",
        threads: int = 8,
        batch_size: int | None = None,
        balance: Balance = "queues",
        orderly: bool = False,
        client_id: str | None = None,
        options: ConsumerOptions | None = None,
        interceptors: Sequence[ReceiveInterceptor] = (),
        **changes: Unpack[ConsumerChanges],
    ) -> None:
        self._reader = PlainPushConsumer(
            nameserver,
            group=group,
            allocation=allocation,
            start=start,
            threads=threads,
            batch_size=batch_size,
            balance=balance,
            orderly=orderly,
            client_id=client_id,
            options=options,
            interceptors=interceptors,
            **changes,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def is_ready(self) -> bool:
        """True while it reads; see `minimq.PushConsumer.is_ready`."""
        return self._reader.is_ready

    def subscribe(self, topic: str, expression: TagExpression = "*", *, where: str | None = None) -> None:
        """Read a topic; before `start`. See `minimq.PushConsumer.subscribe`."""
        self._reader.subscribe(topic, expression, where=where)

    async def start(self, listener: AsyncListener) -> None:
        """Join the group and begin to await the listener on the loop that runs; see `minimq.PushConsumer.start`.

        Raises:
            InvalidArgument: also when the listener is no coroutine function.
        """
        await self._reader._start_on(asyncio.get_running_loop(), listener)

    async def close(self, timeout: float = 30.0) -> None:
        """Let running calls of the listener end, commit, leave the group; see `minimq.PushConsumer.close`."""
        self._reader._dispatcher.check_may_close()
        await asyncio.to_thread(self._reader.close, timeout)
