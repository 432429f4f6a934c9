"""The source of a push consumer that leases queues: takes messages by offset, commits up to the first unfinished."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import fields, replace
from typing import Any

from minimq.connection.cluster import Cluster
from minimq.connection.loop_thread import off_loop
from minimq.consuming.assignment import OFFLINE_TIMEOUT_S
from minimq.consuming.commits import commit_request
from minimq.consuming.consumer import Consumer, MakeAssigner
from minimq.consuming.consumer_options import ConsumerOptions, SharedOptions
from minimq.consuming.queue_decisions import Commit, OffsetReset
from minimq.consuming.queue_reader import QueueReader
from minimq.consuming.received import ReceivedMessage
from minimq.consuming.start_position import Start
from minimq.features.listeners.in_flight import InFlight, InFlightLimits, LeasedDelivery
from minimq.features.listeners.listener import ListenerCalls, ListenerResult, described
from minimq.features.listeners.listener_options import PushConsumerOptions
from minimq.features.listeners.listener_runner import ListenerRunner
from minimq.features.listeners.retries import RetryRule, repeated
from minimq.features.listeners.source import Source
from minimq.features.listeners.work_queue_source import WorkQueueSource
from minimq.features.work_queues.copy_sender import CopySender, Failed
from minimq.rebalance import AllocationStrategy
from minimq.sending.atomic_append import Consumed
from minimq_common.errors import Fenced, MinimqError, TopicNotFound
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

_WAIT_S = 0.2
_DRAIN_WAIT_S = 0.05
#: Seconds before a message that could not be sent to the retry topic is redelivered: brokers are usually back by then.
RETRY_SEND_DELAY_S = 5.0


class _Progress:
    """The progress of a queue whose first unfinished messages have failed; see `Consumed`."""

    def __init__(self, source: LeasedSource, reader: QueueReader, delivery: LeasedDelivery, end: int) -> None:
        self.queue: MessageQueue | None = delivery.queue
        self._source, self._reader, self._delivery, self._end = source, reader, delivery, end
        self._begin = delivery.messages[0].queue_offset
        self._commit: Commit | None = None

    def progress(self) -> broker_pb2.AtomicProgress:
        """Return the commit under the current lease. Raises `Fenced` if the queue was lost."""
        reader = self._reader
        if self._source.is_current(self._delivery):
            self._commit = reader.commit_due(self._end, reader.term_taken, time.monotonic(), automatic=False)
        else:
            self._commit = None
        if self._commit is None:
            raise Fenced(f"queue {self.queue} no longer belongs to this consumer")
        request = commit_request(self._source.group, self._source.client_id, [self._commit])
        return broker_pb2.AtomicProgress(commit=request, begins=[self._begin])

    def answered(self, error: MinimqError | None) -> None:
        if self._commit is not None:
            self._reader.commit_answered(self._commit, time.monotonic(), error)

    def may_pass(self) -> bool:
        return self._commit is not None and self._reader.may_be_recorded(self._commit.epoch)


class LeasedSource(Consumer, Source[LeasedDelivery]):
    """Takes the messages of the queues that this member leases; see `Source`."""

    host: ListenerRunner
    calls_per_thread = 2

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None,
        group: str,
        *,
        client_id: str | None,
        allocation: str | AllocationStrategy,
        start: Start,
        calls: ListenerCalls,
        options: PushConsumerOptions,
        broadcasting: MakeAssigner | None,
    ) -> None:
        shared = {field.name: getattr(options, field.name) for field in fields(SharedOptions)}
        super().__init__(
            nameserver,
            group,
            client_id=client_id,
            strategy=allocation,
            start=start,
            options=ConsumerOptions(**shared),
            broadcasting=broadcasting,
        )
        self._push_options = options
        self._calls, self._batch_size, self._in_order = calls, calls.batch_size, calls.in_order
        self.retries_hanging = not calls.in_order
        self._sends_copies = options.broadcast_dir is None
        self._rule = RetryRule(options, in_order=calls.in_order)
        self._sender = CopySender(self.client, group, self.options.request_timeout_s)
        limits = InFlightLimits(size=options.prefetch_bytes)
        self._in_flight = InFlight(self, limits, one_at_a_time=calls.in_order)
        self.fetcher.on_begin = lambda queue, lease: self._in_flight.start(queue, lease.offset)
        self.fetcher.on_lost = self._in_flight.drop
        self._commit_at = 0.0

    def retries(self) -> WorkQueueSource:
        """Return the source of the failed messages of the group, which wait in its retry topic."""
        return WorkQueueSource(
            self.client.cluster,
            self.group,
            client_id=self.client_id,
            start="earliest",
            calls=self._calls,
            options=replace(self._push_options, credentials=None),  # those of the cluster
            retried_topics=lambda: self.topics,
        )

    @property
    def topics(self) -> Collection[str]:
        return self.filters

    async def begin(self) -> None:
        self._commit_at = time.monotonic() + self.options.commit_interval_s
        await self.join()
        assert self.assigner is not None  # by `join`
        await self.assigner.wait_begun(OFFLINE_TIMEOUT_S)

    # ---- queues ---------------------------------------------------------------------------------

    async def _hand_over(self) -> bool:
        """Release revoked queues; return whether some still have messages in flight."""
        leaving = self.fetcher.leaving()
        if not leaving:
            return False
        # Messages that wait for a local retry do not delay the release: the next owner gets them.
        busy = {delivery.queue for delivery in self.host.in_flight}
        if offsets := self._in_flight.leave(leaving.keys() - busy):
            await self.release_queues(offsets, commit=True)
        return len(offsets) < len(leaving)

    async def _commit(self) -> None:
        self._apply_resets()  # a cut queue cannot be committed at the old offset
        try:
            offsets = self._in_flight.offsets(self.fetcher.positions())
            await self.record(offsets, automatic=True)
        except TopicNotFound as error:  # the group member reports the deletion
            log.debug("consumer: nothing to commit group=%s reason=%s", self.group, error)

    def _apply_resets(self) -> None:
        """Reread what a cut log has lost: other messages will come at the offsets in flight."""
        while self.fetcher.changes:
            change = self.fetcher.changes.popleft()
            if isinstance(change, OffsetReset) and change.is_back:
                again = self._in_flight.start_over(change.queue, change.offset)
                if again is not None:
                    self.fetcher.seek(change.queue, again)

    # ---- taking ---------------------------------------------------------------------------------

    async def take(self, room: int) -> None:
        """Release revoked queues, commit when due, and submit messages for about `room` calls."""
        self._apply_resets()
        draining = await self._hand_over()
        now = time.monotonic()
        if self.options.commit_interval_s and now >= self._commit_at:
            self._commit_at = now + self.options.commit_interval_s
            await self._commit()
        if room <= 0 or self._in_flight.is_full:
            await (self.host.wait_for_room(_WAIT_S) if room <= 0 else self.host.wait_changed(_WAIT_S))
            return
        blocked = self._in_flight.blocked
        messages = await self._take(_WAIT_S, blocked)
        if not messages and draining:
            await self.host.wait_changed(_DRAIN_WAIT_S)
        while messages:
            self.host.submit(self._in_flight.take(messages))
            room -= 1
            if room <= 0 or self._in_flight.is_full:
                return
            messages = await self._take(0.0, blocked)

    async def _take(self, timeout_s: float, but: Collection[MessageQueue]) -> Sequence[ReceivedMessage]:
        """Return messages for one call; none if none arrived in time, or there is other work to do first."""
        self.fetcher.raise_error()
        if not self.fetcher.used_up and (messages := await self._take_ready(but)):
            return messages
        await self.fetcher.wait(self._batch_size, but, timeout_s)
        self.fetcher.raise_error()
        messages = await self._take_ready(but)
        if not messages:
            self.fetcher.raise_too_many_streams()
        return messages

    async def _take_ready(self, but: Collection[MessageQueue]) -> Sequence[ReceivedMessage]:
        fetcher = self.fetcher
        while not fetcher.needs_attention and (taken := fetcher.next_ready(but)) is not None:
            if taken.count < 0:
                await off_loop(self.open, taken)
                continue  # it may have been removed meanwhile
            if messages := taken.messages[taken.done : taken.done + self._batch_size]:
                taken.returned += len(messages)
                fetcher.end_turn()
                fetcher.finish(taken)
                return messages
        return ()

    # ---- outcomes -------------------------------------------------------------------------------

    def may_begin(self, delivery: LeasedDelivery) -> bool:
        return self._in_flight.is_current(delivery) and self.fetcher.may_use(delivery.queue)

    def is_current(self, delivery: LeasedDelivery) -> bool:
        return self._in_flight.is_current(delivery)

    def act_on(self, delivery: LeasedDelivery, verdict: ListenerResult | None) -> Coroutine[Any, Any, None] | None:
        """Finish messages, or schedule their retry."""
        if not self._in_flight.is_current(delivery):
            self.fetcher.wake()
            return None
        if verdict is None:
            self.host.put_off(delivery, _WAIT_S)
            return None
        if verdict.again:
            return self._try_again(delivery, verdict)
        self._finish(delivery)
        return None

    async def _try_again(self, delivery: LeasedDelivery, verdict: ListenerResult) -> None:
        if len(verdict.again) < len(delivery.messages):
            self._in_flight.narrow(delivery, [delivery.messages[index] for index in verdict.again])
        messages = delivery.messages  # all with the same delivery count
        is_over = self._rule.is_over(messages[0], is_final=verdict.is_final)
        if self._sends_copies and (is_over or not self._in_order):
            delay_ms = None if is_over else self._rule.delay_ms(messages[0], verdict.level)
            failed = [Failed(message, verdict.reason, delay_ms) for message in messages]
            sent = await self._sender.send(failed, self._progress_after(delivery))
            messages = [message for message, is_sent in zip(messages, sent, strict=True) if not is_sent]
        elif is_over:
            count, queue, text = messages[0].delivery_count, delivery.queue, described(messages)
            log.error(
                "consumer: skipped after %s deliveries group=%s queue=%s messages=%s", count, self.group, queue, text
            )
            messages = []
        if not self._in_flight.is_current(delivery):
            self.fetcher.wake()
        elif messages:
            self._retry_locally(delivery, messages)
        else:
            self._finish(delivery)

    def _progress_after(self, delivery: LeasedDelivery) -> Consumed | None:
        end = self._in_flight.commit_position_after(delivery)
        reader = self.fetcher.reader(delivery.queue)
        return None if end is None or reader is None else _Progress(self, reader, delivery, end)

    def _retry_locally(self, delivery: LeasedDelivery, messages: Sequence[ReceivedMessage]) -> None:
        delay_s = self._rule.delay_ms(messages[0], None) / 1000 if self._in_order else RETRY_SEND_DELAY_S
        for one in self._in_flight.split(delivery, [repeated(message) for message in messages]):
            self.host.put_off(one, delay_s)
        self.fetcher.wake()

    def _finish(self, delivery: LeasedDelivery) -> None:
        following = self._in_flight.finish(delivery)
        if following is not None and not self.host.is_stopping:
            self.host.submit(following)
        self.fetcher.wake()

    # ---- the end --------------------------------------------------------------------------------

    def stop(self, taking: asyncio.Task[None]) -> None:
        self.is_closed = True
        self.fetcher.wake()

    async def end(self) -> None:
        try:
            await self._commit()
        except MinimqError as error:
            log.warning("consumer: last commit failed group=%s error=%s", self.group, error)
        if self.assigner is not None:
            await self.assigner.leave()

    def drop(self) -> None:
        self.is_closed = True
        self._sender.close()
        self.shut_down()
