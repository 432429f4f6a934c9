"""Retries of failed messages: how often, after what delay, and the copies that are sent for them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple, TypeVar

from minimq.admin.master_client import make_group_topic
from minimq.connection.client import ClusterClient
from minimq.connection.client_log import client_logger
from minimq.connection.loop_calls import resolve
from minimq.consuming.consumer_options import MAX_DELIVERIES, ConsumerOptions
from minimq.consuming.received import ReceivedMessage
from minimq.features.listeners.redelivery import MAX_DELIVERIES_REACHED, copy_of, dead_letter_of, origin_of
from minimq.sending.callback_thread import CallbackThread
from minimq.sending.producer import BlockingProducer
from minimq.sending.receipt import SendReceipt
from minimq_common.errors import MinimqError, TopicNotFound, Unavailable
from minimq_common.model import MessageQueue, TopicRoute
from minimq_common.names import dead_letter_topic, retry_topic
from minimq_common.retry_log import RetryLog

log = client_logger(__name__)

T = TypeVar("T")

#: After a failed send, a broker is tried last for this long.
_AVOID_S = 10.0
#: The highest limit that a broker can have: a received message has already passed the limit of its broker.
_MAX_BYTES = 32 << 20


class RetryRule:
    """Decides how often a message is tried, and with which delays."""

    def __init__(self, options: ConsumerOptions, *, in_order: bool = False) -> None:
        self.delays_s = options.retry_delays_s
        #: None: unlimited.
        self.max_deliveries = (
            MAX_DELIVERIES if options.max_deliveries is None and not in_order else options.max_deliveries
        )

    def is_over(self, message: ReceivedMessage, *, is_final: bool = False, deaths: int = 0) -> bool:
        """Return whether a message has no delivery left after this one, or after `deaths` of consumers that had it."""
        delivery_count = message.delivery_count - 1 + (deaths or 1)
        return is_final or (self.max_deliveries is not None and delivery_count >= self.max_deliveries)

    def level(self, message: ReceivedMessage, chosen: int | None) -> int:
        """Return the index of the delay of a message, which is the id of its queue of the retry topic."""
        return min(message.delivery_count - 1 if chosen is None else chosen, len(self.delays_s) - 1)

    def delay_ms(self, queue_id: int) -> int:
        """Return how many ms messages wait in a queue of the retry topic."""
        return round(self.delays_s[min(queue_id, len(self.delays_s) - 1)] * 1000)


class Failed(NamedTuple):
    message: ReceivedMessage
    reason: str = MAX_DELIVERIES_REACHED
    #: Index of the delay before its next delivery; None for a dead letter.
    level: int | None = None
    #: Number of deliveries; None for that of the message.
    delivered: int | None = None
    #: The user has rejected it: not an error.
    is_wanted: bool = False

    @property
    def delivery_count(self) -> int:
        return self.message.delivery_count if self.delivered is None else self.delivered


async def result_of(thread: CallbackThread, client: ClusterClient, call: Callable[[], T]) -> T:
    """Run a call, which may block, on a thread; return its result on the event loop of the client's connection."""
    over: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    thread.run(lambda: client.connection.call_soon(resolve, over, call(), None))
    return await over


