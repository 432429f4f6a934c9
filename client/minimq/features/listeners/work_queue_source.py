"""Takes messages of work queues, and the retries of leased queues: extends them during calls, and settles them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from typing import Any

from minimq.connection.cluster import Cluster
from minimq.connection.retry_schedule import PAUSE_S
from minimq.consuming.message_filter import MessageFilter
from minimq.consuming.queue_reader import LONG_POLL_S
from minimq.consuming.start_position import Start
from minimq.features.listeners.listener import ListenerCalls, ListenerResult
from minimq.features.listeners.listener_options import PushConsumerOptions
from minimq.features.listeners.listener_runner import ListenerRunner
from minimq.features.listeners.retries import RetryRule
from minimq.features.listeners.source import Delivery, Source
from minimq.features.work_queues.copy_sender import Failed
from minimq.features.work_queues.settler import DONE, RETURNED, Settlement
from minimq.features.work_queues.work_queue_message import WorkQueueMessage
from minimq.features.work_queues.work_queue_options import WorkQueueOptions
from minimq.features.work_queues.work_queue_reader import WorkQueueReader
from minimq_common.errors import HandleExpired, InvalidArgument, MinimqError
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

#: Extend an invisible duration when this fraction of it is over.
_EXTEND_AFTER = 1 / 3
_CLOSE_S = 5.0
#: Messages in flight: with batches, calls may take several at once, and each is extended every third of `invisible_s`.
_MAX_IN_FLIGHT = 4096
_DEAD_LETTER_RETRY_S = 2.0


class WorkQueueDelivery(Delivery):
    """A delivery of messages of a work queue, which are extended until they are settled."""

    __slots__ = ("is_extending", "is_lost", "kept", "kept_at")

    messages: Sequence[WorkQueueMessage]

    def __init__(self, source: WorkQueueSource, messages: Sequence[WorkQueueMessage], now: float) -> None:
        super().__init__(source, messages)
        #: In FIFO topics, the next messages of the message group wait until these are settled.
        self.keeps_slot = messages[0].group_hash != 0
        #: The messages to extend, and when that was last done.
        self.kept = messages
        self.kept_at = now
        self.is_extending = False
        #: The broker has redelivered some of the messages, or will: they are no longer extended.
        self.is_lost = False

    @property
    def group_hash(self) -> tuple[MessageQueue, int]:
        """Identifies the message group: queue and hash of the group, which is 0 if the topic is not FIFO."""
        return self.queue, self.messages[0].group_hash

    def cut(self, count: int) -> Sequence[WorkQueueMessage]:
        """Keep the first `count` messages and return the others."""
        rest, self.messages = self.messages[count:], self.messages[:count]
        self.kept = self.messages
        return rest


def divided(messages: Sequence[WorkQueueMessage], batch_size: int) -> Iterator[list[WorkQueueMessage]]:
    """Divide the messages of one pop into calls, in order within each message group.

    A retried message has a call of its own, so that it cannot make others fail.
    """
    if messages and messages[0].topic != messages[0].queue.topic:  # copies, perhaps of several topics
        batch_size = 1
    by_group_hash: dict[int, list[WorkQueueMessage]] = {}
    for message in messages:
        by_group_hash.setdefault(message.group_hash, []).append(message)
    for group_hash, of_group_hash in by_group_hash.items():
        if not group_hash:
            of_group_hash.sort(key=lambda message: message.delivery_count > 1)
        part: list[WorkQueueMessage] = []
        for message in of_group_hash:
            if part and (len(part) == batch_size or message.delivery_count > 1 or part[-1].delivery_count > 1):
                yield part
                part = []
            part.append(message)
        yield part


class MessageGroups:
    """Serializes the deliveries of each message group: one runs, the others wait."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[MessageQueue, int], deque[WorkQueueDelivery]] = {}

    def add(self, delivery: WorkQueueDelivery) -> bool:
        """Add a delivery; return whether it may begin now. Otherwise `following` returns it later."""
        if not delivery.keeps_slot:
            return True
        waiting = self._waiting.get(delivery.group_hash)
        if waiting is None:
            self._waiting[delivery.group_hash] = deque()
        else:
            waiting.append(delivery)
        return waiting is None

    def withdraw(self, delivery: WorkQueueDelivery) -> list[WorkQueueDelivery]:
        """Remove and return the waiting deliveries of its message group that were popped together with it."""
        epoch, waiting = delivery.messages[0].epoch, self._waiting[delivery.group_hash]
        found = [each for each in waiting if each.messages[0].epoch == epoch]
        self._waiting[delivery.group_hash] = deque(each for each in waiting if each not in found)
        return found

    def withdraw_all(self) -> list[WorkQueueDelivery]:
        found = [each for waiting in self._waiting.values() for each in waiting]
        for waiting in self._waiting.values():
            waiting.clear()
        return found

    def following(self, delivery: WorkQueueDelivery) -> WorkQueueDelivery | None:
        """Return the next delivery of the message group of a finished one; None if none waits."""
        if waiting := self._waiting[delivery.group_hash]:
            return waiting.popleft()
        del self._waiting[delivery.group_hash]
        return None


