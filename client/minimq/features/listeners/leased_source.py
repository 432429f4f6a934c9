"""The source of a push consumer that leases queues: takes messages by offset, commits up to the first unfinished."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from minimq.connection.client_log import client_logger
from minimq.connection.cluster import Cluster
from minimq.consuming.assignment import OFFLINE_TIMEOUT_S
from minimq.consuming.consumer import Consumer, Found
from minimq.consuming.consumer_options import ConsumerOptions
from minimq.consuming.member_state import Grant
from minimq.consuming.message_filter import MessageFilter
from minimq.consuming.queue_decisions import OffsetReset
from minimq.consuming.read_ahead import ReadyBatches
from minimq.consuming.received import ReceivedMessage
from minimq.consuming.start_position import Start
from minimq.features.broadcasting.broadcasting import BroadcastReader
from minimq.features.listeners.in_flight import InFlight, InFlightLimits, LeasedDelivery, PoisonCandidates
from minimq.features.listeners.listener import ListenerCalls, ListenerResult, described
from minimq.features.listeners.listener_runner import ListenerRunner
from minimq.features.listeners.redelivery import DIED, from_copy, redelivered
from minimq.features.listeners.retries import Failed, RetryRule, RetrySender, result_of
from minimq.features.listeners.source import Source
from minimq.rebalance import AllocationStrategy
from minimq.sending.callback_thread import CallbackThread
from minimq_common.errors import MinimqError, TopicNotFound, TopicUnavailable
from minimq_common.model import MessageQueue
from minimq_common.names import retry_topic

log = client_logger(__name__)

T = TypeVar("T")

_WAIT_S = 0.2
_DRAIN_WAIT_S = 0.05
#: Seconds before a message that could not be sent to the retry topic is redelivered: brokers are usually back by then.
RETRY_SEND_DELAY_S = 5.0
#: How long a suspect waits at first for other messages in flight, and how long nothing else is taken while it runs.
_SUSPECT_WAIT_S = 5.0
#: Index of the retry delay of a message that is passed on to another member.
_PASS_ON_LEVEL = 0


class LeasedSource(Consumer, Source[LeasedDelivery]):
    """Takes the messages of the queues that this member leases; see `Source`."""

    host: ListenerRunner[LeasedDelivery]
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
        options: ConsumerOptions,
    ) -> None:
        super().__init__(nameserver, group, client_id=client_id, strategy=allocation, start=start, options=options)
        self.client = self._client
        self._batch_size, self._threads, self._in_order = calls.batch_size, calls.threads, calls.in_order
        self.retries_hanging = not calls.in_order
        self._callback_faults = BaseException
        self._callbacks = CallbackThread(f"minimq-push-{group}")
        self._retry_topic = retry_topic(group) if options.model == "clustering" else None
        self._rule = RetryRule(options, in_order=calls.in_order)
        self._sender = RetrySender(self._client, group, len(options.retry_delays_s), options.request_timeout_s)
        limits = InFlightLimits(size=options.prefetch_bytes)
        self._in_flight = InFlight(limits, one_at_a_time=calls.in_order)
        #: No further callbacks: closing.
        self._is_over = False
        self._commit_at = 0.0
        #: Until when nothing else is taken while a suspect is in flight; 0 if none is.
        self._alone_until = 0.0
        #: Since when suspects wait for other messages in flight to finish; 0 if none waits.
        self._waits_since = 0.0
        #: Until when all uncommitted messages of a dead member are suspects; later only the likely ones are.
        self._suspect_until = 0.0

    @property
    def topics(self) -> Collection[str]:
        """The subscribed topics; once the group is joined, also the retry topic."""
        return self.filters

    async def begin(self) -> None:
        self._commit_at = time.monotonic() + self._options.commit_interval_s
        await self._join()
        if isinstance(self._member, BroadcastReader) and not self._group_start.is_decided:
            await self._member.wait_begun(OFFLINE_TIMEOUT_S)
        await self._group_start.wait()

    # ---- queues ---------------------------------------------------------------------------------

    async def _join(self) -> None:
        if self._retry_topic is not None:
            self._routes.watch(self._retry_topic)
            try:
                await self._routes.find(self._retry_topic)
            except (TopicNotFound, TopicUnavailable):
                log.debug("consumer: no retry topic yet group=%s", self.group)
            self.filters[self._retry_topic] = MessageFilter()
        await super()._join()

    def begins(self, queue: MessageQueue, lease: Grant) -> None:
        if lease.delivery_count:
            # One at a time, the messages of a commit interval take up to `threads` times as long.
            self._suspect_until = time.monotonic() + self._threads * self._options.commit_interval_s
        self._in_flight.start(queue, lease.offset, PoisonCandidates.of(lease, self._threads * self._batch_size))

    def lost(self, queues: Sequence[MessageQueue]) -> None:
        self._in_flight.drop(queues)

    def delay_ms(self, queue: MessageQueue) -> int:
        return self._rule.delay_ms(queue.queue_id) if queue.topic == self._retry_topic else 0

    async def _hand_over(self) -> bool:
        """Release revoked queues; return whether some still have messages in flight."""
        if not self._fetcher.has_leaving:
            return False
        leaving = self._fetcher.leaving()
        # Messages that wait for a local retry do not delay the release: the next owner gets them.
        busy = {delivery.queue for delivery in self.host.in_flight}
        if offsets := self._in_flight.leave(leaving.keys() - busy):
            await self._revoke_and_release(offsets, commit=True)
        return len(offsets) < len(leaving)

    async def _commit(self) -> None:
        try:
            offsets = self._in_flight.offsets(self._fetcher.positions())
            await self._record(offsets, automatic=True)
        except TopicNotFound as error:  # the group member reports the deletion
            log.debug("consumer: nothing to commit group=%s reason=%s", self.group, error)

    # ---- callbacks ------------------------------------------------------------------------------

    def _apply_resets(self, resets: Sequence[OffsetReset]) -> None:
        for reset in resets:
            if reset.is_back:
                # The log was cut: other messages will come at the offsets in flight.
                again = self._in_flight.start_over(reset.queue, reset.offset)
                if again is not None:
                    self._fetcher.seek(reset.queue, again)

    async def _call_user(self, call: Callable[[], T]) -> T:
        """Run a call with user callbacks, which may block, on a thread."""
        options = self._options
        if not (options.on_assigned or options.on_lost or options.on_revoked or options.on_offset_reset):
            return call()
        return await result_of(self._callbacks, self._client, call)

    def _call_back(self, callback: Callable[[T], object] | None, about: T, queues: Iterable[MessageQueue]) -> bool:
        return not self._is_over and super()._call_back(callback, about, queues)

    def is_callback(self) -> bool:
        return self._callbacks.is_mine()

    # ---- taking ---------------------------------------------------------------------------------

    async def take(self, room: int) -> None:
        """Release revoked queues, commit when due, and submit messages for about `room` calls."""
        draining = await self._hand_over()
        now = time.monotonic()
        if self._options.commit_interval_s and now >= self._commit_at:
            self._commit_at = now + self._options.commit_interval_s
            await self._announce_all()  # applies resets first: a cut queue cannot be committed at the old offset
            await self._commit()
        if await self._are_alone():
            return
        suspects = self._in_flight.suspects(near_only=now > self._suspect_until)
        if suspects and await self._take_alone(suspects):
            return
        if await self._announce_all():  # independent of free listener threads
            return
        if room <= 0 or self._in_flight.is_full:
            await (self.host.wait_for_room(_WAIT_S) if room <= 0 else self.host.wait_changed(_WAIT_S))
            return
        blocked = self._in_flight.blocked
        found = await self._take(self._batch_size, _WAIT_S, blocked | suspects.keys() if suspects else blocked)
        if found is None and draining:
            await self.host.wait_changed(_DRAIN_WAIT_S)
        while found is not None:
            deliveries = self._account(found.handed, found.messages)
            room -= len(deliveries)
            for delivery in deliveries:
                self.host.submit(delivery)
            if room <= 0 or self._in_flight.is_full:
                return
            found = await self._take(self._batch_size, 0.0, blocked | suspects.keys() if suspects else blocked)

    def _account(self, handed: ReadyBatches, messages: Sequence[ReceivedMessage]) -> list[LeasedDelivery]:
        if messages[0].queue.topic != self._retry_topic:
            deliveries = self._in_flight.take([messages])
            handed.given += len(messages)
            return deliveries
        # Retried messages are delivered one by one, so that a bad message becomes a dead letter alone.
        deliveries = self._in_flight.take([[from_copy(message)] for message in messages])
        handed.given += len(messages)
        others = self._member.topics_of_others if self._member is not None else ()
        for delivery in deliveries:
            if (topic := delivery.messages[0].topic) in others:
                # Back to the retry topic, for a member that knows the topic; does not count as a delivery.
                log.info("consumer: passed on to another member group=%s topic=%s", self.group, topic)
                delivery.messages = [redelivered(delivery.messages[0], -1)]
                delivery.verdict = ListenerResult([0], _PASS_ON_LEVEL)
        return deliveries

    async def _are_alone(self) -> bool:
        """Return whether a suspect in flight still forbids other takes; commit once all are finished."""
        if self._alone_until:
            if await self.host.wait_idle(_WAIT_S):
                await self._commit()
            elif time.monotonic() < self._alone_until:
                return True
            self._alone_until = 0.0
        return False

    async def _take_alone(self, suspects: Mapping[MessageQueue, PoisonCandidates]) -> bool:
        """Deliver suspects while nothing else is in flight; return False if other messages may be taken now."""
        idle = self._idle(suspects)
        if not self._fetcher.has_any(idle):
            self._waits_since = 0.0
            return False
        now = time.monotonic()
        self._waits_since = self._waits_since or now
        # Long calls must not stop all queues: taking pauses and resumes in turns, each twice as long as the one before.
        pauses = int((now - self._waits_since) / _SUSPECT_WAIT_S).bit_length() % 2 == 0
        if not await self.host.wait_idle(_WAIT_S if pauses else 0.0):
            return pauses
        self._waits_since = 0.0
        suspects = self._in_flight.suspects(near_only=now > self._suspect_until)
        idle = self._idle(suspects)
        found = await self._take(self._batch_size, 0.0, set(self._fetcher.queues).difference(idle))
        if found is None:
            return False
        await self._deliver_alone(found, suspects[found.handed.queue])
        return True

    def _idle(self, suspects: Mapping[MessageQueue, PoisonCandidates]) -> list[MessageQueue]:
        in_flight = self._in_flight
        return [queue for queue in suspects if queue not in in_flight.blocked and not in_flight.of_queue(queue)[0]]

    async def _deliver_alone(self, found: Found, suspects: PoisonCandidates) -> None:
        messages = found.messages
        queue, first = found.handed.queue, messages[0].queue_offset
        if first < suspects.near or queue.topic == self._retry_topic:
            messages = messages[:1]
        deaths = suspects.delivery_counts_of(first)
        is_found = suspects.is_found(first)  # else perhaps no listener had it
        is_over = is_found and self._rule.is_over(self._original(messages[0]), deaths=deaths)
        if deaths and not is_over:
            end = messages[-1].queue_offset + 1
            await self._fetcher.commits.record_delivery(queue, first, deaths + 1, end)
            reader = self._fetcher.reader(queue)
            if reader is None or not reader.is_current(found.handed):
                return  # the queue was lost or revoked meanwhile
        for delivery in self._account(found.handed, messages):
            self._alone_until = time.monotonic() + _SUSPECT_WAIT_S
            if is_over:
                delivery.verdict = ListenerResult(range(len(delivery.messages)), reason=DIED, is_final=True)
                deaths -= 1  # the dead letter adds one
            if is_found:
                delivery.messages = [redelivered(message, deaths) for message in delivery.messages]
            self.host.submit(delivery)

    def _original(self, message: ReceivedMessage) -> ReceivedMessage:
        return from_copy(message) if message.queue.topic == self._retry_topic else message

    # ---- outcomes -------------------------------------------------------------------------------

    def may_begin(self, delivery: LeasedDelivery) -> bool:
        return self._in_flight.is_current(delivery) and self._fetcher.may_use(delivery.queue)

    def is_current(self, delivery: LeasedDelivery) -> bool:
        return self._in_flight.is_current(delivery)

    def act_on(self, delivery: LeasedDelivery, verdict: ListenerResult | None) -> Coroutine[Any, Any, None] | None:
        """Finish messages, or schedule their retry."""
        if not self._in_flight.is_current(delivery):
            self._fetcher.wake()
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
        if self._retry_topic is not None and (is_over or not self._in_order):
            level = None if is_over else self._rule.level(messages[0], verdict.level)
            sent = await self._sender.send([Failed(message, verdict.reason, level) for message in messages])
            messages = [message for message, is_sent in zip(messages, sent, strict=True) if not is_sent]
        elif is_over:
            count, queue, text = messages[0].delivery_count, delivery.queue, described(messages)
            log.error(
                "consumer: skipped after %s deliveries group=%s queue=%s messages=%s", count, self.group, queue, text
            )
            messages = []
        if not self._in_flight.is_current(delivery):
            self._fetcher.wake()
        elif messages:
            self._retry_locally(delivery, messages)
        else:
            self._finish(delivery)

    def _retry_locally(self, delivery: LeasedDelivery, messages: Sequence[ReceivedMessage]) -> None:
        again = [redelivered(message) for message in messages] if delivery.verdict is None else messages
        for one in self._in_flight.split(delivery, again):
            one.verdict = delivery.verdict
            self.host.put_off(one, self._options.orderly_retry_delay_s if self._in_order else RETRY_SEND_DELAY_S)
        self._fetcher.wake()

    def _finish(self, delivery: LeasedDelivery) -> None:
        following = self._in_flight.finish(delivery)
        if following is not None and not self.host.is_stopping:
            self.host.submit(following)
        self._fetcher.wake()

    # ---- the end --------------------------------------------------------------------------------

    def stop(self, taking: asyncio.Task[None]) -> None:
        self._closed = True
        self._fetcher.wake()

    async def end(self, timeout_s: float) -> None:
        """Call `on_revoked`, commit finished messages, and leave the group."""
        try:
            async with asyncio.timeout(max(timeout_s, _WAIT_S)):
                await self._revoke_all()
        except TimeoutError:
            log.warning("consumer: closes while a callback runs group=%s", self.group)
            self._is_over = True  # a callback hangs: begin no other
        try:
            await self._commit()
        except MinimqError as error:
            log.warning("consumer: last commit failed group=%s error=%s", self.group, error)
        if self._member is not None:
            await self._member.leave()

    def drop(self) -> None:
        self._closed = self._is_over = True
        self._sender.close()
        self._callbacks.close(0.0)
        self._shut_down()