class RetrySender:
    """Sends copies to the retry topic and the dead letters of a group, and creates these topics when first needed."""

    def __init__(self, client: ClusterClient, group: str, levels: int, timeout_s: float) -> None:
        self._client = client
        self._retry_topic, self._dead_letter_topic = retry_topic(group), dead_letter_topic(group)
        self._queues = {self._retry_topic: levels, self._dead_letter_topic: 1}
        self._group = group
        self._timeout_s = timeout_s
        self._waiting: list[tuple[Sequence[Failed], asyncio.Future[list[bool]]]] = []
        self._round: asyncio.Task[None] | None = None
        self._thread = CallbackThread(f"minimq-retries-{group}")
        # The rest belongs to the thread.
        self._producer: BlockingProducer | None = None
        self._outages = {topic: RetryLog(log) for topic in self._queues}
        self._complete: set[str] = set()
        self._avoided: dict[str, float] = {}

    async def send(self, failed: Sequence[Failed]) -> list[bool]:
        """Send copies and wait; return for each message whether its copy is on disk."""
        sent: asyncio.Future[list[bool]] = asyncio.get_running_loop().create_future()
        self._waiting.append((failed, sent))
        if self._round is None:
            self._round = asyncio.create_task(self._send_rounds())
        return await sent

    async def _send_rounds(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                failures = [item for failed, _ in waiting for item in failed]
                sent = await result_of(self._thread, self._client, partial(self._send_round, failures))
                for failed, told in waiting:
                    if not told.done():
                        told.set_result(sent[: len(failed)])
                    del sent[: len(failed)]
        finally:
            self._round = None

    def close(self) -> None:
        """Close all connections. On any thread but that of the loop."""
        if self._producer is not None:
            try:
                self._producer.close(0.0)
            except MinimqError as error:
                log.warning("consumer: copies may have been sent twice group=%s error=%s", self._group, error)
        self._thread.close(0.0)

    # ---- on the thread --------------------------------------------------------------------------

    def _send_round(self, failed: Sequence[Failed]) -> list[bool]:
        sent = [False] * len(failed)
        try:
            self._send(failed, sent)
        except BaseException:  # the messages count as not sent, and later ones wait for this round
            log.exception("consumer: cannot send retries or dead letters")
        return sent

    def _send(self, failed: Sequence[Failed], sent: list[bool]) -> None:
        by_level: dict[int | None, list[int]] = {}
        for index, item in enumerate(failed):
            by_level.setdefault(item.level, []).append(index)
        for level, indices in by_level.items():
            topic = self._dead_letter_topic if level is None else self._retry_topic
            outage = self._outages[topic]
            try:
                self._send_to(topic, level or 0, failed, indices, sent)
                if all(sent[index] for index in indices):
                    outage.worked("consumer: sends again group=%s topic=%s", self._group, topic)
            except MinimqError as error:
                message = "consumer: cannot send, will try again group=%s topic=%s error=%s"
                outage.failed(message, self._group, topic, error, cause=error, level=logging.ERROR)

    def _send_to(
        self, topic: str, level: int, failed: Sequence[Failed], indices: Sequence[int], sent: list[bool]
    ) -> None:
        queues = self._queues_at(self._route(topic), level, failed[indices[0]].message.queue.broker_name)
        if not queues:
            raise Unavailable(f"no broker takes messages for topic {topic}")
        for queue in queues:
            left = [index for index in indices if not sent[index]]
            for index, error in zip(left, self._send_copies([failed[index] for index in left], queue), strict=True):
                if error is None:
                    sent[index] = True
                    self._log_dead_letter(failed[index])
                else:
                    message = "consumer: cannot send, will try again group=%s queue=%s error=%s"
                    self._outages[topic].failed(message, self._group, queue, error, cause=error)
                    self._complete.discard(topic)  # the topic may have been deleted
                    self._avoided[queue.broker_name] = time.monotonic() + _AVOID_S
            if all(sent[index] for index in indices):
                return

    def _log_dead_letter(self, failed: Failed) -> None:
        if failed.level is not None:
            return
        queue, offset = origin_of(failed.message)
        log.log(
            logging.INFO if failed.is_wanted else logging.ERROR,
            "consumer: a dead letter group=%s topic=%s queue=%s offset=%s calls=%s reason=%s",
            self._group,
            failed.message.topic,
            queue,
            offset,
            failed.delivery_count,
            failed.reason,
        )

    def _send_copies(self, failed: Sequence[Failed], queue: MessageQueue) -> list[MinimqError | None]:
        if self._producer is None:
            self._producer = BlockingProducer(
                self._client.cluster, send_timeout_s=self._timeout_s, max_body_bytes=_MAX_BYTES
            )
        under_way: list[Future[SendReceipt] | MinimqError] = []
        for item in failed:
            if item.level is None:
                copy = dead_letter_of(item.message, self._group, item.reason, item.delivery_count)
            else:
                copy = copy_of(item.message, self._retry_topic)
            try:
                under_way.append(self._producer.send_async(copy, queue=queue))
            except MinimqError as error:
                under_way.append(error)
        return [_outcome(item) for item in under_way]

    def _queues_at(self, route: TopicRoute, level: int, near: str) -> list[MessageQueue]:
        now = time.monotonic()
        of_broker: dict[str, MessageQueue] = {}
        for queue in route.write_queues():
            if queue.queue_id <= level:  # users may have created the topic with fewer queues
                of_broker[queue.broker_name] = queue
        return sorted(
            of_broker.values(),
            key=lambda queue: (self._avoided.get(queue.broker_name, 0) > now, queue.broker_name != near),
        )

    def _route(self, topic: str) -> TopicRoute:
        if topic not in self._complete:
            make_group_topic(self._client, topic, self._queues[topic], self._timeout_s)
            self._complete.add(topic)
        try:
            return self._client.routes.route(topic)
        except TopicNotFound:  # deleted since
            self._complete.discard(topic)
            raise


def _outcome(item: Future[SendReceipt] | MinimqError) -> MinimqError | None:
    if isinstance(item, MinimqError):
        return item
    error = item.exception()
    if error is None or isinstance(error, MinimqError):
        return error
    raise error
