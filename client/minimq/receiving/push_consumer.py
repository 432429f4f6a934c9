"""The push consumer: calls a listener with messages, on threads of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Collection, Sequence
from functools import partial
from types import TracebackType
from typing import Self, Unpack

from minimq.connection.cluster import Cluster
from minimq.filtering.message_filter import MessageFilter
from minimq.filtering.tag_filter import TagExpression
from minimq.options import with_changes
from minimq.rebalance import AllocationStrategy
from minimq.receiving.consumer import Consumer, check_text
from minimq.receiving.consumer_options import (
    ConsumerChanges,
    ConsumerOptions,
    check_count,
    check_timeout,
)
from minimq.receiving.delivery_outcomes import DeliveryOutcomes
from minimq.receiving.in_flight import Delivery, InFlightDeliveries
from minimq.receiving.listener import AsyncListener, AsyncListenerAdapter, Listener, ListenerAdapter, Verdict
from minimq.receiving.listener_tasks import ListenerTasks
from minimq.receiving.listener_threads import ListenerThreads
from minimq.receiving.offset_reset import OffsetReset
from minimq.receiving.process_queue import InFlightLimits
from minimq.receiving.received import ReceivedMessage
from minimq.receiving.redelivery import delay_ms, from_copy
from minimq.receiving.waits import complete
from minimq.transport.dropped import WhenDropped, close_all
from minimq.transport.start_position import Start
from minimq_common.errors import Closed, InternalError, InvalidArgument, MiniMQError, TopicNotFound, TopicUnavailable
from minimq_common.model import MessageQueue

log = logging.getLogger(__name__)

_WAIT_S = 0.2
_DRAIN_WAIT_S = 0.05
#: A listener's threads have so many calls each that run or wait for them.
_CALLS_PER_THREAD = 2


class _ListenerGone(Exception):
    """The listener cannot be called any more. That is no failure of the messages, so they are not tried again."""


class PushConsumer(Consumer):
    """Calls a listener with the messages of the queues that its group gives it.

    The listener answers `ConsumeResult.SUCCESS`, or `RETRY_LATER` when the messages shall be tried again, or
    `RetryLater(indexes=[3, 5])` when that is true only of some; an exception counts as `RETRY_LATER`. The group's
    offset never passes a message that is not finished, so a message is never lost, but may come twice after a fault.
    Messages that are tried again come one by one, so that one that fails always does not take others with it.

    A *concurrent* consumer calls the listener by several threads at once, also with messages of one queue. Messages
    that are to be tried again are sent to the topic `%RETRY%group`, where they wait longer each time, and count as
    finished here; after `max_tries` of that they go to `%DLQ%group`. Both topics are made when they are first needed.

    An *orderly* consumer makes one call at a time for each queue, in its order. A queue whose messages are to be tried
    again stands still for `suspend_s`, then the same messages are given again, one after the other; no other overtakes
    them.

    A call that lasts longer than `consume_timeout_s` is logged. Its thread is lost until the listener returns; a
    concurrent consumer has the messages tried again meanwhile, and does not look at what the listener answers later.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", a sequence of addresses, or a `Cluster` that others use as well.
        group: the consumer group.
        allocation: how the group divides queues, by name or as an object.
        start: where a new group begins: "earliest", "latest" or a time.
        threads: how many calls of the listener may run at once.
        batch_size: most messages in one call.
        orderly: whether the order of a queue is kept.
        client_id: name among all clients; made up unless given.
        options: how to read; single options may be given by name instead.

    Raises:
        InvalidArgument: a name, an address or an option is wrong.
    """

    def __init__(  # noqa: PLR0913 - by name
        self,
        nameserver: str | Sequence[str] | Cluster | None = None,
        *,
        group: str,
        allocation: str | AllocationStrategy = "averagely",
        start: Start = "earliest",
        threads: int = 8,
        batch_size: int = 32,
        orderly: bool = False,
        client_id: str | None = None,
        options: ConsumerOptions | None = None,
        **changes: Unpack[ConsumerChanges],
    ) -> None:
        check_text("group", group)  # there is no push consumer without one
        super().__init__(
            nameserver,
            group,
            client_id=client_id,
            strategy=allocation,
            start=start,
            options=with_changes(options or ConsumerOptions(), changes, PushConsumer),
        )
        check_count("threads", threads)
        check_count("batch_size", batch_size)
        chosen = self._options
        self._batch_size = batch_size
        self._orderly = orderly
        self._most_at_once = threads
        self._most_calls = _CALLS_PER_THREAD * threads
        limits = InFlightLimits(chosen.max_in_hand_messages, chosen.max_in_hand_bytes, chosen.max_in_hand_span)
        self._in_flight = InFlightDeliveries(limits, self._fetcher.hand_out.wake, one_at_a_time=orderly)
        self._outcomes = DeliveryOutcomes(
            self._client, self._in_flight, self._submit, self._topics_of_others, group, chosen, orderly=orderly
        )
        self._retry_topic = self._outcomes.retry_topic
        self._callback_faults = BaseException  # they run on the dispatcher
        #: Those of the listener, once it is started.
        self._calls: ListenerThreads | ListenerTasks | None = None
        self._stop = threading.Event()
        #: The dispatcher takes no more; what it waits for then has this end, on the monotonic clock.
        self._ending = threading.Event()
        self._ends_at = 0.0
        #: When the dispatcher looks for calls that hang.
        self._look_at = 0.0
        self._broken: BaseException | None = None
        #: Once it runs, its threads hold it, and it runs on: so it is one that was never started.
        self._when_dropped = WhenDropped(self, partial(close_all, self._outcomes.sender, self._client))
        self._dispatcher = threading.Thread(target=self._dispatch, name=f"minimq-push-{group}", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.close()
        except MiniMQError:
            if error is None:
                raise
            log.warning("consumer: had stopped reading before group=%s", self.group)  # not the first failure

    def subscribe(self, topic: str, expression: TagExpression = "*", *, where: str | None = None) -> None:
        """Read a topic; before `start`. Raises `InvalidArgument`.

        Args:
            topic: its name; call again for further topics.
            expression: which tags: "*", or for example "paid || refunded".
            where: which properties, for example "region = 'EU'"; see docs/filtering.md.
        """
        self._subscribe(topic, expression, where)

    def start(self, listener: Listener) -> None:
        """Join the group and begin to call the listener.

        A name server, or brokers, that are not there yet are waited for, for up to `start_timeout_s`.

        Args:
            listener: gets messages of one queue and one topic, at most `batch_size`.

        Raises:
            InvalidArgument: nothing is subscribed to, it was started before, or the listener is no plain function.
            TopicNotFound, TopicUnavailable, Unavailable: a topic is not found.
            Closed: the consumer was closed meanwhile.
        """
        asked = ListenerAdapter(listener, self.group, in_order=self._orderly)
        name = f"minimq-listener-{self.group}"
        self._start_with(ListenerThreads(self._most_at_once, partial(self._deliver, asked), name))

    def _start_on(self, loop: asyncio.AbstractEventLoop, listener: AsyncListener) -> None:
        """Do as `start`, and await the listener on an event loop that runs in another thread."""
        asked = AsyncListenerAdapter(listener, self.group, in_order=self._orderly)
        self._start_with(ListenerTasks(loop, self._most_at_once, partial(self._deliver_async, asked), self._cut_off))

    def _start_with(self, calls: ListenerThreads | ListenerTasks) -> None:
        self._process.check()
        if not self._filters or self._calls is not None:
            raise InvalidArgument("subscribe to at least one topic, and start once")
        self._routes.with_retries(
            lambda timeout_s: complete(partial(self._look_up_topics, timeout_s)), self._options.start_timeout_s
        )
        complete(self._join)
        self._calls = calls
        self._outcomes.start()
        self._dispatcher.start()

    def _check_may_close(self) -> None:
        """Raise `InvalidArgument` in a callback and in the listener, for whose end `close` would have to wait."""
        is_listening = self._calls is not None and self._calls.is_mine()
        if threading.current_thread() is self._dispatcher or is_listening:
            raise InvalidArgument("close waits for the listener and the callbacks: call it from another thread")

    def close(self, timeout: float = 30.0) -> None:
        """Take no more, let running calls of the listener end, commit, leave the group. Idempotent.

        Args:
            timeout: seconds to wait for the calls, and for messages that are just being sent to the retry topic; what
                is not finished then is given to another member. `on_revoked` may take as long after that.

        Raises:
            InvalidArgument: it is called by a callback or by the listener, for whose end it would have to wait, or the
                timeout is no number.
            InternalError: its dispatcher had ended before, and so had all reading; the consumer is closed all the same.
        """
        check_timeout(timeout)
        if self._closed or self._process.is_forked:
            return
        self._check_may_close()
        self._closed = True
        self._when_dropped.closed()
        self._ends_at = time.monotonic() + timeout
        self._stop.set()
        self._fetcher.hand_out.wake()
        if self._calls is not None:
            if self._ending.wait(timeout):
                self._dispatcher.join(max(self._ends_at - time.monotonic(), 0.0) + timeout)
            if self._dispatcher.is_alive():
                log.warning("consumer: closes while a callback runs group=%s", self.group)
                self._all_revoked = True  # it hangs, and no other shall
        if self._calls is not None:
            self._calls.close()
        try:
            self._commit()
        except MiniMQError as error:
            log.warning("consumer: last commit failed group=%s error=%s", self.group, error)
        if self._calls is not None:
            self._outcomes.close()
        self._shut_down()
        if self._broken is not None:
            raise InternalError(f"the consumer had stopped reading before: {self._broken!r}; see the log")

    # ---- queues ---------------------------------------------------------------------------------

    async def _join(self) -> None:
        if self._retry_topic is not None:
            self._routes.watch(self._retry_topic)
            try:
                await self._waits.result(partial(self._routes.find, self._retry_topic))
            except (TopicNotFound, TopicUnavailable):
                log.debug("consumer: no message was tried again yet group=%s", self.group)
            self._filters[self._retry_topic] = MessageFilter()
        await super()._join()

    def _topics_of_others(self) -> Collection[str]:
        return self._member.topics_of_others if self._member is not None else ()

    def _begins(self, queue: MessageQueue, offset: int) -> None:
        self._in_flight.start(queue, offset)
        self._fetcher.hand_out.wake()  # the dispatcher has to know of the queue before it gets the first message

    def _lost(self, queues: Sequence[MessageQueue]) -> None:
        self._in_flight.drop(queues)

    def _delay_ms(self, queue: MessageQueue) -> int:
        return delay_ms(self._options.retry_delays_s, queue.queue_id) if queue.topic == self._retry_topic else 0

    def _offset_reset(self, reset: OffsetReset) -> None:
        if reset.is_back:
            # Other messages will come under offsets that are in hand.
            again = self._in_flight.start_over(reset.queue, reset.offset)
            if again is not None:
                self._fetcher.seek(reset.queue, again)
        super()._offset_reset(reset)

    # ---- dispatching ----------------------------------------------------------------------------

    def _dispatch(self) -> None:
        try:
            self._dispatch_until_stopped()
            self._ending.set()
            if not self._in_flight.wait_until_below(1, max(self._ends_at - time.monotonic(), 0.0)):
                log.warning(
                    "consumer: closes while %s calls of the listener run group=%s", self._in_flight.active, self.group
                )
            self._revoke_all()
        except BaseException as error:
            # Without this thread nothing is read: others shall have the queues.
            log.critical("consumer: reads no more, and leaves the group=%s", self.group, exc_info=True)
            self._broken = error
            self._all_revoked = True
            self._ending.set()
            if self._member is not None:
                self._member.close()

    def _dispatch_until_stopped(self) -> None:
        commit_at = time.monotonic() + self._options.commit_interval_s
        logged: MiniMQError | None = None
        while not self._stop.is_set():
            if self._calls is not None and self._calls.has_ended:
                raise _ListenerGone("the event loop of the listener has ended: close the consumer before its loop ends")
            try:
                draining = self._hand_over()
                now = time.monotonic()
                if self._options.commit_interval_s and now >= commit_at:
                    commit_at = now + self._options.commit_interval_s
                    self._fetcher.announce()  # a queue that has shrunk cannot be committed as far as it was
                    self._commit()
                self._look_after_calls(now)
                self._take(draining=draining)
            except Closed:
                return
            except MiniMQError as error:
                if error is not logged:  # a refusal is the same one until it is over
                    log.error("consumer: group=%s error=%s", self.group, error)
                logged = error
                self._stop.wait(_WAIT_S)
            except Exception:  # the thread serves all queues: it must outlive a fault with one
                log.exception("consumer: failed, will try again group=%s", self.group)
                self._stop.wait(_WAIT_S)

    def _take(self, *, draining: bool) -> None:
        """Take messages and give them to the threads; wait for a moment when there is nothing to do."""
        assert self._calls is not None  # the dispatcher begins after it
        if self._in_flight.active >= self._most_calls:
            self._calls.flush()
            self._fetcher.announce()  # which does not have to wait for a listener
            self._in_flight.wait_until_below(self._most_calls // 2 + 1, _WAIT_S)
            return
        blocked = self._in_flight.blocked()
        wait_s = min(max(self._in_flight.next_due() - time.monotonic(), 0.0), _WAIT_S)
        messages = self._fetcher.hand_out.take(self._batch_size, 0.0, but=blocked)
        if not messages:
            self._calls.flush()
            messages = self._fetcher.hand_out.take(self._batch_size, wait_s, but=blocked)
        if messages:
            for delivery in self._deliveries_of(messages):
                self._calls.add(delivery)
        elif draining:
            self._in_flight.wait(_DRAIN_WAIT_S)

    def _deliveries_of(self, messages: list[ReceivedMessage]) -> list[Delivery]:
        queue = messages[0].queue
        try:
            parts = self._parts(messages)
        except Exception:
            self._fetcher.seek(queue, messages[0].queue_offset)  # none was looked at, so none may count as passed over
            raise
        return self._in_flight.take(messages, parts, lambda offset: self._fetcher.seek(queue, offset))

    def _parts(self, messages: list[ReceivedMessage]) -> list[list[ReceivedMessage]]:
        """Return the messages that are wanted, those of one call in each part."""
        wanted = self._wanted(messages)
        if messages[0].queue.topic != self._retry_topic:
            return [wanted] if wanted else []
        # One by one: what fails again shall become a dead letter, but not what was given together with it.
        return [[from_copy(message)] for message in wanted]

    def _look_after_calls(self, now: float) -> None:
        for delivery in self._in_flight.due(now):
            self._submit(delivery)
        if now < self._look_at:  # it takes time in proportion to the calls
            return
        self._look_at = now + _WAIT_S
        if self._calls is not None:
            self._calls.look(now)
        for delivery in self._in_flight.hanging(now, self._options.consume_timeout_s, give_up=not self._orderly):
            log.error(
                "consumer: the listener has not returned for %s s group=%s queue=%s offset=%s messages=%s",
                self._options.consume_timeout_s,
                self.group,
                delivery.queue,
                delivery.messages[0].queue_offset,
                len(delivery.messages),
            )
            if not self._orderly:
                self._outcomes.try_again(delivery, level=None)

    def _hand_over(self) -> bool:
        """Give back queues whose calls are over. Returns whether others still wait for theirs."""
        leaving = self._fetcher.leaving()
        if not leaving:
            return False
        offsets = self._in_flight.leave(leaving)
        if offsets:
            complete(partial(self._hand_back, offsets, commit=True))
        return len(offsets) < len(leaving)

    def _commit(self) -> None:
        try:
            offsets = self._in_flight.offsets(self._fetcher.positions)
            progress = self._fetcher.commits.progress(offsets)
            self._client.wait(lambda: self._fetcher.commits.record(progress, automatic=True))
        except TopicNotFound as error:  # it was deleted, which the member of the group says
            log.debug("consumer: nothing to commit group=%s reason=%s", self.group, error)

    # ---- calls ----------------------------------------------------------------------------------

    def _submit(self, delivery: Delivery) -> None:
        if self._calls is not None:
            self._calls.submit(delivery)

    def _deliver(self, listener: ListenerAdapter, delivery: Delivery) -> None:
        if self._outcomes.begin(delivery):
            self._outcomes.answered(delivery, listener.ask(delivery.queue, delivery.messages))

    async def _deliver_async(self, listener: AsyncListenerAdapter, delivery: Delivery) -> None:
        if self._outcomes.begin(delivery):
            try:
                verdict = await listener.ask(delivery.queue, delivery.messages)
            except (SystemExit, KeyboardInterrupt) as error:  # they end the loop: `close` must not wait for this call
                self._outcomes.answered(delivery, listener.failed(error, delivery.queue, delivery.messages))
                raise
            self._outcomes.answered(delivery, verdict)

    def _cut_off(self, delivery: Delivery) -> None:
        """The call of a listener was cancelled: that counts as a failure."""
        log.error("consumer: the listener was cancelled, will try again group=%s queue=%s", self.group, delivery.queue)
        self._outcomes.answered(delivery, Verdict(range(len(delivery.messages))))