class WorkQueueSource(Source[WorkQueueDelivery]):
    """Takes messages for as many calls as may begin, and extends them during these; see `Source`."""

    host: ListenerRunner
    #: Brokers count these for work queues.
    missed_messages = 0

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None,
        group: str,
        *,
        client_id: str | None,
        start: Start,
        calls: ListenerCalls,
        options: PushConsumerOptions,
        retried_topics: Callable[[], Collection[str]] | None = None,
    ) -> None:
        """With `retried_topics`, take the retries of these topics only; see `WorkQueueReader`."""
        self._rule = RetryRule(options)
        simple = WorkQueueOptions(
            options.invisible_s, self._rule.max_deliveries or 1, start, credentials=options.credentials
        )
        self._batch_size = calls.batch_size
        self._options = options
        self._reader = WorkQueueReader(
            nameserver, group, client_id, simple, for_listener=True, retried_topics=retried_topics
        )
        self.client = self._reader.client
        self.group, self.client_id = self._reader.group, self._reader.client_id
        self._is_started = False
        self._group_hashes = MessageGroups()

    @property
    def is_ready(self) -> bool:
        return self._reader.group_start.is_decided

    @property
    def assignment(self) -> list[MessageQueue]:
        """Always empty: queues are shared."""
        return []

    @property
    def filtered_messages(self) -> int:
        return self._reader.filtered_messages

    @property
    def topics(self) -> Collection[str]:
        return self._reader.topics

    def check_open(self) -> None:
        self._reader.check_open()

    def subscribe(self, topic: str, wanted: MessageFilter) -> None:
        """Subscribe to a topic, before the start."""
        if self._is_started:
            raise InvalidArgument("subscribe to all topics before the first message is asked for")
        self._reader.subscribe(topic, wanted)

    async def begin(self) -> None:
        self._is_started = True
        await self._reader.begin()

    # ---- taking ------------------------------------------------------------------------------------

    async def take(self, room: int) -> None:
        """Submit messages for about `room` calls: retried ones and message groups may need more."""
        if (rejected_s := self._reader.rejected_s()) > 0:
            await asyncio.sleep(rejected_s)
        in_flight = sum(len(delivery.messages) for delivery in self._deliveries())
        most = min(room * self._batch_size, _MAX_IN_FLIGHT - in_flight)
        if most <= 0:
            await self.host.wait_changed()
            return
        messages = await self._reader.receive_on_loop(self._reader.wanted(most, None, LONG_POLL_S))
        now = time.monotonic()
        for part in divided(messages, self._batch_size):
            delivery = WorkQueueDelivery(self, part, now)
            if self._group_hashes.add(delivery):
                self.host.submit(delivery)
            else:
                self.host.in_flight[delivery] = None

    def _deliveries(self) -> list[WorkQueueDelivery]:
        return [delivery for delivery in self.host.in_flight if isinstance(delivery, WorkQueueDelivery)]

    def tick(self, now: float) -> None:
        for delivery in self._deliveries():
            is_due = now >= delivery.kept_at + _EXTEND_AFTER * self._options.invisible_s
            if is_due and delivery.kept and not delivery.is_extending and not delivery.is_lost:
                self.host.run(self._keep(delivery, now))

    async def _keep(self, delivery: WorkQueueDelivery, now: float) -> None:
        delivery.is_extending = True
        try:
            await self._reader.settler.settle(delivery.kept, self._reader.extended(None))
            delivery.kept_at = now
        except HandleExpired as error:
            if not delivery.is_over:  # otherwise the settle has overtaken it
                self._expired(delivery, error)
        except MinimqError as error:
            log.debug("consumer: cannot extend messages, will try again group=%s error=%s", self.group, error)
        finally:
            delivery.is_extending = False

    def _expired(self, delivery: WorkQueueDelivery, error: HandleExpired) -> None:
        if not delivery.is_lost:
            text = "consumer: messages in flight were redelivered to others group=%s queue=%s error=%s"
            log.warning(text, self.group, delivery.queue, error)
        delivery.is_lost = True

    # ---- outcomes ----------------------------------------------------------------------------------

    def act_on(self, delivery: WorkQueueDelivery, verdict: ListenerResult | None) -> Coroutine[Any, Any, None]:
        assert verdict is not None  # as `may_begin` is always true
        return self._settle_in_order(delivery, verdict) if delivery.keeps_slot else self._settle(delivery, verdict)

    async def _settle_in_order(self, delivery: WorkQueueDelivery, verdict: ListenerResult) -> None:
        """Settle messages of a FIFO topic, then submit the next delivery of their message group.

        If a message failed or was redelivered to others, later ones of its group must wait for it: those popped
        together with it are returned to the broker, which does not count as a delivery for them.
        """
        try:
            if verdict.again:
                first = verdict.again[0]
                left = [*delivery.cut(first + 1), *self._withdraw(self._group_hashes.withdraw(delivery))]
                verdict = verdict._replace(again=[first])
                await self._settle_with_retries(delivery, left, RETURNED)
            await self._settle(delivery, verdict)
            if delivery.is_lost:
                left = self._withdraw(self._group_hashes.withdraw(delivery))
                await self._settle_with_retries(delivery, left, RETURNED)
        finally:
            if (following := self._group_hashes.following(delivery)) is not None:
                self.host.submit(following)

    def _withdraw(self, withdrawn: Sequence[WorkQueueDelivery]) -> list[WorkQueueMessage]:
        for delivery in withdrawn:
            self.host.in_flight.pop(delivery, None)
        return [message for delivery in withdrawn for message in delivery.messages]

    async def _settle(self, delivery: WorkQueueDelivery, verdict: ListenerResult) -> None:
        if not verdict.again:  # the common case
            await self._settle_with_retries(delivery, delivery.messages, DONE)
            return
        again = set(verdict.again)
        succeeded = [message for index, message in enumerate(delivery.messages) if index not in again]
        over: list[WorkQueueMessage] = []
        by_delay: dict[int, list[WorkQueueMessage]] = {}
        for message in (delivery.messages[index] for index in verdict.again):
            if self._rule.is_over(message, is_final=verdict.is_final):
                over.append(message)
            else:
                by_delay.setdefault(self._rule.delay_ms(message, verdict.level), []).append(message)
        delivery.kept = [*succeeded, *over]
        await asyncio.gather(
            self._settle_with_retries(delivery, succeeded, DONE),
            self._bury(delivery, over, verdict.reason),
            *(
                self._settle_with_retries(delivery, messages, Settlement(broker_pb2.POP_OUTCOME_FREE, delay_ms))
                for delay_ms, messages in by_delay.items()
            ),
        )

    async def _bury(self, delivery: WorkQueueDelivery, messages: Sequence[WorkQueueMessage], reason: str) -> None:
        left = messages
        while left and not self._reader.is_closed:
            sent = await self._reader.copies.send([Failed(message, reason) for message in left])
            buried = [message for message, is_sent in zip(left, sent, strict=True) if is_sent]
            await self._settle_with_retries(delivery, buried, DONE)
            left = [message for message, is_sent in zip(left, sent, strict=True) if not is_sent]
            if left:
                await asyncio.sleep(_DEAD_LETTER_RETRY_S)

    async def _settle_with_retries(
        self, delivery: WorkQueueDelivery, messages: Sequence[WorkQueueMessage], how: Settlement
    ) -> None:
        while messages and not self._reader.is_closed:
            try:
                await self._reader.settler.settle(messages, how)
                return
            except HandleExpired as error:
                self._expired(delivery, error)
                return
            except MinimqError as error:
                if not error.retriable and not self._reader.is_closed:
                    text = "consumer: messages are not settled, and will be redelivered group=%s queue=%s error=%s"
                    log.error(text, self.group, delivery.queue, error)
                    delivery.is_lost = True
                    return
            await asyncio.sleep(PAUSE_S)

    # ---- the end -----------------------------------------------------------------------------------

    def stop(self, taking: asyncio.Task[None]) -> None:
        """Cancel `take`; messages that still arrive are returned to the broker."""
        taking.cancel()

    async def give_back(self, withdrawn: Sequence[WorkQueueDelivery]) -> None:
        messages = self._withdraw([*withdrawn, *self._group_hashes.withdraw_all()])
        if messages:
            await self._reader.give_back(messages)

    async def end(self) -> None:
        await self._reader.close(_CLOSE_S)

    def drop(self) -> None:
        self._reader.drop()
