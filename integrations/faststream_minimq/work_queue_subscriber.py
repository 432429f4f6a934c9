"""A subscriber that receives messages one by one, as a work queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from faststream._internal.endpoint.utils import process_msg

from faststream_minimq.config import MinimqSubscriberConfig
from faststream_minimq.message import MinimqMessage, reason_of
from faststream_minimq.subscriber import MinimqSubscriber
from minimq import WorkQueueMessage, errors
from minimq.aio import WorkQueueConsumer

if TYPE_CHECKING:
    from faststream._internal.endpoint.subscriber import SubscriberSpecification
    from faststream._internal.endpoint.subscriber.call_item import CallsCollection
    from faststream.message import StreamMessage

#: Timeout of one `receive`, and delay of the next one after an error.
_WAIT_S = 10.0
_AGAIN_S = 1.0
#: Messages are extended every `invisible_s / _EXTENDED_AFTER` seconds.
_EXTENDED_AFTER = 3


class WorkQueueSubscriber(MinimqSubscriber):
    """Receives messages with a `minimq.aio.WorkQueueConsumer`, and runs up to `max_workers` handlers concurrently."""

    def __init__(
        self,
        config: MinimqSubscriberConfig,
        specification: SubscriberSpecification[Any, Any],
        calls: CallsCollection[Any],
    ) -> None:
        super().__init__(config, specification, calls)
        self._consumer: WorkQueueConsumer | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._extending: asyncio.Task[None] | None = None
        self._working: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(self.options.max_workers)
        #: By handle: messages that are not settled yet, and those that a running handler has acknowledged or buried.
        self._unsettled: dict[str, WorkQueueMessage] = {}
        self._done: set[str] = set()

    async def start(self) -> None:
        """Start to receive, unless the subscriber has no handler. Raises `SetupError` without a consumer group."""
        await super().start()
        self._slots = asyncio.Semaphore(self.options.max_workers)
        if self.calls and not self._outer_config.in_memory:
            consumer = await self._opened()
            await consumer.start()
            self._receiving = asyncio.create_task(self._receive_all(consumer))
        self._post_start()

    async def stop(self) -> None:
        """Wait up to `graceful_timeout` seconds for running handlers; release unsettled messages to the group."""
        await super().stop()
        current = asyncio.current_task()
        tasks = [task for task in (self._receiving, self._extending, *self._working) if task is not None]
        for task in tasks:
            if task is not current:
                task.cancel()
        await asyncio.gather(*(task for task in tasks if task is not current), return_exceptions=True)
        self._receiving = self._extending = None
        if (consumer := self._consumer) is not None:
            self._consumer = None
            await consumer.close()

    # ---- receiving ------------------------------------------------------------------------------

    async def _opened(self) -> WorkQueueConsumer:
        if self._consumer is None:
            options, connection = self.options, self._outer_config.connected()
            group = self.checked_group()
            if connection.create_queues:
                await asyncio.to_thread(connection.create_topic, self.topic)
            self._consumer = WorkQueueConsumer(
                connection.cluster,
                group=group,
                invisible_s=options.invisible_s,
                max_deliveries=cast("int", options.max_deliveries),
                start=options.start,
                # Prefetched messages would wait for a handler while their invisible duration runs.
                prefetch_messages=0,
            )
            self._consumer.subscribe(self.topic, options.tags, where=options.where)
            self._extending = asyncio.create_task(self._extend_all(self._consumer))
        return self._consumer

    async def _receive_all(self, consumer: WorkQueueConsumer) -> None:
        while self.running:
            await self._slots.acquire()
            free = 1
            while not self._slots.locked() and free < self.options.max_workers:
                await self._slots.acquire()
                free += 1
            works: list[Sequence[WorkQueueMessage]] = []
            try:
                works = self._works(await self._received(consumer, free))
            finally:
                for _ in range(free - len(works)):
                    self._slots.release()
            for work in works:
                task = asyncio.create_task(self._handle(work))
                self._working.add(task)
                task.add_done_callback(self._working.discard)

    async def _received(self, consumer: WorkQueueConsumer, free: int) -> list[WorkQueueMessage]:
        try:
            most = self.options.batch_size if self.options.batch else free
            return await consumer.receive(most, timeout=_WAIT_S)
        except errors.Closed:
            raise
        except errors.MinimqError as error:
            self._report(f"cannot receive from topic {self.topic}, tries again: {error}", logging.ERROR)
            await asyncio.sleep(_AGAIN_S)
            return []

    def _works(self, messages: list[WorkQueueMessage]) -> list[Sequence[WorkQueueMessage]]:
        """Divide messages into units of work: one call of a batch handler, or calls that run one after the other."""
        for message in messages:
            self._unsettled[message.handle] = message
        if self.options.batch:
            return [messages] if messages else []
        works: list[Sequence[WorkQueueMessage]] = []
        in_order: dict[str, list[WorkQueueMessage]] = {}
        for message in messages:
            if (name := message.message_group) is None:
                works.append([message])
            else:
                in_order.setdefault(name, []).append(message)
        return [*works, *in_order.values()]

    async def _handle(self, messages: Sequence[WorkQueueMessage]) -> None:
        try:
            if self.options.batch:
                await self.consume(tuple(messages))
                return
            for message in messages:
                await self.consume(message)
                # Later messages of the message group must not overtake a failed one: they are redelivered after it.
                if message.handle not in self._done:
                    return
        finally:
            self._forget(messages)
            self._done.difference_update(message.handle for message in messages)
            self._slots.release()

    # ---- settling -------------------------------------------------------------------------------

    async def acknowledge(self, messages: Sequence[WorkQueueMessage]) -> None:
        """Acknowledge messages, and wait until the acks are on disk."""
        if self._consumer is not None:
            await self._consumer.ack(list(messages))
            self._forget(messages, done=True)

    async def release(
        self, messages: Sequence[WorkQueueMessage], delay_s: float | None, error: BaseException | None
    ) -> None:
        max_delivery_count = cast("int", self.options.max_deliveries)
        if used_up := [message for message in messages if message.delivery_count >= max_delivery_count]:
            await self.bury(used_up, reason_of(error))
        again = [message for message in messages if message.delivery_count < max_delivery_count]
        if self._consumer is not None and again:
            self._forget(again)
            delivery_count = max(message.delivery_count for message in again)
            await self._consumer.release(again, self.options.delay_s(delivery_count) if delay_s is None else delay_s)

    async def bury(self, messages: Sequence[WorkQueueMessage], reason: str) -> None:
        if self._consumer is not None:
            await self._consumer.reject(list(messages), reason)
            self._forget(messages, done=True)

    def _forget(self, messages: Iterable[WorkQueueMessage], *, done: bool = False) -> None:
        for message in messages:
            if self._unsettled.pop(message.handle, None) is not None and done:
                self._done.add(message.handle)

    async def _extend_all(self, consumer: WorkQueueConsumer) -> None:
        while True:
            await asyncio.sleep(self.options.invisible_s / _EXTENDED_AFTER)
            if messages := list(self._unsettled.values()):
                try:
                    await consumer.extend(messages)
                except errors.Closed:
                    return
                except errors.HandleExpired:
                    pass  # some were settled meanwhile, or redelivered to another consumer; the others are extended
                except errors.MinimqError as error:
                    self._report(f"cannot extend {len(messages)} messages, tries again: {error}", logging.WARNING)

    # ---- without a handler ----------------------------------------------------------------------

    async def get_one(self, *, timeout: float = 5.0) -> StreamMessage[Any] | None:
        """Return the next message, for you to settle; None after `timeout` seconds. Only without handlers."""
        assert not self.calls, "the subscriber has handlers, which get the messages: use one without any"
        for message in await (await self._opened()).receive(1, timeout=timeout):
            return await self._parsed(message)
        return None

    async def __aiter__(self) -> AsyncIterator[MinimqMessage]:  # type: ignore[override] # as FastStream's own brokers
        """Yield messages forever, for you to settle. Only without handlers."""
        assert not self.calls, "the subscriber has handlers, which get the messages: use one without any"
        async for message in await self._opened():
            yield await self._parsed(message)

    async def _parsed(self, message: WorkQueueMessage) -> MinimqMessage:
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.fd_config.context
        raw: Any = (message,) if self.options.batch else message
        parsed = await process_msg(
            msg=raw,
            middlewares=(middleware(raw, context=context) for middleware in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        return cast("MinimqMessage", parsed)

    def _report(self, text: str, level: int) -> None:
        self._outer_config.logger.log(text, level, extra=self.get_log_context(None))
