"""The implementation of work queue consumers and of `WorkQueueSource`, on the event loop of the connection."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from minimq.arguments import check_count, check_text, waiting_s
from minimq.connection.client import ClusterClient
from minimq.connection.cluster import Cluster
from minimq.connection.finalizers import Closing
from minimq.connection.loop_thread import off_loop
from minimq.connection.retry_schedule import PAUSE_S
from minimq.consuming.assignment import OFFLINE_TIMEOUT_S
from minimq.consuming.consumer import check_subscriptions, checked_client_id, new_client_id
from minimq.consuming.group_start import GroupStart
from minimq.consuming.message_filter import ALL_MESSAGES, MessageFilter
from minimq.consuming.pulls import encoded
from minimq.consuming.start_position import start_position
from minimq.features.work_queues.copies import MAX_DELIVERIES_REACHED, REJECTED, check_reason
from minimq.features.work_queues.copy_sender import CopySender, Failed
from minimq.features.work_queues.pop_stream import PopStream
from minimq.features.work_queues.prefetch import PREFETCH_HOLD_S, Prefetch
from minimq.features.work_queues.retry_topic import RetryTopic
from minimq.features.work_queues.settler import DONE, RETURNED, Settlement, Settler
from minimq.features.work_queues.taken_messages import TakenMessages, TakeResult
from minimq.features.work_queues.work_queue_fetcher import LOOK_UP_S, TakeRequest, TopicOnBroker, WorkQueueFetcher
from minimq.features.work_queues.work_queue_message import Receipts, WorkQueueMessage, receipts_of
from minimq.features.work_queues.work_queue_options import WorkQueueOptions, invisible_ms
from minimq_common.errors import Closed, DeadlineExceeded, InvalidArgument, MinimqError, TopicNotFound, Unavailable
from minimq_common.model import MessageQueue
from minimq_common.names import check_group, check_topic
from minimq_common.wire.protocol_bounds import MAX_INVISIBLE_MS, MAX_TAKEN
from minimq_proto.v1 import broker_pb2, work_queues_pb2

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Approximate maximum size of the batches in one response.
_MAX_BYTES = 4 << 20
#: Maximum time for which a broker holds a take while there are no messages.
_MAX_WAIT_S = 20.0
_CLOSE_S = 5.0
_UNLIMITED_DELIVERIES = 1 << 31


class WorkQueueReader:
    """Pops messages and settles them. Coroutines run on the event loop of `client.connection`."""

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None,
        group: str,
        client_id: str | None,
        options: WorkQueueOptions,
        *,
        for_listener: bool = False,
        retried_topics: Callable[[], Collection[str]] | None = None,
    ) -> None:
        """With `retried_topics`, read the retries of these topics only: the group leases their queues."""
        check_text("group", group)
        self.group = check_group(group)
        self.client_id = new_client_id() if client_id is None else checked_client_id(client_id)
        self._options = options
        #: A listener sees no errors, so its consumer continues without rejected topics.
        self._for_listener = for_listener
        self._invisible_ms = invisible_ms(options.invisible_s)
        self._start = start_position(options.start)
        self.client = ClusterClient(nameserver, credentials=options.credentials)
        self.group_start = GroupStart(self.client, self.group, self._start, options.request_timeout_s)
        self._filters: dict[str, MessageFilter] = {}
        #: Errors that the next calls raise, one each.
        self._errors: list[MinimqError] = []
        self.copies = CopySender(self.client, group, options.request_timeout_s)
        self._retries = RetryTopic(self.client, group, retried_topics or (lambda: self._filters))
        self._takes_retries_only = retried_topics is not None
        #: Background tasks.
        self._tasks: set[asyncio.Task[Any]] = set()
        self.filtered_messages = 0
        self.is_closed = False
        self._closing = Closing()
        self._takes = WorkQueueFetcher(self.client, self._take, self._run)
        # A process that dies would otherwise delay or lose the messages that it has.
        ahead = options.prefetch_messages if options.release_on_close and options.max_deliveries > 1 else 0
        self._prefetch = Prefetch(self.client.connection, ahead, self._take_ahead, self._give_back_soon)
        self.settler = Settler(self.client, group, self.client_id, options.request_timeout_s, self.check_open)

    def subscribe(self, topic: str, wanted: MessageFilter) -> None:
        self.check_open()
        filters = {**self._filters, check_topic(topic): wanted}
        self._filters = check_subscriptions(self.group, filters)

    def check_open(self) -> None:
        """Raise `Closed` after `close`, also of the `Cluster`, and in a fork."""
        if self.is_closed:
            raise Closed("the consumer is closed")
        self.client.check_open()

    @property
    def topics(self) -> list[str]:
        return [*self._filters]

    def _duration_ms(self, invisible_s: float | None) -> int:
        return self._invisible_ms if invisible_s is None else invisible_ms(invisible_s)

    # ---- receiving ---------------------------------------------------------------------------------

    async def begin(self, timeout_s: float = OFFLINE_TIMEOUT_S) -> bool:
        """Fix where the group begins; see `WorkQueueConsumer.start`. Returns whether messages may be taken."""
        self.check_open()
        if not (self._filters or self._takes_retries_only):
            raise InvalidArgument("nothing is subscribed to: call subscribe(topic) first")
        if self._retries.name not in self.client.routes.used:
            self._retries.watch()
        self.group_start.begin(self._filters.keys())
        return await self.group_start.wait(timeout_s)

    def wanted(self, max_messages: int, invisible_s: float | None, timeout_s: float) -> TakeRequest:
        """Return what a `receive` with these arguments asks for. On any thread. Raises `InvalidArgument`, `Closed`."""
        self.check_open()
        check_count("max_messages", max_messages)
        until = time.monotonic() + waiting_s(timeout_s)
        return TakeRequest(min(max_messages, MAX_TAKEN), self._duration_ms(invisible_s), until)

    def receive_prefetched(self, wanted: TakeRequest, into: TakenMessages) -> bool:
        """Append prefetched messages to `into`, on any thread; return False if `receive` has to be called."""
        return (
            wanted.invisible_ms == self._invisible_ms and not self._errors and self._prefetch.receive(wanted.most, into)
        )

    async def receive(self, wanted: TakeRequest, into: TakenMessages) -> None:
        """Take messages, which `open` then appends to `into`, or append prefetched ones.

        Until `open` returns True, call this again: first it settles the messages that the caller does not get.
        """
        if into.unwanted is not None:
            await self._settle_unwanted(into)
            if into or time.monotonic() >= wanted.until:
                return
        await self._receive(wanted, into)
        if into.is_abandoned:
            self._abandon(into)

    async def _receive(self, wanted: TakeRequest, into: TakenMessages) -> None:
        until = wanted.until
        if not await self.begin(max(until - time.monotonic(), LOOK_UP_S)):
            return
        while True:
            if self._errors:
                raise self._errors.pop(0)
            if wanted.invisible_ms == self._invisible_ms and await self._prefetch.wait(wanted.most, until, into):
                return
            topics, turn_until = self._wanted(until)
            if not topics:
                await self._retries.wait(until)
                return
            taken, failure = await self._takes.first(topics, wanted, turn_until)
            if taken is not None:
                into.taken = taken
                self._prefetch.received(taken, wanted.most)
                return
            left_s = until - time.monotonic()
            if left_s <= 0:
                if failure is not None:
                    raise failure
                return
            if failure is not None:
                await asyncio.sleep(min(PAUSE_S, left_s))

    def open(self, into: TakenMessages) -> bool:
        """Decode and filter what `receive` has taken; return whether it has not to be called again.

        On any thread but that of the loop: it may take long.
        """
        taken = into.taken
        if taken is None:
            return True
        messages, unwanted = taken.open(self.group)
        if taken.queue.topic == self._retries.name:
            kept, later = self._retries.sort(messages)
            unwanted.settles += [(receipts_of(waiting, self.group), how) for how, waiting in later.items()]
        else:
            kept = self._filters[taken.queue.topic].apply(messages)
            if len(kept) < len(messages):
                chosen = set(map(id, kept))
                others = [message for message in messages if id(message) not in chosen]
                unwanted.filtered = len(others)
                unwanted.settles.append((receipts_of(others, self.group), DONE))
        # A message that was lost together with others is tried alone at least once.
        most = _UNLIMITED_DELIVERIES if taken.was_lost_alone else self._options.max_deliveries
        found = [message for message in kept if message.delivery_count <= most]
        if len(found) < len(kept):
            unwanted.used_up = [message for message in kept if message.delivery_count > most]
        self._errors += unwanted.errors
        into += found  # first: `abandon` returns either these or all that were taken
        if found and not (unwanted.settles or unwanted.used_up):
            into.taken = None
            return True
        into.unwanted = unwanted
        return False

    async def receive_on_loop(self, wanted: TakeRequest) -> TakenMessages:
        """Return received messages to a task of the event loop: a thread decodes them."""
        found = TakenMessages()
        await self.receive(wanted, found)
        await self._open_on_thread(wanted, found)
        return found

    async def _open_on_thread(self, wanted: TakeRequest, found: TakenMessages) -> None:
        try:
            while found.taken is not None and not await off_loop(self.open, found):
                await self.receive(wanted, found)
        except BaseException:  # such as a cancellation
            self._abandon(found)
            raise

    def rejected_s(self) -> float:
        """Return for how many seconds all topics are still rejected; at most 0 if one may be asked for."""
        return min(map(self._takes.rejected_s, self._filters or (self._retries.name,)))

    def _wanted(self, until: float) -> tuple[list[str], float]:
        """Return the topics to take from, and until when."""
        rejected_s = self._takes.rejected_s
        topics = [*self._filters]
        if self._retries.name in self.client.routes.by_topic:
            topics.append(self._retries.name)
            until = self._retries.turn_end(until)
        open_ones = [topic for topic in topics if not self._for_listener or rejected_s(topic) <= 0]
        return open_ones or topics, until

    async def _take_ahead(self, count: int) -> tuple[TakenMessages, int, bool]:
        duration_ms = min(self._invisible_ms + round(PREFETCH_HOLD_S * 1000), MAX_INVISIBLE_MS)
        now = time.monotonic()
        wanted = TakeRequest(count, duration_ms, now, ahead=True)
        taken, _ = await self._takes.first(self._wanted(now)[0], wanted, now)
        found = TakenMessages()
        found.taken = taken
        await self._open_on_thread(wanted, found)
        return (found, taken.count, taken.has_more) if taken is not None else (found, 0, False)

    def abandon(self, messages: TakenMessages) -> None:
        """Return the messages of an interrupted `receive` to the broker, now and when they arrive. On any thread."""
        self.client.connection.call_soon(self._abandon, messages)

    def _abandon(self, messages: TakenMessages) -> None:
        messages.is_abandoned = True
        if messages.taken is not None:
            messages.taken.give_back()
        else:
            self._give_back_soon([*messages])

    def let_go(self, messages: list[WorkQueueMessage]) -> None:
        """Return unprocessed messages to their brokers, without waiting. On any thread."""
        self.client.connection.call_soon(self._give_back_soon, messages)

    def _give_back_soon(self, messages: Sequence[WorkQueueMessage]) -> None:
        if messages and not self.is_closed:
            self._run(self.give_back(messages))

    async def give_back(self, messages: Sequence[WorkQueueMessage]) -> None:
        """Return unprocessed messages to their brokers: others get them at once, and the delivery does not count."""
        await self._settle_if_possible(receipts_of(messages, self.group), RETURNED)

    async def _settle_if_possible(self, receipts: Receipts, how: Settlement) -> None:
        try:
            await self.settler.settling(receipts, how)
        except MinimqError as error:
            log.info("consumer: messages will be redelivered group=%s reason=%s", self.group, error)

    def _run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _request(
        self, place: TopicOnBroker, stream: PopStream, wanted: TakeRequest, wait_s: float, kept: Iterable[int]
    ) -> work_queues_pb2.PoppedMessages:
        filtered_by = self._filters.get(place.topic, ALL_MESSAGES)
        wait_s = max(0.0, min(wait_s, _MAX_WAIT_S))
        take = work_queues_pb2.PopTake(
            topic=place.topic,
            max_messages=wanted.most,
            max_bytes=_MAX_BYTES,
            invisible_ms=wanted.invisible_ms,
            wait_ms=round(wait_s * 1000),
            start=self._start,
            begun_ago_ms=self.group_start.ago_ms(place.topic, wait_s + self._options.request_timeout_s),
            have=kept,
            filter=filtered_by.text,
            tag_hashes=filtered_by.tag_hashes,
            unbound=not self._options.release_on_close,
            ahead=wanted.ahead,
        )
        try:
            async with asyncio.timeout(wait_s + self._options.request_timeout_s):
                popped = await stream.take(take)
        except TimeoutError:
            limit_s = self._options.request_timeout_s
            raise DeadlineExceeded(f"broker {place.address} gave no answer within {limit_s:g} s") from None
        except TopicNotFound:
            if place.topic != self._retries.name:
                raise
            await self._retries.not_found()
            return work_queues_pb2.PoppedMessages()
        return popped

    async def _take(self, place: TopicOnBroker, wanted: TakeRequest, wait_s: float) -> TakeResult | None:
        stream = self.settler.stream(place.address)
        kept = stream.opened.kept()
        while not (popped := await self._request(place, stream, wanted, wait_s, kept)).runs:
            if popped.makes_room:  # this consumer has to settle its other messages first
                await asyncio.sleep(min(PAUSE_S, wait_s))
            if not popped.has_more or time.monotonic() >= wanted.until:
                return None
            wait_s = 0.0
        queue = MessageQueue(place.topic, place.broker_name, popped.queue_id)
        try:
            batches = [
                stream.opened.get(queue, encoded(item, is_compacted=popped.is_compacted), kept)
                for item in popped.batches
            ]
        except Exception:
            stream.give_back(place.topic, popped)
            raise
        return TakeResult(stream, queue, popped, batches)

    async def _settle_unwanted(self, into: TakenMessages) -> None:
        taken, unwanted = into.taken, into.unwanted
        assert taken is not None  # set by `receive`
        assert unwanted is not None  # set by `open`
        into.taken = into.unwanted = None
        self.filtered_messages += unwanted.filtered
        for receipts, how in unwanted.settles:
            await self._settle_if_possible(receipts, how)
        is_buried = not unwanted.used_up or await asyncio.shield(self._run(self._bury_used_up(unwanted.used_up)))
        # FIFO: unsettled older messages go first.
        if into and into[0].group_hash and (unwanted.errors or not is_buried):
            self._give_back_soon([*into])
            into.clear()

    async def _bury_used_up(self, used_up: Sequence[WorkQueueMessage]) -> bool:
        # This delivery was not processed, so it is no attempt.
        failed = [Failed(message, MAX_DELIVERIES_REACHED, delivered=message.delivery_count - 1) for message in used_up]
        try:
            await self._bury(used_up, failed)
        except MinimqError as error:
            self._errors.append(error)  # the next call raises it: this one may have messages, or was cancelled
            return False
        return True

    # ---- settling ----------------------------------------------------------------------------------

    def freed(self, delay_s: float) -> Settlement:
        """Return the settlement of `WorkQueueConsumer.release`."""
        return Settlement(broker_pb2.POP_OUTCOME_FREE, invisible_ms(delay_s, "delay_s", 0))

    def extended(self, invisible_s: float | None) -> Settlement:
        return Settlement(broker_pb2.POP_OUTCOME_EXTEND, self._duration_ms(invisible_s))

    # ---- dead letters ------------------------------------------------------------------------------

    async def reject(self, messages: WorkQueueMessage | Iterable[WorkQueueMessage], reason: str = REJECTED) -> None:
        """Send messages to the dead letters of the group, then acknowledge them."""
        self.check_open()
        why = check_reason(reason)
        chosen = [messages] if isinstance(messages, WorkQueueMessage) else list(messages)
        for message in chosen:
            if not isinstance(message, WorkQueueMessage):
                raise InvalidArgument(
                    "a dead letter is a copy of its message: reject the message itself, not its handle"
                )
        receipts_of(chosen, self.group)
        # Fails if others have received the messages since.
        await self.settler.settle(chosen, self.extended(None))
        # Shielded: after a cancellation between send and settle, the copies would be sent again.
        failed = [Failed(message, why, is_wanted=True) for message in chosen]
        await asyncio.shield(self._run(self._bury(chosen, failed)))

    async def _bury(self, messages: Sequence[WorkQueueMessage], failed: Sequence[Failed]) -> None:
        sent = await self.copies.send(failed)
        buried = [message for message, is_sent in zip(messages, sent, strict=True) if is_sent]
        if buried:
            await self.settler.settle(buried, DONE)
        if left := len(messages) - len(buried):
            raise Unavailable(
                f"{left} messages were not sent to the dead letters of group {self.group!r}: they "
                "are redelivered after their invisible duration"
            )

    async def close(self, timeout_s: float) -> None:
        """Return prefetched messages, tell the brokers that the consumer leaves, and close all streams."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.settler.wait_all()
                if prefetched := await self._prefetch.close(timeout_s):
                    await self.give_back(prefetched)
        self.is_closed = True
        await self.settler.close(timeout_s)

    def end(self) -> None:
        """Close and wait, on any thread but that of the loop; see `WorkQueueConsumer.close`."""
        if not self.client.connection.is_void:
            self._closing.run(self._end)

    def _end(self) -> None:
        try:
            with suppress(Closed):  # the `Cluster` was closed before
                self.client.wait(lambda: self.close(_CLOSE_S))
        finally:
            self.drop()

    def drop(self) -> None:
        """Close everything at once. On any thread but that of the loop."""
        self.is_closed = True
        self.client.connection.call_soon(self.group_start.close)
        self.copies.close()
        self.settler.drop()
        self.client.close()
