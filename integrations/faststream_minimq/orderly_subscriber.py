"""A subscriber that reads queues in order, by committed offsets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from faststream.exceptions import FeatureNotSupportedException, HandlerException

from faststream_minimq.config import MinimqSubscriberConfig
from faststream_minimq.message import MinimqMessage
from faststream_minimq.subscriber import MinimqSubscriber
from minimq import ConsumeResult, MessageQueue, ReceivedMessage
from minimq.aio import PushConsumer

if TYPE_CHECKING:
    from faststream._internal.endpoint.subscriber import SubscriberSpecification
    from faststream._internal.endpoint.subscriber.call_item import CallsCollection
    from faststream.message import StreamMessage

#: How long the consumer waits for handlers that still run after `graceful_timeout`.
_CLOSE_S = 0.5


class OrderlySubscriber(MinimqSubscriber):
    """Reads queues with an orderly `minimq.aio.PushConsumer`: the members of the group divide them."""

    def __init__(
        self,
        config: MinimqSubscriberConfig,
        specification: SubscriberSpecification[Any, Any],
        calls: CallsCollection[Any],
    ) -> None:
        super().__init__(config, specification, calls)
        self._consumer: PushConsumer | None = None
        self._closing: asyncio.Task[None] | None = None
        #: The outcome of the running call for each queue, and the tasks of these calls.
        self._results: dict[MessageQueue, ConsumeResult | Exception] = {}
        self._calls: set[asyncio.Task[Any] | None] = set()

    async def start(self) -> None:
        """Join the group, unless the subscriber has no handler. Raises `SetupError` without a consumer group."""
        await super().start()
        self._post_start()
        if self.calls and not self._outer_config.in_memory:
            await self._join()

    async def _join(self) -> None:
        options, connection = self.options, self._outer_config.connected()
        group = self.checked_group()
        if connection.create_queues:
            await asyncio.to_thread(connection.create_topic, self.topic)
        self._consumer = PushConsumer(
            connection.cluster,
            group=group,
            start=options.start,
            threads=options.max_workers,
            batch_size=options.batch_size if options.batch else 1,
            orderly=True,
            max_deliveries=options.max_deliveries,
            retry_delays_s=(options.orderly_retry_delay_s,),
        )
        self._consumer.subscribe(self.topic, options.tags, where=options.where)
        await self._consumer.start(self._listen)

    async def stop(self) -> None:
        """Wait up to `graceful_timeout` seconds for running handlers, commit, and leave the group."""
        await super().stop()
        if (consumer := self._consumer) is not None:
            self._consumer = None
            closing = asyncio.create_task(consumer.close(_CLOSE_S))
            # `close` waits for running handlers. So a handler that stops its own subscriber must not wait for `close`.
            if asyncio.current_task() not in self._calls:
                await closing
            else:
                self._closing = closing

    async def _listen(self, messages: list[ReceivedMessage]) -> ConsumeResult:
        queue, task = messages[0].queue, asyncio.current_task()
        self._calls.add(task)
        try:
            await self.consume(tuple(messages) if self.options.batch else messages[0])
            result = self._results.pop(queue, ConsumeResult.RETRY_LATER)
            if isinstance(result, Exception):
                raise result  # it becomes the reason of a dead letter
            return result
        finally:
            self._calls.discard(task)

    async def acknowledge(self, messages: Sequence[ReceivedMessage]) -> None:
        """Let the consumer commit the offset after `messages` when the call ends."""
        self._results[messages[0].queue] = ConsumeResult.SUCCESS

    async def release(
        self, messages: Sequence[ReceivedMessage], delay_s: float | None, error: BaseException | None
    ) -> None:
        """Retry after `orderly_retry_delay_s`. Raises `FeatureNotSupportedException` for any other delay."""
        if delay_s is not None:
            raise FeatureNotSupportedException(
                "an orderly subscriber retries after orderly_retry_delay_s: call nack() without delay"
            )
        self._results[messages[0].queue] = (
            error
            if isinstance(error, Exception) and not isinstance(error, HandlerException)
            else ConsumeResult.RETRY_LATER
        )

    async def bury(self, messages: Sequence[ReceivedMessage], reason: str) -> None:
        """Skip messages, with a warning."""
        text = f"skips {len(messages)} messages from offset {messages[0].queue_offset} of {messages[0].queue}: {reason}"
        self._outer_config.logger.log(text, logging.WARNING, extra=self.get_log_context(None))
        self._results[messages[0].queue] = ConsumeResult.SUCCESS

    async def get_one(self, *, timeout: float = 5.0) -> StreamMessage[Any] | None:
        """Raise `FeatureNotSupportedException`."""
        raise FeatureNotSupportedException(_NOT_ONE_BY_ONE)

    def __aiter__(self) -> AsyncIterator[MinimqMessage]:
        """Raise `FeatureNotSupportedException`."""
        raise FeatureNotSupportedException(_NOT_ONE_BY_ONE)


_NOT_ONE_BY_ONE = "an orderly subscriber has a handler: for single messages use a subscriber without orderly=True"
