"""Sends copies of failed messages to the retry topic and the dead letters of a group."""

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
from minimq.connection.loop_calls import resolve
from minimq.consuming.received import ReceivedMessage
from minimq.features.work_queues.copies import MAX_DELIVERIES_REACHED, dead_letter_of, origin_of, retry_of
from minimq.sending.atomic_append import Consumed
from minimq.sending.callback_thread import CallbackThread
from minimq.sending.producer_core import ProducerCore
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import SendReceipt
from minimq.sending.receipt_future import ReceiptFuture
from minimq_common.errors import Fenced, MinimqError, TopicNotFound, Unavailable
from minimq_common.model import Message, MessageQueue, TopicRoute
from minimq_common.names import dead_letter_topic, retry_topic
from minimq_common.retry_log import RetryLog

log = logging.getLogger(__name__)

T = TypeVar("T")

#: After a failed send, a broker is tried last for this long.
_AVOID_S = 10.0
#: The highest limit that a broker can have: a received message has already passed the limit of its broker.
_MAX_BYTES = 32 << 20


class Failed(NamedTuple):
    message: ReceivedMessage
    reason: str = MAX_DELIVERIES_REACHED
    #: Delay before its next delivery; None for a dead letter.
    delay_ms: int | None = None
    #: Number of deliveries; None for that of the message.
    delivered: int | None = None
    #: The user has rejected it: not an error.
    is_wanted: bool = False

    @property
    def delivery_count(self) -> int:
        return self.message.delivery_count if self.delivered is None else self.delivered

    def copy(self, group: str) -> Message:
        if self.delay_ms is None:
            return dead_letter_of(self.message, group, self.reason, self.delivery_count)
        return retry_of(self.message, group, self.delay_ms)


async def result_of(thread: CallbackThread, client: ClusterClient, call: Callable[[], T]) -> T:
    """Run a call, which may block, on a thread; return its result on the event loop of the client's connection."""
    over: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    thread.run(lambda: client.connection.call_soon(resolve, over, call(), None))
    return await over


class CopySender:
    """Sends copies of failed messages, and creates the topics of a group when they are first needed."""

    def __init__(self, client: ClusterClient, group: str, timeout_s: float) -> None:
        self._client = client
        self._retry_topic, self._dead_letter_topic = retry_topic(group), dead_letter_topic(group)
        self._group = group
        self._timeout_s = timeout_s
        self._waiting: list[tuple[Sequence[Failed], Consumed | None, asyncio.Future[list[bool]]]] = []
        self._round: asyncio.Task[None] | None = None
        self._thread = CallbackThread(f"minimq-copies-{group}")
        # The rest belongs to the thread.
        self._producer: ProducerCore | None = None
        self._outages = {topic: RetryLog(log) for topic in (self._retry_topic, self._dead_letter_topic)}
        self._complete: set[str] = set()
        self._avoided: dict[str, float] = {}

    async def send(self, failed: Sequence[Failed], consumed: Consumed | None = None) -> list[bool]:
        """Send copies and wait; return for each message whether its copy is on disk.

        With `consumed`, the progress of their queue is stored with the copies if its broker takes both. Then all are
        retries, or all are dead letters.
        """
        sent: asyncio.Future[list[bool]] = asyncio.get_running_loop().create_future()
        self._waiting.append((failed, consumed, sent))
        if self._round is None:
            self._round = asyncio.create_task(self._send_rounds())
        return await sent

    async def _send_rounds(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                sent = await result_of(self._thread, self._client, partial(self._send_round, waiting))
                for failed, _, told in waiting:
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

    def _send_round(
        self, waiting: Sequence[tuple[Sequence[Failed], Consumed | None, asyncio.Future[list[bool]]]]
    ) -> list[bool]:
        failed = [item for items, _, _ in waiting for item in items]
        sent: list[bool] = []
        lost: set[int] = set()
        try:
            for items, consumed, _ in waiting:
                is_sent = consumed is not None and self._send_with_progress(items, consumed)
                if is_sent is None:
                    lost.update(range(len(sent), len(sent) + len(items)))
                sent += [bool(is_sent)] * len(items)
            for topic, outage in self._outages.items():
                wants_dead = topic == self._dead_letter_topic
                indices = [
                    index
                    for index, item in enumerate(failed)
                    if (item.delay_ms is None) == wants_dead and not sent[index] and index not in lost
                ]
                if indices:
                    self._send_all(topic, outage, failed, indices, sent)
        except BaseException:  # the messages count as not sent, and later ones wait for this round
            log.exception("consumer: cannot send retries or dead letters")
        return sent + [False] * (len(failed) - len(sent))

    def _send_with_progress(self, failed: Sequence[Failed], consumed: Consumed) -> bool | None:
        """Return whether all is stored; None if the queue was lost, so that its next owner delivers the messages."""
        topic = self._dead_letter_topic if failed[0].delay_ms is None else self._retry_topic
        try:
            queues = self._queues_at(self._route(topic), failed[0].message.queue.broker_name)
            if not queues or queues[0].broker_name != failed[0].message.queue.broker_name:
                return False
            copies = [(item.copy(self._group), queues[0]) for item in failed]
            self._sender().send_atomically(copies, consumed)
        except Fenced:
            return None
        except MinimqError as error:  # perhaps other brokers take them
            log.debug("consumer: not sent with their progress group=%s topic=%s error=%s", self._group, topic, error)
            return False
        for item in failed:
            self._log_dead_letter(item)
        return True

    def _send_all(
        self, topic: str, outage: RetryLog, failed: Sequence[Failed], indices: Sequence[int], sent: list[bool]
    ) -> None:
        try:
            self._send_to(topic, failed, indices, sent)
            if all(sent[index] for index in indices):
                outage.worked("consumer: sends again group=%s topic=%s", self._group, topic)
        except MinimqError as error:
            message = "consumer: cannot send, will try again group=%s topic=%s error=%s"
            outage.failed(message, self._group, topic, error, cause=error, level=logging.ERROR)

    def _send_to(self, topic: str, failed: Sequence[Failed], indices: Sequence[int], sent: list[bool]) -> None:
        queues = self._queues_at(self._route(topic), failed[indices[0]].message.queue.broker_name)
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
        if failed.delay_ms is not None:
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
        under_way: list[Future[SendReceipt]] = []
        for item in failed:
            under_way.append(future := ReceiptFuture[SendReceipt]())
            try:
                self._sender().send(item.copy(self._group), queue, None, future)
            except MinimqError as error:
                future.complete(None, error)
        return [_outcome(each) for each in under_way]

    def _sender(self) -> ProducerCore:
        if self._producer is None:
            options = ProducerOptions(send_timeout_s=self._timeout_s, max_body_bytes=_MAX_BYTES)
            self._producer = ProducerCore(self._client.cluster, options, ())
        return self._producer

    def _queues_at(self, route: TopicRoute, near: str) -> list[MessageQueue]:
        now = time.monotonic()
        of_broker = {queue.broker_name: queue for queue in route.write_queues()}
        return sorted(
            of_broker.values(),
            key=lambda queue: (self._avoided.get(queue.broker_name, 0) > now, queue.broker_name != near),
        )

    def _route(self, topic: str) -> TopicRoute:
        if topic not in self._complete:
            make_group_topic(self._client, topic, self._timeout_s)
            self._complete.add(topic)
        try:
            return self._client.routes.route(topic)
        except TopicNotFound:  # deleted since
            self._complete.discard(topic)
            raise


def _outcome(item: Future[SendReceipt]) -> MinimqError | None:
    error = item.exception()
    if error is None or isinstance(error, MinimqError):
        return error
    raise error
