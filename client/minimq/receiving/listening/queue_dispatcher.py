"""The work of a push consumer that has queues to itself: it takes their messages, and commits what is finished."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from minimq.connection.cluster import Cluster
from minimq.filtering.message_filter import MessageFilter
from minimq.filtering.tag_filter import TagExpression
from minimq.rebalance import AllocationStrategy
from minimq.receiving.consumer import Consumer, Found
from minimq.receiving.consumer_options import ConsumerOptions
from minimq.receiving.listening.delivery_outcomes import DeliveryOutcomes
from minimq.receiving.listening.in_flight import Delivery, InFlightDeliveries, InFlightLimits, Suspects
from minimq.receiving.listening.listener import (
    QUIET_CLOSE_S,
    WAITS_FOR_CALLS,
    WAITS_NO_LONGER,
    AsyncListenerAdapter,
    ListenerAdapter,
    ListenerCalls,
    Verdict,
    check_may_start,
)
from minimq.receiving.listening.listener_calls import ListenerTasks, ListenerThreads
from minimq.receiving.listening.redelivery import CANCELLED, DIED, TIMED_OUT, delay_ms, from_copy, tried_again
from minimq.receiving.member_state import Grant
from minimq.receiving.queue_decisions import OffsetReset
from minimq.receiving.received import ReceivedMessage
from minimq.receiving.waits import complete
from minimq.sending.requests.replier import CLOSE_S, MOST_BODY_BYTES, Replier
from minimq.transport.client_log import client_logger
from minimq.transport.closing import Closing
from minimq.transport.dropped import close_all
from minimq.transport.home_process import check_no_signal
from minimq.transport.start_position import Start
from minimq_common.errors import Closed, InternalError, InvalidArgument, MiniMQError, TopicNotFound, TopicUnavailable
from minimq_common.model import MessageQueue
from minimq_common.words import count_of

log = client_logger(__name__)

_WAIT_S = 0.2
_DRAIN_WAIT_S = 0.05
#: Suspects wait so long, in seconds, until nothing else is in hand, and so long nothing else is taken while one runs.
_ALONE_S = 5.0
#: A listener's threads have so many calls each that run or wait for them.
_CALLS_PER_THREAD = 2


class _ListenerGone(Exception):
    """The listener cannot be called any more. That is no failure of the messages, so they are not tried again."""


class QueueDispatcher(Consumer):
    """Gives the messages of the queues that the group gives this member to a listener.

    Args:
        nameserver: as of `ClusterClient`.
        group: the consumer group.
        client_id: name among all clients; made up unless given.
        allocation: how the group divides queues.
        start: where a new group begins.
        calls: how the listener is called.
        options: how to read.

    Attributes:
        replier: sends the replies that the listener returns.
    """

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
        self._batch_size = calls.batch_size
        self._orderly = calls.in_order
        self._most_at_once = calls.threads
        self._most_calls = _CALLS_PER_THREAD * calls.threads
        in_hand = InFlightLimits(options.max_in_hand_messages, options.max_in_hand_bytes, options.max_in_hand_span)
        self._in_flight = InFlightDeliveries(in_hand, self._fetcher.wake, one_at_a_time=calls.in_order)
        self._outcomes = DeliveryOutcomes(
            self._client, self._in_flight, self._submit, self._topics_of_others, group, options, orderly=calls.in_order
        )
        self._retry_topic = self._outcomes.retry_topic
        self.replier = Replier(self._client, MOST_BODY_BYTES)
        self._callback_faults = BaseException  # they run on the dispatcher
        #: Those of the listener, once it is started.
        self._calls: ListenerThreads[Delivery] | ListenerTasks[Delivery] | None = None
        self._stop = threading.Event()
        #: The dispatcher takes no more; what it waits for then has this end, on the monotonic clock.
        self._ending = threading.Event()
        self._ends_at = 0.0
        #: When the dispatcher looks for calls that hang.
        self._look_at = 0.0
        self._closing = Closing()
        #: Until when nothing else is taken while suspects are in hand; 0 if there are none.
        self._alone_until = 0.0
        #: Since when suspects wait until nothing else is in hand; 0 if they do not.
        self._waits_since = 0.0
        #: Until when those are looked for that were finished by a member that died and had not committed them.
        self._suspect_until = 0.0
        self._broken: BaseException | None = None
        self._found: Found | None = None  # the latest take
        self._dispatcher = threading.Thread(target=self._dispatch, name=f"minimq-push-{group}", daemon=True)

    @property
    def is_ready(self) -> bool:
        """See `PushConsumer.is_ready`."""
        return self._dispatcher.is_alive() and self._broken is None and not self._stop.is_set() and self.is_member

    def subscribe(self, topic: str, expression: TagExpression, where: str | None) -> None:
        """Read a topic as well; before the start."""
        self._subscribe(topic, expression, where)

    def start(self, listener: ListenerAdapter) -> None:
        """Join the group, and begin to call a listener on threads; see `PushConsumer.start`."""
        name = f"minimq-listener-{self.group}"
        self._start_with(ListenerThreads(self._most_at_once, partial(self._deliver, listener), name))

    def start_on(self, loop: asyncio.AbstractEventLoop, listener: AsyncListenerAdapter) -> None:
        """Do as `start`, and await the listener on an event loop that runs in another thread."""
        deliver = partial(self._deliver_async, listener)
        self._start_with(ListenerTasks(loop, self._most_at_once, deliver, self._cut_off))

    def _start_with(self, calls: ListenerThreads[Delivery] | ListenerTasks[Delivery]) -> None:
        self._check_open()
        check_may_start(self._filters, has_started=self._calls is not None)
        self._routes.with_retries(
            lambda timeout_s: complete(partial(self._look_up_topics, timeout_s)), self._options.start_timeout_s
        )
        complete(self._join)
        self._calls = calls
        self._outcomes.start()
        self._dispatcher.start()

    def check_may_close(self) -> None:
        """Raise `InvalidArgument` in a callback and in the listener, for whose end `close` would have to wait."""
        check_no_signal()
        is_listening = self._calls is not None and self._calls.is_mine()
        if threading.current_thread() is self._dispatcher or is_listening:
            raise InvalidArgument("close waits for the listener and the callbacks: call it from another thread")

    def close(self, timeout: float) -> None:
        """Let running calls end, commit, leave the group; see `PushConsumer.close`."""
        if self._process.is_forked:
            return
        self.check_may_close()
        self._closing.run(partial(self._close, timeout))

    def _close(self, timeout: float) -> None:
        self._closed = True
        self._ends_at = time.monotonic() + timeout
        self._stop.set()
        self._fetcher.wake()
        if self._calls is not None:
            if self._ending.wait(timeout):
                self._dispatcher.join(max(self._ends_at - time.monotonic(), 0.0) + timeout)
            if self._dispatcher.is_alive():
                log.warning("consumer: closes while a callback runs group=%s", self.group)
                self._all_revoked = True  # it hangs, and no other shall
        if self._calls is not None:
            self._calls.close()
        try:
            self._commit(hangs=self._dispatcher.is_alive())
        except MiniMQError as error:
            log.warning("consumer: last commit failed group=%s error=%s", self.group, error)
        if self._calls is not None:
            self._outcomes.close()
            self.replier.close(CLOSE_S)
        self._shut_down()
        if self._broken is not None:
            raise InternalError(f"the consumer had stopped reading before: {self._broken!r}; see the log")

    def drop(self) -> None:
        """End everything of a consumer that was never started."""
        close_all(self._outcomes.sender, self._client)

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

    def _begins(self, queue: MessageQueue, lease: Grant) -> None:
        if lease.tries:
            # Here they are finished one after the other.
            busy_s = self._most_at_once * self._options.commit_interval_s
            self._suspect_until = time.monotonic() + busy_s
        suspects = Suspects.of(lease, self._most_at_once * self._batch_size)
        self._in_flight.start(queue, lease.offset, suspects)
        self._fetcher.wake()  # the dispatcher has to know of the queue before it gets the first message

    def _lost(self, queues: Sequence[MessageQueue]) -> None:
        self._in_flight.drop(queues)

    def _delay_ms(self, queue: MessageQueue) -> int:
        return delay_ms(self._options.retry_delays_s, queue.queue_id) if queue.topic == self._retry_topic else 0

    def _offset_reset(self, reset: OffsetReset) -> None:
        if reset.is_back:
            # Other messages will come under offsets that are in hand.
            again = self._in_flight.start_over(reset.queue, reset.offset)
            if again is not None:
                self._client.run(self._fetcher.seek, reset.queue, again)
        super()._offset_reset(reset)

    # ---- dispatching ----------------------------------------------------------------------------

    def _dispatch(self) -> None:
        try:
            self._dispatch_until_stopped()
            self._ending.set()
            self._wait_for_calls()
            complete(self._revoke_all)
        except BaseException as error:
            # Without this thread nothing is read: others shall have the queues.
            log.critical("consumer: reads no more, and leaves the group=%s", self.group, exc_info=True)
            self._broken = error
            self._all_revoked = True
            self._ending.set()
            if self._member is not None:
                self._member.close()

    def _wait_for_calls(self) -> None:
        left_s = max(self._ends_at - time.monotonic(), 0.0)
        if left_s > QUIET_CLOSE_S:
            if self._in_flight.wait_until_below(1, QUIET_CLOSE_S):
                return
            left_s -= QUIET_CLOSE_S
            log.warning(WAITS_FOR_CALLS, left_s, count_of(self._in_flight.running, "call"), self.group)
        if not self._in_flight.wait_until_below(1, left_s):
            log.warning(WAITS_NO_LONGER, count_of(self._in_flight.running, "call"), self.group)

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
                    complete(self._announce_all)  # a queue that has shrunk cannot be committed as far as it was
                    self._commit()
                self._look_after_calls(now)
                self._dispatch_some(draining=draining)
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

    def _dispatch_some(self, *, draining: bool) -> None:
        assert self._calls is not None  # the dispatcher begins after it
        if self._are_alone():
            return
        suspects = self._in_flight.suspects(near_only=time.monotonic() > self._suspect_until)
        if suspects and self._take_alone(suspects):
            return
        if complete(self._announce_all):  # which does not have to wait for a listener
            return
        if self._in_flight.active >= self._most_calls:
            self._calls.flush()
            self._in_flight.wait_until_below(self._most_calls // 2 + 1, _WAIT_S)
            return
        blocked = self._in_flight.blocked().union(suspects)
        wait_s = min(max(self._in_flight.next_due() - time.monotonic(), 0.0), _WAIT_S)
        if self._fetcher.at_hand(blocked) is None:
            self._calls.flush()
        messages = self._take_messages(wait_s, blocked)
        if messages:
            for delivery in self._deliveries_of(messages):
                self._calls.add(delivery)
        elif draining:
            self._in_flight.wait(_DRAIN_WAIT_S)

    def _are_alone(self) -> bool:
        """Tell whether nothing else is to be taken while suspects are in hand; commit once they are not."""
        if self._alone_until:
            if self._in_flight.wait_until_idle(_WAIT_S):
                self._commit()
            elif time.monotonic() < self._alone_until:
                return True
            self._alone_until = 0.0
        return False

    def _take_messages(self, timeout_s: float, but: Collection[MessageQueue]) -> list[ReceivedMessage]:
        found = self._found = complete(partial(self._take, self._batch_size, timeout_s, but))
        if found is None:
            return []
        found.handed.given = found.given
        return found.messages

    def _take_again(self, count: int) -> None:
        """Take the last messages of the latest take again."""
        if self._found is not None:
            self._found.handed.given -= count

    def _take_alone(self, suspects: Mapping[MessageQueue, Suspects]) -> bool:
        """Deliver suspects with nothing else in hand; return False if other messages are to be taken now.

        Should they end the process, the broker knows which they were, and how often they were delivered.
        """
        assert self._calls is not None
        blocked = self._in_flight.blocked()
        idle = [queue for queue in suspects if queue not in blocked and not self._in_flight.of_queue(queue)[0]]
        if not self._client.run(self._fetcher.has_any, idle):
            self._waits_since = 0.0
            return False
        self._calls.flush()
        now = time.monotonic()
        self._waits_since = self._waits_since or now
        # Calls that last must not stop other queues: these pause and go on in turns, each of which takes twice as long.
        pauses = int((now - self._waits_since) / _ALONE_S).bit_length() % 2 == 0
        if not self._in_flight.wait_until_idle(_WAIT_S if pauses else 0.0):
            return pauses
        self._waits_since = 0.0
        others = blocked.union(self._fetcher.queues).difference(idle)
        messages = self._take_messages(0.0, others)
        if not messages:
            return False
        if messages[0].queue not in suspects:  # it was granted in a callback meanwhile
            self._take_again(len(messages))
            return False
        self._deliver_alone(messages, suspects[messages[0].queue])
        return True

    def _deliver_alone(self, messages: list[ReceivedMessage], found: Suspects) -> None:
        assert self._calls is not None
        queue, first = messages[0].queue, messages[0].queue_offset
        try:
            if len(messages) > 1 and (first < found.near or queue.topic == self._retry_topic):
                self._take_again(len(messages) - 1)
                del messages[1:]
            tries = found.tries_of(first)
            is_over = found.is_found(first) and self._is_over(messages[0], tries)
            if tries and not is_over:
                end = messages[-1].queue_offset + 1
                self._client.wait(lambda: self._fetcher.commits.record_delivery(queue, first, tries + 1, end))
        except BaseException:
            self._take_again(len(messages))
            raise
        for delivery in self._deliveries_of(messages):
            self._alone_until = time.monotonic() + _ALONE_S
            if is_over:
                delivery.gives_up = DIED
                tries -= 1  # a dead letter counts one more
            if found.is_found(first):  # else no listener may have had it
                delivery.messages = [tried_again(message, tries) for message in delivery.messages]
            self._calls.submit(delivery)

    def _is_over(self, message: ReceivedMessage, tries: int) -> bool:
        if message.queue.topic == self._retry_topic:
            message = from_copy(message)
        most = self._outcomes.max_tries
        return most is not None and message.reconsume_times + tries >= most

    def _deliveries_of(self, messages: list[ReceivedMessage]) -> list[Delivery]:
        queue = messages[0].queue
        try:
            parts = self._parts(messages)
        except Exception:
            self._take_again(len(messages))  # none was looked at, so none may count as passed over
            raise
        return self._in_flight.take(messages, parts, lambda offset: self._client.run(self._fetcher.seek, queue, offset))

    def _parts(self, messages: list[ReceivedMessage]) -> list[list[ReceivedMessage]]:
        if messages[0].queue.topic != self._retry_topic:
            return [messages]
        # One by one: what fails again shall become a dead letter, but not what was given together with it.
        return [[from_copy(message)] for message in messages]

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
                self._outcomes.try_again(delivery, None, TIMED_OUT)

    def _hand_over(self) -> bool:
        if not self._fetcher.has_leaving:
            return False
        leaving = self._client.run(self._fetcher.leaving)
        offsets = self._in_flight.leave(leaving)
        if offsets:
            complete(partial(self._hand_back, offsets, commit=True))
        return len(offsets) < len(leaving)

    def _commit(self, *, hangs: bool = False) -> None:
        """Commit what is finished; a dispatcher that hangs may have messages that no listener had."""
        try:
            offsets = self._in_flight.offsets(dict if hangs else self._fetcher.positions)
            self._client.wait(partial(self._record, offsets, automatic=True))
        except TopicNotFound as error:  # it was deleted, which the member of the group says
            log.debug("consumer: nothing to commit group=%s reason=%s", self.group, error)

    # ---- calls ----------------------------------------------------------------------------------

    def _submit(self, delivery: Delivery) -> None:
        if self._calls is not None:
            self._calls.submit(delivery)

    def _may_begin(self, delivery: Delivery) -> bool:
        if self._fetcher.may_use(delivery.queue):
            return self._outcomes.begin(delivery)
        self._in_flight.postpone(delivery, time.monotonic() + _WAIT_S)
        return False

    def _deliver(self, listener: ListenerAdapter, delivery: Delivery) -> None:
        if self._may_begin(delivery):
            self._outcomes.answered(delivery, listener.ask(delivery.queue, delivery.messages))

    async def _deliver_async(self, listener: AsyncListenerAdapter, delivery: Delivery) -> None:
        if self._may_begin(delivery):
            try:
                verdict = await listener.ask(delivery.queue, delivery.messages)
            except (SystemExit, KeyboardInterrupt) as error:  # they end the loop: `close` must not wait for this call
                self._outcomes.answered(delivery, listener.failed(error, delivery.queue, delivery.messages))
                raise
            self._outcomes.answered(delivery, verdict)

    def _cut_off(self, delivery: Delivery) -> None:
        log.error("consumer: the listener was cancelled group=%s queue=%s", self.group, delivery.queue)
        self._outcomes.answered(delivery, Verdict(range(len(delivery.messages)), reason=CANCELLED))
