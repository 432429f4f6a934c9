"""Sends copies of failed messages to the retry topic and the dead letters of a group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from minimq.admin.master_client import make_group_topic
from minimq.connection.client import ClusterClient
from minimq.connection.loop_thread import on_own_thread
from minimq.consuming.received import ReceivedMessage
from minimq.features.work_queues.copies import MAX_DELIVERIES_REACHED, dead_letter_of, origin_of, retry_of
from minimq.sending.atomic_append import Consumed
from minimq.sending.producer_core import ProducerCore
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import SendReceipt
from minimq.sending.receipt_future import ReceiptFuture
from minimq_common.errors import Fenced, MinimqError, TopicNotFound
from minimq_common.model import Message, TopicRoute
from minimq_common.names import dead_letter_topic, retry_topic
from minimq_common.retry_log import RetryLog

log = logging.getLogger(__name__)

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


_Waiting = tuple[Sequence[Failed], Consumed | None, "asyncio.Future[list[bool]]"]


class CopySender:
    """Sends copies of failed messages, and creates the topics of a group when they are first needed."""

    def __init__(self, client: ClusterClient, group: str, timeout_s: float) -> None:
        self._client = client
        self._group = group
        self._timeout_s = timeout_s
        self._waiting: list[_Waiting] = []
        self._round: asyncio.Task[None] | None = None
        # The rest belongs to the thread of the current round.
        self._producer: ProducerCore | None = None
        self._outages = {topic: RetryLog(log) for topic in (retry_topic(group), dead_letter_topic(group))}
        self._complete: set[str] = set()

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
                sent = await on_own_thread(partial(self._send_round, waiting))
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

    # ---- on the thread --------------------------------------------------------------------------

    def _send_round(self, waiting: Sequence[_Waiting]) -> list[bool]:
        failed = [item for items, _, _ in waiting for item in items]
        sent: list[bool | None] = []
        try:
            for items, consumed, _ in waiting:
                stored = False if consumed is None else self._send_with_progress(items, consumed)
                sent += [stored] * len(items)
            left = [index for index, stored in enumerate(sent) if stored is False]
            for index, stored in zip(left, self._send_all([failed[index] for index in left]), strict=True):
                sent[index] = stored
        except BaseException:  # the messages count as not sent, and later ones wait for this round
            log.exception("consumer: cannot send retries or dead letters")
        return [*map(bool, sent)] + [False] * (len(failed) - len(sent))

    def _send_with_progress(self, failed: Sequence[Failed], consumed: Consumed) -> bool | None:
        """Return whether all is stored; None if the queue was lost, so that its next owner delivers the messages."""
        copies = [item.copy(self._group) for item in failed]
        try:
            route, near = self._route(copies[0].topic), failed[0].message.queue.broker_name
            queue = next((queue for queue in route.write_queues() if queue.broker_name == near), None)
            if queue is None:
                return False
            self._sender().send_atomically([(copy, queue) for copy in copies], consumed)
        except Fenced:
            return None
        except MinimqError as error:  # perhaps other brokers take them
            log.debug("consumer: not sent with their progress group=%s error=%s", self._group, error)
            return False
        for item in failed:
            self._log_dead_letter(item)
        return True

    def _send_all(self, failed: Sequence[Failed]) -> list[bool]:
        """Send each copy to any broker; return which of them are stored."""
        copies, sent = [item.copy(self._group) for item in failed], []
        unknown: dict[str, MinimqError] = {}
        for topic in {copy.topic for copy in copies}:
            try:
                self._route(topic)
            except MinimqError as error:
                unknown[topic] = error
        futures = [self._begin(copy, unknown.get(copy.topic)) for copy in copies]
        for item, copy, future in zip(failed, copies, futures, strict=True):
            failure = future.exception()
            sent.append(failure is None)
            if failure is None:
                self._log_dead_letter(item)
                self._outages[copy.topic].worked("consumer: sends again group=%s topic=%s", self._group, copy.topic)
            elif not isinstance(failure, MinimqError):
                raise failure
            else:
                self._complete.discard(copy.topic)  # the topic may have been deleted
                message = "consumer: cannot send, will try again group=%s topic=%s error=%s"
                outage, told = self._outages[copy.topic], (self._group, copy.topic, failure)
                outage.failed(message, *told, cause=failure, level=logging.ERROR)
        return sent

    def _begin(self, copy: Message, error: MinimqError | None) -> Future[SendReceipt]:
        future: ReceiptFuture[SendReceipt] = ReceiptFuture()
        try:
            if error is not None:
                raise error
            self._sender().send(copy, None, None, future)
        except MinimqError as failure:
            future(failure)
        return future

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

    def _sender(self) -> ProducerCore:
        if self._producer is None:
            options = ProducerOptions(send_timeout_s=self._timeout_s, max_body_bytes=_MAX_BYTES)
            self._producer = ProducerCore(self._client.cluster, options)
        return self._producer

    def _route(self, topic: str) -> TopicRoute:
        if topic not in self._complete:
            make_group_topic(self._client, topic, self._timeout_s)
            self._complete.add(topic)
        try:
            return self._client.routes.route(topic)
        except TopicNotFound:  # deleted since
            self._complete.discard(topic)
            raise
