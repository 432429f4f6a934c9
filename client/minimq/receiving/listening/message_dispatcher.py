"""The work of a push consumer of a work queue: it calls the listener with messages, and settles them by its result."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from minimq.connection.cluster import Cluster
from minimq.filtering.tag_filter import TagExpression
from minimq.receiving.consumer_options import PREFETCH_MESSAGES, ConsumerOptions, SimpleOptions
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
from minimq.receiving.listening.redelivery import CANCELLED
from minimq.receiving.work_queues.popped import PoppedMessage
from minimq.receiving.work_queues.popped_outcomes import (
    LaneQueues,
    PoppedDelivery,
    PoppedOutcomes,
    deliveries,
    most_tries,
)
from minimq.receiving.work_queues.simple_reader import Reception, SimpleReader
from minimq.sending.requests.replier import CLOSE_S, MOST_BODY_BYTES, Replier
from minimq.transport.client_log import client_logger
from minimq.transport.closing import Closing
from minimq.transport.home_process import check_no_signal
from minimq.transport.start_position import Start
from minimq_common.errors import Closed, InternalError, InvalidArgument, MiniMQError
from minimq_common.model import MessageQueue
from minimq_common.outage_log import OutageLog
from minimq_common.words import count_of

log = client_logger(__name__)

#: Interval at which it looks for invisible durations to extend, and for calls that hang, in seconds.
_LOOK_S = 0.2
#: Invisible durations are extended when this part of them is over.
_KEPT_AFTER = 1 / 3
#: Delay before a refused take is tried again, in seconds.
_AGAIN_S = 0.5
#: Seconds for which closing waits for brokers.
_CLOSE_S = 5.0

STOOD_STILL = (
    "consumer: this process stood still for %.0f s, so others may have got what it has in hand group=%s: if a listener "
    "holds the GIL for so long, raise invisible_s"
)
#: Options that are about queues of one's own, and what they are when nobody has set them.
_ABOUT_QUEUES = {
    name: ConsumerOptions.__dataclass_fields__[name].default
    for name in ("model", "hold_s", "on_assigned", "on_revoked", "on_lost", "on_offset_reset")
}


class MessageDispatcher:
    """Takes messages for as many calls of the listener as may begin, and keeps them invisible while these last.

    All of it but the calls runs on the event loop of the connection.

    Args:
        nameserver: as of `ClusterClient`.
        group: the consumer group.
        client_id: unique name among all clients; generated if None.
        start: where a new group begins.
        calls: how the listener is called.
        options: how to read.

    Attributes:
        group: the consumer group.
        client_id: name among all clients.
        replier: sends the replies that the listener returns.
        missed_messages: always 0; brokers count messages that were deleted before their turn.
    """

    missed_messages = 0

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None,
        group: str,
        *,
        client_id: str | None,
        start: Start,
        calls: ListenerCalls,
        options: ConsumerOptions,
    ) -> None:
        for name, default in _ABOUT_QUEUES.items():
            if getattr(options, name) != default:
                raise InvalidArgument(f"{name} is for consumers that have queues to themselves: leave it out here")
        simple = SimpleOptions(
            options.invisible_s,
            most_tries(options),
            start,
            request_timeout_s=options.request_timeout_s,
            prefetch_messages=min(PREFETCH_MESSAGES, options.prefetch_messages, options.max_in_hand_messages),
            credentials=options.credentials,
        )
        self._most_calls, self._batch_size = calls.threads, calls.batch_size
        self._options = options
        self._reader = SimpleReader(nameserver, group, client_id, simple, self._before_take)
        self._outcomes = PoppedOutcomes(self._reader, options)
        self._client = self._reader.client
        self.replier = Replier(self._client, MOST_BODY_BYTES)
        self.group, self.client_id = self._reader.group, self._reader.client_id
        self._calls: ListenerThreads[PoppedDelivery] | ListenerTasks[PoppedDelivery] | None = None
        self._closing = Closing()
        self._is_closed = False
        self._broken: BaseException | None = None
        self._outage = OutageLog(log)
        # What follows belongs to the event loop of the connection.
        self._in_hand: dict[PoppedDelivery, None] = {}
        self._messages_in_hand = 0
        #: Calls of the listener that are running or may begin.
        self._active = 0
        self._lanes = LaneQueues()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._taking: asyncio.Task[None] | None = None
        #: The latest look at the time, and the latest after which this process had stood still.
        self._looked_at = self._stood_still_at = 0.0
        #: When everything in hand was extended after the process had stood still.
        self._woke_at = 0.0

    @property
    def assignment(self) -> list[MessageQueue]:
        """No queue is this consumer's alone."""
        return []

    @property
    def is_ready(self) -> bool:
        """See `PushConsumer.is_ready`."""
        return self._calls is not None and self._broken is None and not self._is_closed

    @property
    def filtered_messages(self) -> int:
        """Number of messages that came here but were filtered out."""
        return self._reader.filtered_messages

    def state_saved(self, queues: Iterable[MessageQueue]) -> None:
        """Raise `InvalidArgument`."""
        raise InvalidArgument("only a consumer that has queues to itself has state to hand over")

    def subscribe(self, topic: str, expression: TagExpression, where: str | None) -> None:
        """Take from a topic as well; before the start."""
        self._reader.check_open()
        if self._calls is not None:
            raise InvalidArgument("subscribe to all topics before the first message is asked for")
        self._reader.subscribe(topic, expression, where)

    def start(self, listener: ListenerAdapter) -> None:
        """Begin to call a listener on threads; see `PushConsumer.start`."""
        name = f"minimq-listener-{self.group}"
        self._start_with(ListenerThreads(self._most_calls, partial(self._deliver, listener), name))

    def start_on(self, loop: asyncio.AbstractEventLoop, listener: AsyncListenerAdapter) -> None:
        """Do as `start`, and await the listener on an event loop that runs in another thread."""
        deliver = partial(self._deliver_async, listener)
        self._start_with(ListenerTasks(loop, self._most_calls, deliver, self._cut_off))

    def _start_with(self, calls: ListenerThreads[PoppedDelivery] | ListenerTasks[PoppedDelivery]) -> None:
        self._reader.check_open()
        check_may_start(self._reader.topics, has_started=self._calls is not None)
        for topic in self._reader.topics:
            self._client.routes.with_retries(partial(self._client.routes.route, topic), self._options.start_timeout_s)
        self._calls = calls
        self._client.run(self._begin)

    def check_may_close(self) -> None:
        """Raise `InvalidArgument` in the listener, for whose end `close` would have to wait."""
        check_no_signal()
        if self._calls is not None and self._calls.is_mine():
            raise InvalidArgument("close waits for the listener and the callbacks: call it from another thread")

    def close(self, timeout: float) -> None:
        """Wait for running calls, settle their messages, and return the rest; see `PushConsumer.close`."""
        if self._client.connection.is_forked:
            return
        self.check_may_close()
        self._closing.run(partial(self._close, timeout))

    def _close(self, timeout: float) -> None:
        self._is_closed = True
        try:
            self._client.wait(partial(self._end, timeout))
        except Closed:  # so is the `Cluster`
            pass
        finally:
            if self._calls is not None:
                self._calls.close()
                self.replier.close(CLOSE_S)
            self._reader.drop()
        if self._broken is not None:
            raise InternalError(f"the consumer had stopped reading before: {self._broken!r}; see the log")

    def drop(self) -> None:
        """End everything of a consumer that was never started."""
        self._reader.drop()

    # ---- taking ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._looked_at = self._woke_at = time.monotonic()
        self._taking = self._run(self._take_all())
        self._run(self._look_after_all())

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _take_all(self) -> None:
        while not self._reader.is_closed:
            try:
                if (room := self._room()) <= 0:
                    self._changed.clear()
                    await self._changed.wait()
                    continue
                asked_at = time.monotonic()
                messages = Reception()
                await self._reader.receive(room, None, self._options.wait_s, messages)
                self._outage.worked("consumer: takes messages again group=%s", self.group)
                if messages and self._stood_still_since(asked_at):
                    self._hand_out(await self._outcomes.still_held(messages))
                else:
                    self._hand_out(messages)
            except Closed:
                return
            except MiniMQError as error:
                text = "consumer: cannot take messages, will try again group=%s error=%s"
                self._outage.failed(text, self.group, error, cause=error, level=logging.ERROR)
                await asyncio.sleep(_AGAIN_S)
            except Exception:
                log.exception("consumer: failed, will try again group=%s", self.group)
                await asyncio.sleep(_AGAIN_S)

    async def _before_take(self) -> None:
        if self._stood_still_since(self._woke_at):
            now = time.monotonic()
            in_hand = [delivery for delivery in self._in_hand if delivery.kept and not delivery.is_lost]
            await asyncio.gather(*(self._outcomes.keep(delivery, now) for delivery in in_hand))
            self._woke_at = now

    def _stood_still_since(self, since: float) -> bool:
        is_late = time.monotonic() - self._looked_at > _KEPT_AFTER * self._options.invisible_s
        return is_late or self._stood_still_at >= since

    def _room(self) -> int:
        free = (self._most_calls - self._active) * self._batch_size
        return min(free, self._options.max_in_hand_messages - self._messages_in_hand)

    def _hand_out(self, messages: Sequence[PoppedMessage]) -> None:
        if self._calls is None:
            return
        for delivery in deliveries(messages, self._batch_size, time.monotonic()):
            self._in_hand[delivery] = None
            self._messages_in_hand += len(delivery.messages)
            if self._lanes.add(delivery):
                self._active += 1
                self._calls.add(delivery)
        self._calls.flush()

    # ---- calls -------------------------------------------------------------------------------------

    def _deliver(self, listener: ListenerAdapter, delivery: PoppedDelivery) -> None:
        if delivery.claim():
            delivery.began_at = time.monotonic()
            self._answered(delivery, listener.ask(delivery.queue, delivery.messages))

    async def _deliver_async(self, listener: AsyncListenerAdapter, delivery: PoppedDelivery) -> None:
        if not delivery.claim():
            return
        delivery.began_at = time.monotonic()
        try:
            verdict = await listener.ask(delivery.queue, delivery.messages)
        except (SystemExit, KeyboardInterrupt) as error:  # they end the loop: `close` must not wait for this call
            self._answered(delivery, listener.failed(error, delivery.queue, delivery.messages))
            raise
        self._answered(delivery, verdict)

    def _cut_off(self, delivery: PoppedDelivery) -> None:
        log.error("consumer: the listener was cancelled group=%s queue=%s", self.group, delivery.queue)
        self._answered(delivery, Verdict(range(len(delivery.messages)), reason=CANCELLED))

    def _answered(self, delivery: PoppedDelivery, found: Verdict) -> None:
        self._client.connection.call_soon(self._act_on, delivery, found)

    # ---- outcomes ----------------------------------------------------------------------------------

    def _act_on(self, delivery: PoppedDelivery, found: Verdict) -> None:
        delivery.began_at = None
        if delivery.lane:
            self._run(self._settle_in_order(delivery, found))
            return
        self._active -= 1
        self._changed.set()
        self._run(self._settle(delivery, found))

    async def _settle(self, delivery: PoppedDelivery, found: Verdict) -> None:
        try:
            await self._outcomes.settle(delivery, found)
        finally:
            self._leave(delivery)

    async def _settle_in_order(self, delivery: PoppedDelivery, found: Verdict) -> None:
        """Settle messages of a FIFO topic, then call the listener with the next ones of their message group.

        If one failed, or was given to others meanwhile, the next ones have to wait for it: those that came with it
        are returned to the broker, and this delivery counts no try.
        """
        try:
            if found.again:
                failed = found.again[0]
                left = [*self._cut(delivery, failed + 1), *self._withdrawn(delivery)]
                found = found._replace(again=[failed])
                await self._outcomes.give_back(delivery, left)
            await self._outcomes.settle(delivery, found)
            if delivery.is_lost:
                await self._outcomes.give_back(delivery, self._withdrawn(delivery))
        finally:
            self._leave(delivery)
            following = self._lanes.following(delivery, self._in_hand)
            if following is None:
                self._active -= 1
                self._changed.set()
            elif self._calls is not None:
                self._calls.add(following)
                self._calls.flush()

    def _withdrawn(self, delivery: PoppedDelivery) -> list[PoppedMessage]:
        withdrawn = [each for each in self._lanes.withdraw(delivery) if each.claim()]
        for each in withdrawn:
            self._leave(each)
        return [message for each in withdrawn for message in each.messages]

    def _cut(self, delivery: PoppedDelivery, count: int) -> Sequence[PoppedMessage]:
        rest = delivery.cut(count)
        self._messages_in_hand -= len(rest)
        return rest

    def _leave(self, delivery: PoppedDelivery) -> None:
        if delivery in self._in_hand:
            del self._in_hand[delivery]
            self._messages_in_hand -= len(delivery.messages)
            self._changed.set()

    # ---- looking after what is in hand -------------------------------------------------------------

    async def _look_after_all(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            before, now = self._looked_at, time.monotonic()
            if self._stood_still_since(now):
                self._stood_still_at = now
            self._looked_at = now
            if now - before > self._options.invisible_s and self._in_hand:
                log.warning(STOOD_STILL, now - before, self.group)
            assert self._calls is not None  # this begins after it
            self._calls.look(now)
            if self._calls.has_ended and self._broken is None and not self._is_closed:
                text = "the event loop of the listener has ended: close the consumer before its loop ends"
                await self._give_up(InternalError(text))
                return
            for delivery in [*self._in_hand]:
                if now >= delivery.kept_at + _KEPT_AFTER * self._options.invisible_s:
                    self._keep(delivery, now)
                began_at = delivery.began_at
                if began_at is not None and not delivery.hangs and now >= began_at + self._options.consume_timeout_s:
                    delivery.hangs = True
                    text = "consumer: the listener has not returned for %s s group=%s queue=%s offset=%s messages=%s"
                    first = delivery.messages[0].queue_offset
                    timeout_s, count = self._options.consume_timeout_s, len(delivery.messages)
                    log.error(text, timeout_s, self.group, delivery.queue, first, count)

    def _keep(self, delivery: PoppedDelivery, now: float) -> None:
        if delivery.kept and not delivery.is_being_kept and not delivery.is_lost:
            self._run(self._outcomes.keep(delivery, now))

    # ---- the end -----------------------------------------------------------------------------------

    async def _give_up(self, error: BaseException) -> None:
        log.critical("consumer: reads no more, and leaves the group=%s", self.group, exc_info=error)
        self._broken = error
        await self._stop_taking()
        await self._reader.close(_CLOSE_S)

    async def _stop_taking(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.wait([self._taking])
        waiting = [delivery for delivery in self._in_hand if delivery.claim()]
        for delivery in waiting:
            self._leave(delivery)
        messages = [message for delivery in waiting for message in delivery.messages]
        if messages:
            await self._reader.give_back(messages)

    async def _wait_for_calls(self, timeout_s: float) -> None:
        if timeout_s > QUIET_CLOSE_S:
            if await self._settled_within(QUIET_CLOSE_S):
                return
            timeout_s -= QUIET_CLOSE_S
            log.warning(WAITS_FOR_CALLS, timeout_s, self._running_calls(), self.group)
        if not await self._settled_within(timeout_s):
            log.warning(WAITS_NO_LONGER, self._running_calls(), self.group)

    def _running_calls(self) -> str:
        return count_of(sum(delivery.began_at is not None for delivery in self._in_hand), "call")

    async def _settled_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while self._in_hand:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def _end(self, timeout_s: float) -> None:
        try:
            if not self._reader.is_closed:
                await self._stop_taking()
                await self._wait_for_calls(timeout_s)
                await self._reader.close(_CLOSE_S)
        finally:
            for task in self._tasks:
                task.cancel()
